"""Small HTTP requests to a metadata service, each with a deadline for all of it.

Never by a proxy, never by TLS, never to follow a redirection: the service is on the machine's own
link, and what it says is taken for what becomes of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from coordinator.core.errors import BadRequest, DriverError

HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 256 << 10
REQUEST_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What the service has answered."""

    status: int
    text: str
    etag: str = ""

    def require(self, what: str) -> Answer:
        """Itself; raises DriverError for one that is no success."""
        if self.status != http.HTTPStatus.OK:
            raise DriverError(f"the metadata service answers {what} with {self.status}")
        return self


class Metadata:
    """A metadata service at `http://HOST[:PORT][/PATH]`; keeps no connection."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet; raises BadRequest for a URL of another kind."""
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port or 80
        except ValueError:
            parts, self._host = urlsplit(""), ""
        if parts.scheme != "http" or not self._host or parts.query or parts.fragment:
            raise BadRequest(
                f"{url!r} is no address of a metadata service",
                advice="give http://HOST[:PORT][/PATH]",
            )
        self._place = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/")
        self.url = url

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes = b"",
        deadline_s: float = REQUEST_S,
    ) -> Answer:
        """One request; raises DriverError where there is no answer that can be read in time."""
        told = {"Host": self._place, "Connection": "close", **headers}
        if body or method != "GET":
            told["Content-Length"] = str(len(body))
        lines = [f"{method} {self._base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items())]
        request = "\r\n".join((*lines, "", "")).encode() + body
        try:
            async with asyncio.timeout(deadline_s):
                return _answer(await self._exchange(request))
        except TimeoutError:
            raise DriverError(f"{self.url} does not answer within {deadline_s:g} s") from None
        except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
            raise DriverError(f"{self.url}: {error or type(error).__name__}") from error

    async def _exchange(self, request: bytes) -> bytes:
        """Send a request, and read what is answered up to its end or the most that is taken."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES_MAX)
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = _length(head)
            if length is not None:
                return head + await reader.readexactly(length)
            body = b""
            while part := await reader.read(BODY_BYTES_MAX):
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise ValueError("it answers without end")
            return head + body
        except asyncio.LimitOverrunError:
            raise ValueError("it answers without end") from None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _length(head: bytes) -> int | None:
    """How long the body is, where that is said."""
    fields = http.client.parse_headers(io.BytesIO(head.partition(b"\r\n")[2]))
    told = fields.get("Content-Length")
    if told is None or "Transfer-Encoding" in fields:
        return None
    if not told.isascii() or not told.isdigit() or int(told) > BODY_BYTES_MAX:
        raise ValueError(f"it answers with {told[:20]!r} bytes")
    return int(told)


class _Taken:
    """As much of a socket as http.client wants of one."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        """All of it."""
        return io.BytesIO(self._data)


def _answer(data: bytes) -> Answer:
    response = http.client.HTTPResponse(cast("http.client.socket.socket", _Taken(data)))  # type: ignore[name-defined]
    response.begin()
    text = response.read().decode("utf-8")
    return Answer(response.status, text, response.headers.get("ETag", ""))
