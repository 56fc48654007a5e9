"""As much of Kubernetes' API as a bridge asks: DrainRequests with a status, pods, evictions."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

GROUP = "/apis/nvsentinel.nvidia.com/v1alpha1/namespaces/nvsentinel/drainrequests"
PODS = "/api/v1/pods"


class Api:
    """The objects, and what was asked; a write raises the version of what it writes."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.budget = 0  # evictions that are refused yet
        self.conflicts = 0  # writes that come too late
        self.status = 0  # answered to everything; 0: as it should be

    def drain_request(self, name: str, node: Any, **spec: Any) -> None:
        """As node-drainer makes one from its template."""
        self.requests[name] = {
            "apiVersion": "nvsentinel.nvidia.com/v1alpha1",
            "kind": "DrainRequest",
            "metadata": {"name": name, "namespace": "nvsentinel", "resourceVersion": "1"},
            "spec": {"nodeName": node, **spec},
        }

    def pod(self, name: str, node: str, address: str, namespace: str = "training") -> None:
        """One that runs."""
        self.pods[namespace, name] = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": address, "hostIP": "192.168.0.1"},
        }

    def condition(self, name: str, kind: str = "DrainComplete") -> dict[str, Any]:
        """One of a request's."""
        found = self.requests[name].get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def writes(self) -> int:
        """How many were asked for."""
        return sum(not each.startswith("GET") for each in self.asked)

    def answer(self, method: str, path: str, body: Any, kind: str) -> tuple[int, Any]:
        """What the API answers."""
        self.asked.append(f"{method} {path}")
        parts = urlsplit(path)
        if self.status:
            return self.status, {"kind": "Status", "message": "a test"}
        if method == "GET" and parts.path == GROUP:
            return 200, {"kind": "DrainRequestList", "items": list(self.requests.values())}
        if method == "GET" and parts.path == PODS:
            field, _, node = parse_qs(parts.query)["fieldSelector"][0].partition("=")
            assert field == "spec.nodeName"
            found = [pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node]
            return 200, {"kind": "PodList", "items": found}
        if method == "POST" and parts.path.endswith("/eviction"):
            return self._evict(parts.path, body)
        if method == "PATCH" and parts.path.startswith(GROUP):
            assert kind == "application/merge-patch+json"
            return self._patch(parts.path.removeprefix(GROUP).split("/"), body)
        return 404, {"kind": "Status", "message": f"no {parts.path}"}

    def _evict(self, path: str, body: Any) -> tuple[int, Any]:
        namespace, _, name = path.removeprefix("/api/v1/namespaces/").split("/")[:3]
        assert body["kind"] == "Eviction"
        assert body["metadata"] == {"name": name, "namespace": namespace}
        if self.budget:
            self.budget -= 1
            return 429, {"message": "Cannot evict pod as it would violate the disruption budget."}
        gone = self.pods.pop((namespace, name), None)
        return (201, {"kind": "Status"}) if gone else (404, {"kind": "Status"})

    def _patch(self, parts: list[str], body: Any) -> tuple[int, Any]:
        assert parts[2:] == ["status"]
        found = self.requests.get(parts[1])
        if found is None:
            return 404, {"message": "not found"}
        if self.conflicts or body["metadata"]["resourceVersion"] != _version(found):
            self.conflicts = max(0, self.conflicts - 1)
            return 409, {"message": "the object has been modified"}
        found["status"] = {**found.get("status", {}), **body["status"]}
        found["metadata"]["resourceVersion"] = str(int(_version(found)) + 1)
        return 200, found


def _version(item: dict[str, Any]) -> str:
    return str(item["metadata"]["resourceVersion"])


class _Handler(BaseHTTPRequestHandler):
    api: Api

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        kind = self.headers.get("Content-Type", "")
        status, answer = self.api.answer(self.command, self.path, body, kind)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = _any  # noqa: N815


@contextlib.contextmanager
def serving_api(api: Api) -> Iterator[str]:
    """Serve it; the value is its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
