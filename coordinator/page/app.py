"""The page's routes: files that never change, what is known as JSON, and a stream of changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError, NotFound
from coordinator.page.feed import Feed
from coordinator.page.hooks import Hooks
from coordinator.telemetry.picture import page_of
from coordinator.telemetry.spans import Trace, straggles, trace_of

# Nothing is fetched from anywhere else, and nobody may put this page into theirs.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATIC = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    **{
        f"{name}.js": "text/javascript; charset=utf-8"
        for name in ("page", "dom", "jobs", "job", "timeline")
    },
}
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")

Handler = Callable[[Request], Awaitable[Response]]


class Page:
    """Answers browsers and Prometheus; only reads, but for hooks."""

    def __init__(
        self,
        client: OperatorClient,
        feed: Feed,
        registry: CollectorRegistry,
        ready: Callable[[], str],
        hooks: Hooks | None = None,
    ) -> None:
        """`ready` says why nobody leads; empty: somebody does. Without `hooks` nothing acts."""
        self._client = client
        self._feed = feed
        self._registry = registry
        self._ready = ready
        self._hooks = hooks

    def app(self, hosts: tuple[str, ...] = ()) -> Starlette:
        """The application; requests for other names than `hosts` and this machine's are refused.

        A page of somebody else's that got a name to point here must not read what is ours.
        """
        routes = [
            Route("/", self._static("index.html")),
            *(Route(f"/{name}", self._static(name)) for name in STATIC if name != "index.html"),
            Route("/api/events", self._events),
            Route("/api/snapshots/{job}", _answering(self._snapshots)),
            Route("/api/show/{id}", _answering(self._show)),
            Route("/api/plan/{job}", _answering(self._plan)),
            Route("/trace/{id}", _answering(self._trace)),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            *(self._hooks.routes() if self._hooks is not None else ()),
        ]
        allowed = [*LOCAL_NAMES, *hosts]
        return Starlette(
            routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed)]
        )

    def _static(self, name: str) -> Handler:
        content = files("coordinator.page").joinpath("static", name).read_bytes()

        async def answer(_: Request) -> Response:
            return Response(content, media_type=STATIC[name], headers=HEADERS)

        return answer

    async def _events(self, _: Request) -> Response:
        async def lines() -> AsyncIterator[str]:
            try:
                async for state in self._feed.states():
                    yield ": alive\n\n" if state is None else f"data: {json.dumps(state)}\n\n"
            except AllstopError as error:
                yield f"event: refused\ndata: {json.dumps(str(error))}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream", headers=HEADERS)

    async def _snapshots(self, request: Request) -> Response:
        found = await self._client.snapshots(request.path_params["job"])
        return JSONResponse(asdict(found), headers=HEADERS)

    async def _show(self, request: Request) -> Response:
        shown = await self._client.show(request.path_params["id"])
        told = {name: value and asdict(value) for name, value in vars(shown).items()}
        told.pop("timeline")
        record = shown.attempt or shown.restore
        if record is not None:
            told["trace"] = trace_told(trace_of(record, shown.timeline))
        return JSONResponse(told, headers=HEADERS)

    async def _plan(self, request: Request) -> Response:
        wanted = request.query_params.get("snapshot", "")
        planned = await self._client.plan(request.path_params["job"], wanted, explain=True)
        return JSONResponse(asdict(planned), headers=HEADERS)

    async def _trace(self, request: Request) -> Response:
        shown = await self._client.show(request.path_params["id"])
        record = shown.attempt or shown.restore
        if record is None:
            raise NotFound("that is no checkpoint and no restore")
        page = page_of(trace_of(record, shown.timeline))
        return Response(page, media_type="text/html; charset=utf-8", headers=HEADERS)

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _healthz(self, _: Request) -> Response:
        return Response("alive\n", media_type="text/plain")

    async def _readyz(self, _: Request) -> Response:
        why = self._ready()
        return Response(f"{why or 'ready'}\n", 503 if why else 200, media_type="text/plain")


def trace_told(trace: Trace) -> dict[str, Any]:
    """A trace for the page: ids as text, since a browser's numbers are too small for them."""
    late = set()
    for phase in trace.children(trace.root):
        workers = trace.children(phase)
        late |= {each.identity for each in workers if straggles(each, workers)}
    return {
        "action": trace.action,
        "took_ms": trace.root.took_ms,
        "moments": [{"name": each.name, "at_ms": each.at_ms} for each in trace.root.moments],
        "spans": [
            {
                "id": f"{each.identity:016x}",
                "parent": f"{each.parent:016x}",
                "name": each.name,
                "node": each.attributes.get("allstop.node", ""),
                "began_ms": each.began_ms,
                "took_ms": each.took_ms,
                "failed": each.failed,
                "late": each.identity in late,
            }
            for each in trace.spans[1:]
        ],
    }


def _answering(handler: Handler) -> Handler:
    """What the coordinator refuses becomes an answer with its words."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except AllstopError as error:
            status = 404 if isinstance(error, NotFound) else 503
            return JSONResponse({"error": error.to_fields()}, status, headers=HEADERS)

    return answer
