"""Serving the page in the coordinator's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.api.client import OperatorClient
from coordinator.core.errors import SetupError
from coordinator.link.security import NO_TLS, Tls
from coordinator.page.app import Page
from coordinator.page.feed import feeding
from coordinator.page.hooks import CERTIFICATE, Admission, Hooks
from coordinator.server.addresses import LISTEN_ADVICE, is_loopback, split

STOP_S = 2.0
BACKLOG = 64
NOBODY = Admission()


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Protocol(H11Protocol):
    """Tells the application whose certificate the other end has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at it once a connection."""
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object")
        certificate = shown.getpeercert(binary_form=True) if shown is not None else None
        app = self.app

        async def told(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, CERTIFICATE: certificate}, receive, send)

        self.app = told


@contextlib.asynccontextmanager
async def serving_page(
    address: str,
    coordinator: str,
    registry: CollectorRegistry,
    ready: Callable[[], str],
    *,
    tls: Tls = NO_TLS,
    admission: Admission = NOBODY,
) -> AsyncIterator[str]:
    """Serve page and metrics at host:port; the value is the URL, with the real port.

    `coordinator` is where this process answers operators. On addresses of other machines TLS is
    used where there is some, and then a certificate is asked for. `admission`: who may use hooks.
    Raises SetupError.
    """
    host, port = split(address)
    listening = _listen(host, int(port), address)
    secure = tls.certificate is not None and not is_loopback(address)
    async with OperatorClient([coordinator]) as client, feeding(client) as feed:
        app = Page(client, feed, registry, ready, Hooks(client, admission)).app((host,))
        server = _Server(_config(app, tls if secure else NO_TLS))
        task = asyncio.create_task(server.serve([listening]), name="page")
        try:
            yield f"http{'s' if secure else ''}://{host}:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await feed.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * STOP_S):
                    await task
            listening.close()


def _listen(host: str, port: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise SetupError(f"cannot listen on {address}: {error}", advice=LISTEN_ADVICE) from error
    return made


def _config(app: object, tls: Tls) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(STOP_S),
        server_header=False,
        http=_Protocol,
    )
    if tls.certificate is not None:
        config.ssl_certfile, config.ssl_keyfile = tls.certificate, tls.key
        if tls.ca is not None:
            config.ssl_ca_certs, config.ssl_cert_reqs = str(tls.ca), ssl.CERT_REQUIRED
    return config
