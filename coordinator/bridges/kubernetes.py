"""As much of Kubernetes' API as a bridge needs: JSON over HTTPS, each request with a deadline.

In a pod the address comes from the environment, the token and the authority from the files of its
service account; the token is read anew for each request, since it is renewed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.core.errors import LinkError, SetupError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
MERGE = "application/merge-patch+json"


class Kubernetes:
    """One API server; `ask` may be called from one loop at a time."""

    def __init__(self, url: str = "", account: Path = ACCOUNT) -> None:
        """`url`: empty for the one of this pod. Raises SetupError; nothing is asked yet."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), "443"
        if not url and not host:
            raise SetupError(
                "this is no pod of Kubernetes", advice="run it in one, or give --api URL"
            )
        shown = f"[{host}]" if ":" in host else host
        url = url or f"https://{shown}:{os.environ.get('KUBERNETES_SERVICE_PORT', port)}"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError(f"{url!r} is no address of an API server")
        self._host, self._port = parts.hostname, parts.port
        self._account = account
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
            except OSError as error:
                raise SetupError(f"cannot read {account / 'ca.crt'}: {error}") from error

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and object of an answer; raises LinkError where there is none."""
        return await asyncio.to_thread(self._ask, method, path, body, kind)

    def _ask(self, method: str, path: str, body: Any, kind: str) -> tuple[int, Mapping[str, Any]]:
        headers = {"Accept": "application/json"}
        text = None if body is None else json.dumps(body).encode()
        if text is not None:
            headers["Content-Type"] = kind
        try:
            if self._tls is not None:
                headers["Authorization"] = f"Bearer {(self._account / 'token').read_text().strip()}"
            with contextlib.closing(self._connection()) as made:
                made.request(method, path, text, headers)
                answer = made.getresponse()
                found = json.loads(answer.read(ANSWER_BYTES_MAX) or b"{}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LinkError(f"Kubernetes' API at {self._host}: {error}", definite=False) from error
        if not isinstance(found, dict):
            raise LinkError(f"Kubernetes' API at {self._host} answers with no object")
        return answer.status, found

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=REQUEST_S, context=self._tls
        )


def refused(status: int, answer: Mapping[str, Any], what: str) -> LinkError:
    """The API has answered, and not with what was asked for."""
    return LinkError(f"{what}: {status} {answer.get('message', '')}".rstrip())
