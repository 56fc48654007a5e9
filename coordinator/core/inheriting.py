"""After the cut: what a new leader goes on with, and nodes that come back in the middle.

What a node tells when it attaches is the truth: it is looked at, and only then decided on. An order
that is given again is carried out once; a shim repeats what came of it.
"""

from __future__ import annotations

from coordinator.core.action import FOREVER, Member, Round
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command
from coordinator.core.committing import settle_stop, stop_extra_s
from coordinator.core.drain_records import of_drain
from coordinator.core.events import NodeAttached
from coordinator.core.model import AttemptState, Phase
from coordinator.core.owed import lives

S = AttemptState


def persist(a: Attempt, now: float) -> list[Command]:
    """Go on storing the images of a cut that an earlier leader had recorded.

    A worker that has let go or lost its images meanwhile says so, and the attempt is undone.
    """
    a.open_round(Phase.PERSIST, a.policy.adopt_s, now, holds=a.stop, hold_extra_s=stop_extra_s(a))
    a.move(S.PERSISTING, "cut by the leader before; its nodes are asked for their images")
    return [a.announce(now)]


def stop(a: Attempt, now: float) -> list[Command]:
    """Go on stopping the job; the snapshot of the earlier leader is in the store."""
    a.open_round(Phase.STOP, a.policy.adopt_s, now, capped=False)
    a.move(S.STOPPING, "committed by the leader before; the workers are told to stop")
    return [a.announce(now)]


def on_back(a: Attempt, event: NodeAttached, now: float) -> list[Command]:
    """A node is in reach (again): after the cut, a worker that is still held there may run."""
    node = event.facts.node
    there = {s.worker: s for s in event.workers if s.job == a.job}
    commands: list[Command] = []
    for worker in a.workers_on(node):
        a.lost.pop(worker, None)
        state = there.get(worker)
        if not a.stop and state is not None and state.action == a.id:
            commands.append(_resume(a, a.members[worker], now))
        if a.adopted and a.state is S.PERSISTING:
            commands.append(_persist(a, a.members[worker], now))
    if not commands:
        a.ignore("who takes part was settled when the attempt began")
        return []
    a.move(a.state, f"{node} is in reach and told what comes after the cut")
    return commands


def _resume(a: Attempt, member: Member, now: float) -> Command:
    once = Round(Phase.RESUME, now, now + a.policy.resume_s, False, FOREVER, 0, {})
    return a.order(member, once, now, cut=a.cut, target=a.target)


def _persist(a: Attempt, member: Member, now: float) -> Command:
    """Ask one worker; once all are in reach, they have the whole time for it."""
    sent = a.rounds[Phase.PERSIST]
    if not a.lost:
        sent.deadline = min(now + a.policy.persist_s, max(now, a.started + a.deadline_s))
    whole = Round(Phase.PERSIST, now, now + a.policy.persist_s, False, FOREVER, 0, {})
    if a.stop:
        whole.held_until = whole.deadline + stop_extra_s(a) + a.policy.margin_s
    return a.order(member, whole, now, cut=a.cut, target=a.target, base=a.base)


def on_back_while_stopping(a: Attempt, event: NodeAttached, now: float) -> list[Command]:
    """A node that was away is in reach: whoever still lives there is told to stop."""
    alive = {s.worker for s in event.workers if s.job == a.job and lives(s, a.incarnation)}
    sent = a.rounds[Phase.STOP]
    commands: list[Command] = []
    for worker in a.workers_on(event.facts.node):
        a.lost.pop(worker, None)
        if worker in alive:
            member = sent.awaited[worker] = a.members[worker]
            a.stopped.discard(worker)
            reason, stay = f"stopped with snapshot {a.id}", of_drain(a.cause)
            commands.append(a.order(member, sent, now, reason=reason, stay=stay))
        else:
            a.stopped.add(worker)
            sent.awaited.pop(worker, None)
    a.move(S.STOPPING, f"{event.facts.node} is in reach; what lives there is told to stop")
    return [*commands, *settle_stop(a, now)]
