"""Nodes of a restore that go out of reach."""

from __future__ import annotations

from coordinator.core import failing, trouble
from coordinator.core.clearing import toward_restore
from coordinator.core.commands import Command
from coordinator.core.events import NodeLeft, NodeLost
from coordinator.core.failures import listed
from coordinator.core.model import Phase, RestoreState
from coordinator.core.returning import Restore

S = RestoreState


def on_lost(r: Restore, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """A node of the plan is gone; a node that only had old workers is one thing less to clear."""
    for key in [k for k in r.strays if k[0] == event.node]:
        r.strays.pop(key)
        if isinstance(event, NodeLeft):
            r.ends(*key)
        r.note(f"old worker {key[1]} on {event.node} is out of reach, and {failing.on_return(r)}")
    workers = r.lose(event)
    if not workers:
        return _after_stray(r, now)
    failure = trouble.of_node(
        r,
        event,
        f", where {listed([f'worker {w}' for w in workers])} was to run",
        "restore again: the next plan uses other nodes",
    )
    return failing.fail(r, failure, now)


def on_lost_while_releasing(r: Restore, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """As any loss; an heir goes on waiting for the node, where the worker may run already."""
    if not r.adopted:
        return on_lost(r, event, now)
    for worker in r.lose(event):
        r.rounds[Phase.RELEASE].awaited[worker] = r.members[worker]
    r.move(S.RELEASING, f"{event.node} {trouble.verb(event)} again before the job was released")
    return []


def _after_stray(r: Restore, now: float) -> list[Command]:
    return toward_restore(r, now) if r.state is S.CLEARING else []
