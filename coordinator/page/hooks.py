"""`POST /hooks/drain`: whoever knows that a node is about to go says so, as an operator.

The page beside it only looks, and on loopback asks nobody who he is; this acts, so it asks: for
a certificate of the role that may drain, or for the token that the coordinator was started with.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from coordinator.api.client import OperatorClient
from coordinator.core.errors import (
    AllstopError,
    BadRequest,
    Forbidden,
    NotFound,
    Refused,
    SetupError,
)
from coordinator.page.shapes import Wanted, all_wanted, node_of
from coordinator.security.holders import holder_of_pem
from coordinator.security.roles import require

CERTIFICATE = "allstop.certificate"  # in the scope of a request: DER of whoever asks
TOKEN_CHARS_MIN = 16
BODY_BYTES_MAX = 64 << 10
METHOD = "/allstop.v1.Operator/Drain"


@dataclass(frozen=True)
class Admission:
    """Who may use hooks."""

    token: str = ""  # empty: nobody by a token
    any_role: bool = False  # every certificate of the authority

    def require(self, certificate: bytes | None, authorization: str) -> None:
        """Raise Forbidden for whoever shows neither."""
        if self.token and hmac.compare_digest(
            authorization.encode(), f"Bearer {self.token}".encode()
        ):
            return
        if certificate is None:
            raise Forbidden(
                "a hook needs a certificate of an operator, or the token of the coordinator",
                advice="use TLS with a certificate, or start the coordinator with --hook-token FILE"
                " and send its content as `Authorization: Bearer …`",
            )
        if not self.any_role:
            pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
            require(holder_of_pem(pem), METHOD)


class Hooks:
    """Takes notices over HTTP; refused ones change nothing."""

    def __init__(self, client: OperatorClient, admission: Admission) -> None:
        """`client` reaches this process's own coordinator."""
        self._client = client
        self._admission = admission

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/hooks/drain", self._drain, methods=["POST"])]

    async def _drain(self, request: Request) -> JSONResponse:
        try:
            told = request.headers.get("authorization", "")
            self._admission.require(request.scope.get(CERTIFICATE), told)
            wanted = all_wanted(await _body(request), time.time())
            if len(wanted) == 1:
                return JSONResponse({"drain": await self._drained(wanted[0])}, 202)
        except AllstopError as error:
            return JSONResponse({"error": error.to_fields()}, _status(error))
        return await self._each(wanted)

    async def _each(self, wanted: Sequence[Wanted]) -> JSONResponse:
        """Several nodes; each is taken or refused for itself, and the status is the worst."""
        drains, status = [], 202
        for each in wanted:
            try:
                drains.append({"drain": await self._drained(each)})
            except AllstopError as error:
                drains.append({"error": error.to_fields()})
                status = max(status, _status(error))
        return JSONResponse({"drains": drains}, status)

    async def _drained(self, wanted: Wanted) -> dict[str, Any]:
        nodes = [view.facts for view in await self._client.nodes()] if wanted.address else ()
        node = node_of(wanted, nodes)
        record = await self._client.drain(
            node, deadline_s=wanted.deadline_s, why=wanted.why, notice=True
        )
        return asdict(record)


async def _body(request: Request) -> Any:
    taken = b""
    async for part in request.stream():
        taken += part
        if len(taken) > BODY_BYTES_MAX:
            raise BadRequest(f"a notice has {BODY_BYTES_MAX} bytes at most")
    try:
        return json.loads(taken)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None


def _status(error: AllstopError) -> int:
    kinds: tuple[tuple[type[AllstopError], int], ...] = (
        (Forbidden, 403),
        (NotFound, 404),
        (BadRequest, 400),
        (Refused, 409),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), 503)


def read_token(path: Path | None) -> str:
    """The token in a file, empty without one; raises SetupError for one that is not secret."""
    if path is None:
        return ""
    try:
        mode, token = path.stat().st_mode, path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read the token in {path}: {error}") from error
    if mode & 0o077:
        raise SetupError(f"{path} can be read by others", advice=f"chmod 600 {path}")
    if len(token) < TOKEN_CHARS_MIN or not token.isascii():
        raise SetupError(
            f"the token in {path} is too short", advice=f"openssl rand -hex 32 > {path}"
        )
    return token
