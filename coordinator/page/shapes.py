"""The shapes in which others say that a node goes, as far as they are known here.

* `{node, deadline_s, why}`, or `address` for `node`, and `time` (ISO 8601, when it goes) for
  `deadline_s`; `action` as a reason.
* A DrainRequest of NVSentinel's node-drainer (`nvsentinel.nvidia.com/v1alpha1`): `spec.nodeName`,
  `reason`, `recommendedAction`. It is an object in Kubernetes and nobody posts it by himself; see
  `coordinator/bridges/nvsentinel`.
* What Ray tells of preemptions (`PreemptionInfo` of Ray Train): `preempted_node_ids` and
  `deadline_ms`, in ms since 1970 with 0 for none; with `nodes`, as `ray.nodes()` gives them, since
  an id says nothing outside Ray: `NodeID`, `NodeManagerAddress`, `NodeManagerHostname`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coordinator.core.errors import BadRequest, NotFound
from coordinator.core.model import NodeFacts

NODES_MAX = 1_000
RAY_IDS = "preempted_node_ids"


@dataclass(frozen=True)
class Wanted:
    """What a notice asks for."""

    node: str  # or the name of its machine
    deadline_s: float
    why: str
    address: str = ""  # where it is reached, in the place of a name or beside it


def wanted_of(body: Any, unix_s: float) -> Wanted:
    """What a notice about one node asks for; raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("a notice is a JSON object")
    spec = body.get("spec") if body.get("kind") == "DrainRequest" else None
    fields = spec if isinstance(spec, dict) else body
    node, address = _text(fields, "node", "nodeName"), _text(fields, "address")
    if not node and not address:
        raise BadRequest("a notice names a node", advice='send at least {"node": NAME}')
    deadline = _number(fields, "deadline_s")
    if "deadline_s" in fields and deadline <= 0:
        raise BadRequest("deadline_s is above 0", advice="leave it out where there is none")
    if "time" in fields and "deadline_s" not in fields:
        deadline = _seconds_until(_text(fields, "time"), unix_s)
    why = _text(fields, "why", "reason", "recommendedAction", "action")
    why = why or ("DrainRequest" if spec else "a notice by HTTP")
    return Wanted(node, deadline, why, address)


def all_wanted(body: Any, unix_s: float) -> tuple[Wanted, ...]:
    """What a notice asks for, in any of the shapes; raises BadRequest."""
    if isinstance(body, dict) and RAY_IDS in body:
        return _of_ray(body, unix_s)
    return (wanted_of(body, unix_s),)


def node_of(wanted: Wanted, nodes: Iterable[NodeFacts]) -> str:
    """The node that is meant: by its name, else by its address; raises NotFound."""
    known = tuple(nodes)
    names = [facts.node for facts in known if wanted.node and facts.node == wanted.node]
    at = [facts.node for facts in known if wanted.address and facts.address == wanted.address]
    found = names or at
    if not found and not wanted.address:
        return wanted.node  # whoever is asked says that it is not known
    if not found:
        raise NotFound(
            f"no node {wanted.node or ''} at {wanted.address} is known".replace("  ", " "),
            advice="`allstop nodes` lists them, `allstop shim --address` says where one is",
        )
    return found[0]


def _of_ray(body: dict[str, Any], unix_s: float) -> tuple[Wanted, ...]:
    ids, told = body[RAY_IDS], body.get("nodes", [])
    if not isinstance(ids, list) or not isinstance(told, list):
        raise BadRequest(f"{RAY_IDS} and nodes are lists")
    if not 0 < len(ids) <= NODES_MAX or len(told) > 100 * NODES_MAX:
        raise BadRequest(f"a notice of Ray is about 1 to {NODES_MAX} nodes")
    known = {str(each.get("NodeID")): each for each in told if isinstance(each, dict)}
    at_ms = _number(body, "deadline_ms")
    left_s = at_ms / 1000 - unix_s if at_ms else 0.0
    if at_ms and left_s <= 0:
        raise BadRequest(f"the deadline {at_ms:.0f} ms is over")
    return tuple(_ray_node(each, known, left_s) for each in ids)


def _ray_node(name: Any, known: dict[str, dict[str, Any]], left_s: float) -> Wanted:
    fields = known.get(name) if isinstance(name, str) else None
    if fields is None:
        raise BadRequest(
            f"node {name!r} of Ray is not among nodes",
            advice="send what ray.nodes() gives as `nodes`, as deploy/ray/drains.py does",
        )
    host, address = _text(fields, "NodeManagerHostname"), _text(fields, "NodeManagerAddress")
    if not host and not address:
        raise BadRequest(f"node {name!r} of Ray has neither name nor address")
    return Wanted(host, left_s, "Ray drains its node", address)


def _text(fields: dict[str, Any], *names: str) -> str:
    for name in names:
        found = fields.get(name)
        if isinstance(found, str) and found:
            return found
        if found is not None and not isinstance(found, str):
            raise BadRequest(f"{name} is text")
    return ""


def _number(fields: dict[str, Any], name: str) -> float:
    found = fields.get(name, 0.0)
    if not isinstance(found, int | float) or isinstance(found, bool) or found != found:
        raise BadRequest(f"{name} is a number")
    try:
        return float(found)
    except OverflowError:
        raise BadRequest(f"{name} is a number") from None


def _seconds_until(text: str, unix_s: float) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"time {text!r} is not ISO 8601") from None
    if when.tzinfo is None:
        raise BadRequest(f"time {text!r} has no time zone")
    left = when.timestamp() - unix_s
    if left <= 0:
        raise BadRequest(f"time {text!r} is over")
    return left
