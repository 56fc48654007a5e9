"""The first half of a restore: images come to the nodes, the old incarnation goes, trees come back.

Every function named `on_...` is the arrow of one event; the states and rows are in `restore`.
"""

from __future__ import annotations

from coordinator.core import failing
from coordinator.core.commands import Command, FenceWorkers, PutRestore
from coordinator.core.connections import of_the_job
from coordinator.core.errors import RestoreFailed, Where
from coordinator.core.events import (
    Cleared,
    Fetched,
    NodeAttached,
    NodeReported,
    OrderAnswered,
    RestoreAdmitted,
    RestoreStored,
    WorkerExited,
)
from coordinator.core.failures import failure_of
from coordinator.core.model import Failure, Phase, RestoreState, WorkerState
from coordinator.core.returning import Restore, moved

S = RestoreState


def on_admitted(r: Restore, event: RestoreAdmitted, now: float) -> list[Command]:
    """The record stands and no other restore can win: bring the images to the nodes."""
    r.close_round(Phase.ADMIT, now)
    r.ordered = r.admitted = True
    sent = r.open_round(Phase.FETCH, r.policy.fetch_s, now)
    brought = "what the workers were started with is" if r.cold else "images are"
    r.move(S.FETCHING, f"recorded as incarnation {r.incarnation}; {brought} brought to the nodes")
    return [*r.phase_orders(sent, now), r.announce(now)]


def on_fetched(r: Restore, event: Fetched, now: float) -> list[Command]:
    """A node has the images; when all have, what is left of the old incarnation goes."""
    more = answered(r, event, Phase.FETCH, now)
    if more is not None:
        return more
    r.open_round(Phase.CLEAR, r.policy.admit_s, now, whom="the store")
    ready = "every node could start its worker" if r.cold else "every image is in place"
    r.move(S.CLEARING, f"{ready}; that the old incarnation goes is recorded first")
    return [PutRestore(r.record()), r.announce(now)]


def on_clear_recorded(r: Restore, event: RestoreStored, now: float) -> list[Command]:
    """The record says that the old incarnation goes, so a new leader knows: now it may go."""
    if r.cleared:
        r.ignore("that it is cleared away is recorded already")
        return []
    sent = r.open_round(
        Phase.CLEAR, r.policy.clear_s, now, holds=True, hold_extra_s=r.policy.margin_s
    )
    r.cleared = True
    addresses = {move.old: move.new for move in r.plan.addresses}
    own = of_the_job(r.records.values())
    commands: list[Command] = [
        r.order(
            member,
            sent,
            now,
            record=r.records[member.worker],
            connections=tuple(moved(end, addresses) for end in own[member.worker]),
            **r.common(),
        )
        for member in sent.awaited.values()
    ]
    r.move(S.CLEARING, f"recorded; incarnation {r.old_incarnation} is cleared away")
    return [*commands, *_fence_strays(r), r.announce(now)]


def on_found(r: Restore, event: NodeAttached, now: float) -> list[Command]:
    """A node came (back) with workers of the job; those without a place there have to go."""
    node = event.facts.node
    for state in event.workers:
        member = r.members.get(state.worker)
        if state.job == r.job and state.state != "exited" and state.incarnation >= r.run_from:
            r.held.add((node, state.worker))
        if state.job == r.job and state.state != "exited" and (not member or member.node != node):
            r.strays[(node, state.worker)] = state
    r.ignore("the plan was settled when the restore began")
    return []


def _fence_strays(r: Restore) -> list[Command]:
    by_node: dict[str, list[WorkerState]] = {}
    for (node, _), state in r.strays.items():
        by_node.setdefault(node, []).append(state)
    reason = f"restore {r.id} puts incarnation {r.incarnation} of job {r.job} elsewhere"
    return [FenceWorkers(node, reason, tuple(states)) for node, states in by_node.items()]


def on_cleared(r: Restore, event: Cleared, now: float) -> list[Command]:
    """A node is clear of the old incarnation."""
    sent = r.accept(event, Phase.CLEAR)
    if sent is None:
        return []
    sent.take(event.worker)
    r.ends(event.node, event.worker)
    return toward_restore(r, now)


def on_stray_ended(r: Restore, event: WorkerExited, now: float) -> list[Command]:
    """An old worker on a node that gets nothing has ended."""
    if r.strays.pop((event.node, event.worker), None) is None:
        r.ignore("an old worker ended; it is being cleared away anyway")
        return []
    r.ends(event.node, event.worker)
    r.move(S.CLEARING, f"old worker {event.worker} on {event.node} is gone")
    return toward_restore(r, now)


def on_report(r: Restore, event: NodeReported, now: float) -> list[Command]:
    """What a node reports tells whether an old worker there is gone."""
    alive = {w.worker for w in event.workers if w.job == r.job and w.state != "exited"}
    gone = [key for key in r.strays if key[0] == event.node and key[1] not in alive]
    for key in gone:
        r.strays.pop(key)
        r.ends(*key)
    if not gone:
        return []
    r.move(S.CLEARING, f"nothing of the old incarnation is left on {event.node}")
    return toward_restore(r, now)


def toward_restore(r: Restore, now: float) -> list[Command]:
    """Restore when every node is clear and no old worker is left in reach.

    Not when all old workers went out of reach before one of them was gone: then the old run may
    take steps where nobody sees it, and there would be two.
    """
    sent = r.rounds[Phase.CLEAR]
    if not sent.complete or r.strays:
        return r.progress(sent, now)
    if not r.sure:
        return failing.fail(r, _unseen(r), now)
    r.close_round(Phase.CLEAR, now)
    extra = r.policy.gpu_restore_s + r.policy.gpu_unlock_s if r.gpu else 0.0
    extra += r.policy.admit_s + r.policy.margin_s  # the release is recorded before it is ordered
    restoring = r.open_round(Phase.RESTORE, r.policy.rebuild_s, now, holds=True, hold_extra_s=extra)
    what = "they make ready to start the workers" if r.cold else "the trees are restored, stopped"
    r.move(S.RESTORING, f"the nodes are clear; {what}")
    return [*r.phase_orders(restoring, now), r.announce(now)]


def _unseen(r: Restore) -> Failure:
    error = RestoreFailed(
        f"every worker of incarnation {r.old_incarnation} went out of reach before one of them was "
        "cleared away, so they may go on where nobody sees them",
        where=Where(job=r.job, phase=str(Phase.CLEAR)),
        advice="bring one of their nodes back, where they are ended, and restore again; or make "
        "sure that they are gone and say so with --old-run-ended",
    )
    return failure_of(error)


def answered(r: Restore, event: OrderAnswered, phase: Phase, now: float) -> list[Command] | None:
    """Take a bare answer; None when it completes the round, else what to do meanwhile."""
    sent = r.accept(event, phase)
    if sent is None:
        return []
    sent.take(event.worker)
    if not sent.complete:
        return r.progress(sent, now)
    r.close_round(phase, now)
    return None
