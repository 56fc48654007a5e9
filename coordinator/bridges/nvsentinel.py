"""A drain plugin of NVSentinel: its DrainRequests become drains of nodes of ours.

NVSentinel posts to nobody. With `customDrain` its node-drainer makes one object of
`nvsentinel.nvidia.com/v1alpha1` `DrainRequest` for each health event, in its own namespace, and
waits for the condition `DrainComplete=True` in its status; then it deletes the object ("Writing a
Drain Plugin" and ADR-015 in its repository). `spec.nodeName` is the node of Kubernetes,
`spec.podsToDrain` maps namespaces to pods that have to go. So, at each look, for each request that
is not complete:

    shims at the addresses of the node's pods, or of its name, are drained    DrainComplete=False
    once they are empty, the pods of `podsToDrain` are evicted                DrainComplete=False
    once these are gone                                                       DrainComplete=True

Every step asks how things are and can be done again; nothing is kept between two looks but when to
try again what was refused. Two requests for one node join one drain. Budgets of disruption hold, by
eviction. When NVSentinel takes its request back, the node stays drained until `allstop undrain`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import structlog

from coordinator.api.client import OperatorClient
from coordinator.bridges.kubernetes import MERGE, Kubernetes, refused
from coordinator.core.drain_records import DrainState
from coordinator.core.errors import AllstopError, NotReady, Refused
from coordinator.core.view import NodeView

log = structlog.get_logger(__name__)

GROUP = "/apis/nvsentinel.nvidia.com/v1alpha1"
COMPLETE = "DrainComplete"
AGAIN_S = 60.0  # after a drain that was refused, or failed
GONE = 404
BUDGET = 429  # an eviction that would be one too many now
NAME_CHARS_MAX = 253
MESSAGE_CHARS_MAX = 4_000
AWAY = frozenset({"lost", "left"})


@dataclass(frozen=True)
class Stand:
    """How far one request is, for its condition."""

    complete: bool
    reason: str  # one word, as Kubernetes wants it
    message: str


@dataclass
class NvSentinel:
    """Looks at the requests of one namespace."""

    api: Kubernetes
    client: OperatorClient
    namespace: str = "nvsentinel"
    deadline_s: float = 0.0  # for the checkpoints of a drain to be whole; 0: none
    again_s: float = AGAIN_S
    _not_before: dict[str, tuple[float, Stand]] = field(default_factory=dict)  # by node of ours

    async def run(self, every_s: float) -> None:
        """Look until cancelled; what cannot be had is told of and tried again."""
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except AllstopError as error:
                if str(error) != trouble:
                    log.warning("cannot look at drain requests", why=str(error))
                trouble = str(error)
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Take every request a step further; raises LinkError and what coordinators raise.

        What goes wrong with one is told in its condition, where it can be, and stops no other.
        """
        path = f"{GROUP}/namespaces/{quote(self.namespace, safe='')}/drainrequests"
        trouble: AllstopError | None = None
        for item in await self._items(path):
            name = _name(item.get("metadata"))
            if not name or _condition(item).get("status") == "True":
                continue
            try:
                stand = await self._stand(item.get("spec"))
                await self._tell(f"{path}/{quote(name, safe='')}/status", item, stand)
            except AllstopError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    # -- one request -----------------------------------------------------------------------------

    async def _stand(self, spec: Any) -> Stand:
        """Take it a step further, and say how far it is."""
        node = spec.get("nodeName") if isinstance(spec, dict) else None
        if not isinstance(node, str) or not 0 < len(node) <= NAME_CHARS_MAX:
            return Stand(False, "BadRequest", "spec.nodeName names no node")
        pods = await self._items(f"/api/v1/pods?fieldSelector=spec.nodeName={quote(node, safe='')}")
        try:
            ours = _ours(node, pods, await self.client.nodes(settled=True))
        except NotReady as error:
            return Stand(False, type(error).__name__, error.what)
        why = " ".join(str(spec.get(key) or "") for key in ("recommendedAction", "reason")).strip()
        told = f"NVSentinel: {why or 'DrainRequest'}"[:1_000]
        stands = [await self._drain(view, told) for view in ours]
        for stand in stands:
            if stand is not None:
                return stand
        return await self._evict(node, spec.get("podsToDrain"), pods)

    async def _drain(self, view: NodeView, why: str) -> Stand | None:
        """A node of ours; None: nothing of ours runs there any more."""
        name = view.facts.node
        state = view.drain.state if view.drain is not None else DrainState.UNDRAINED
        if state is DrainState.DRAINED or view.state in AWAY:
            self._not_before.pop(name, None)
            return None
        if state in (DrainState.DRAINING, DrainState.UNDRAINING):
            return Stand(False, "Draining", f"{name}: {view.drain.reason if view.drain else ''}")
        again_at, before = self._not_before.get(name, (0.0, None))
        if before is not None and time.monotonic() < again_at:
            return before
        if state is DrainState.FAILED and before is None and view.drain is not None:
            return self._later(name, "Failed", view.drain.reason)
        try:
            record = await self.client.drain(name, deadline_s=self.deadline_s, why=why, notice=True)
        except Refused as error:
            return self._later(name, type(error).__name__, str(error))
        self._not_before.pop(name, None)
        log.info("drain begun", node=name, why=why)
        return Stand(False, "Draining", f"{name}: {record.reason}")

    def _later(self, node: str, reason: str, why: str) -> Stand:
        stand = Stand(False, reason, f"{node}: {why}")
        self._not_before[node] = (time.monotonic() + self.again_s, stand)
        log.warning("node not drained", node=node, why=why)
        return stand

    async def _evict(self, node: str, wanted: Any, pods: Sequence[Mapping[str, Any]]) -> Stand:
        """The pods that NVSentinel named and that are still there have to go."""
        named = _named(wanted)
        left = [key for pod in pods if (key := _key(pod)) in named and not _ended(pod)]
        for namespace, name in left:
            path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
            }
            status, answer = await self.api.ask("POST", f"{path}/eviction", body)
            if status not in (200, 201, GONE, BUDGET):
                raise refused(status, answer, f"eviction of {namespace}/{name}")
        if left:
            told = ", ".join(f"{namespace}/{name}" for namespace, name in left[:20])
            return Stand(False, "Evicting", f"no job of allstop is on {node}; pods to go: {told}")
        return Stand(True, "Drained", f"no job of allstop is on {node}, nor a pod that was named")

    # -- Kubernetes ------------------------------------------------------------------------------

    async def _items(self, path: str) -> list[Mapping[str, Any]]:
        status, answer = await self.api.ask("GET", path)
        items = answer.get("items")
        if status != 200 or not isinstance(items, list):
            raise refused(status, answer, f"GET {path}")
        return [item for item in items if isinstance(item, dict)]

    async def _tell(self, path: str, item: Mapping[str, Any], stand: Stand) -> None:
        """Write the condition, unless it stands there already; another writer's change wins."""
        before, status = _condition(item), "True" if stand.complete else "False"
        message = stand.message[:MESSAGE_CHARS_MAX]
        same = (before.get("status"), before.get("reason"), before.get("message"))
        if same == (status, stand.reason, message):
            return
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        condition = {
            "type": COMPLETE,
            "status": status,
            "reason": stand.reason,
            "message": message,
            "lastTransitionTime": since or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        others = [each for each in _conditions(item) if each.get("type") != COMPLETE]
        version = item["metadata"].get("resourceVersion")
        body = {
            "metadata": {"resourceVersion": version},
            "status": {"conditions": [*others, condition]},
        }
        code, answer = await self.api.ask("PATCH", path, body, kind=MERGE)
        if code not in (200, GONE, 409):  # deleted, or changed since: seen at the next look
            raise refused(code, answer, f"PATCH {path}")


def _ours(
    node: str, pods: Sequence[Mapping[str, Any]], views: Sequence[NodeView]
) -> list[NodeView]:
    """Nodes of ours that are on a node of Kubernetes: by the addresses of its pods, or its name."""
    addresses: set[str] = set()
    for pod in pods:
        status = pod.get("status")
        if isinstance(status, dict) and not _ended(pod):
            told = [status.get("podIP"), status.get("hostIP")]
            addresses |= {each for each in told if isinstance(each, str) and each}
    return [v for v in views if v.facts.node == node or v.facts.address in addresses]


def _named(wanted: Any) -> set[tuple[str, str]]:
    """`podsToDrain` as namespace and name."""
    if not isinstance(wanted, dict):
        return set()
    lists = ((namespace, names) for namespace, names in wanted.items() if isinstance(names, list))
    return {(namespace, str(name)) for namespace, names in lists for name in names}


def _key(pod: Mapping[str, Any]) -> tuple[str, str]:
    metadata = pod.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    return str(fields.get("namespace", "")), str(fields.get("name", ""))


def _ended(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")


def _name(metadata: Any) -> str:
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _conditions(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = item.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _condition(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((each for each in _conditions(item) if each.get("type") == COMPLETE), {})
