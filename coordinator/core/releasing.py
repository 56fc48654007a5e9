"""The second half of a restore: every tree is back, that is recorded, and the job is let go.

While that is being recorded every worker's network is opened (OPEN): a rank that goes on before its
peer's network is open sends into nothing, and a restored connection has no measured round trip, so
that TCP tries again only after one second, and after three more.

The record comes before the order: a new leader that finds RELEASING knows that every tree was back
and that some may run, goes on with the release, and gives the restore up only where it sees that
one of them is gone. Whatever it finds in an earlier state cannot run yet, and is cleared away.
"""

from __future__ import annotations

from coordinator.core import failing
from coordinator.core.clearing import answered
from coordinator.core.commands import Command, PutRestore
from coordinator.core.errors import RestoreFailed, Where
from coordinator.core.events import (
    GpuRestored,
    GpuUnlocked,
    NodeAttached,
    Opened,
    Released,
    Restored,
    RestoreStored,
)
from coordinator.core.failures import failure_of, listed
from coordinator.core.model import Cut, Failure, Phase, RestoreState, WorkerState
from coordinator.core.returning import Restore

S = RestoreState


def on_restored(r: Restore, event: Restored, now: float) -> list[Command]:
    """A tree is back, stopped; when all are, devices come next, or the release."""
    sent = r.accept(event, Phase.RESTORE)
    if sent is None:
        return []
    r.root_pids[event.worker] = event.root_pid
    r.tell_files(event.files, event.files_unnamed)
    sent.take(event.worker)
    if not sent.complete:
        return r.progress(sent, now)
    r.close_round(Phase.RESTORE, now)
    if not r.gpu:
        back = "every node is ready to start" if r.cold else "every tree is back"
        return _record_release(r, now, back)
    nxt = r.open_round(
        Phase.GPU_RESTORE,
        r.policy.gpu_restore_s,
        now,
        holds=True,
        hold_extra_s=r.policy.gpu_unlock_s + r.policy.admit_s,
    )
    r.move(S.GPU_RESTORING, "every tree is back; device memory is restored")
    return [*r.phase_orders(nxt, now), r.announce(now)]


def on_gpu_restored(r: Restore, event: GpuRestored, now: float) -> list[Command]:
    """Device memory is back on a node."""
    more = answered(r, event, Phase.GPU_RESTORE, now)
    if more is not None:
        return more
    sent = r.open_round(
        Phase.GPU_UNLOCK, r.policy.gpu_unlock_s, now, holds=True, hold_extra_s=r.policy.admit_s
    )
    r.move(S.GPU_UNLOCKING, "device memory is back everywhere; devices are unlocked")
    return [*r.phase_orders(sent, now), r.announce(now)]


def on_gpu_unlocked(r: Restore, event: GpuUnlocked, now: float) -> list[Command]:
    """The CUDA processes of a node may run."""
    more = answered(r, event, Phase.GPU_UNLOCK, now)
    return _record_release(r, now, "every device is unlocked") if more is None else more


def _record_release(r: Restore, now: float, why: str) -> list[Command]:
    """ALL_BACK: no rank is released before the record says so, or before all networks are open."""
    r.open_round(Phase.RELEASE, r.policy.admit_s, now, whom="the store")
    told = "that the job is released is recorded first"
    if r.cold:
        r.move(S.RELEASING, f"{why}; {told}")
        return [PutRestore(r.record()), r.announce(now)]
    extra_s = r.policy.admit_s
    sent = r.open_round(Phase.OPEN, r.policy.release_s, now, holds=True, hold_extra_s=extra_s)
    r.move(S.RELEASING, f"{why}; their networks are opened, and {told}")
    return [PutRestore(r.record()), *r.phase_orders(sent, now), r.announce(now)]


def on_opened(r: Restore, event: Opened, now: float) -> list[Command]:
    """The network of a worker is open; when all are, and that is recorded, the ranks may run."""
    more = answered(r, event, Phase.OPEN, now)
    if more is not None:
        return more
    return _release(r, now) if r.recorded else [r.announce(now)]


def on_release_recorded(r: Restore, event: RestoreStored, now: float) -> list[Command]:
    """A new leader would know that the trees may run."""
    if r.recorded or r.released or event.state != S.RELEASING:
        r.ignore("that the job is released is recorded already")
        return []
    r.recorded = True
    r.close_round(Phase.RELEASE, now)
    return [r.announce(now)] if Phase.OPEN in r.rounds else _release(r, now)


def _release(r: Restore, now: float) -> list[Command]:
    """Now the trees may run, unless a hold of theirs could be over."""
    if now >= r.held_until:
        return failing.fail(r, _hold_ran_out(r), now)
    r.released = True
    sent = r.open_round(Phase.RELEASE, r.policy.release_s, now)
    r.move(S.RELEASING, "recorded; every worker is released")
    return [*r.phase_orders(sent, now), r.announce(now)]


def _hold_ran_out(r: Restore) -> Failure:
    error = RestoreFailed(
        "every tree was back only when a hold of one of them could have run out",
        where=Where(job=r.job, phase=str(Phase.RELEASE)),
        advice="the coordinator or the store was too slow; restore again",
    )
    return failure_of(error)


def on_released(r: Restore, event: Released, now: float) -> list[Command]:
    """A worker runs; when all do, the restore is over."""
    more = answered(r, event, Phase.RELEASE, now)
    return _runs(r, now) if more is None else more


def _runs(r: Restore, now: float) -> list[Command]:
    step = f" at step {r.snapshot.step}" if r.snapshot and r.snapshot.cut is Cut.STEP else ""
    r.failure = None
    told = f"snapshot {r.snapshot_id} runs again{step}"
    if r.cold:
        told = f"started from scratch, not from snapshot {r.snapshot_id}, because {r.cold_why}"
    for note in _files_told(r):
        r.note(note)
    r.move(S.RUNNING, r.with_notes(told))
    record = r.record()
    return [PutRestore(record), r.announce(now, last=True, restore=record)]


def _files_told(r: Restore) -> list[str]:
    """What everybody should know of files; each of them is in the record."""
    aside = sum(1 for file in r.files if file.what in ("cut", "replaced"))
    told = []
    if aside:
        more = " or more" if r.files_unnamed else ""
        told.append(
            f"{aside}{more} files were rolled back, and what came after is kept beside them"
        )
    if holes := [file for file in r.files if file.what == "hole"]:
        names = listed([f"{file.path} on {file.node}" for file in holes])
        told.append(f"made anew with a hole for what was not kept: {names}")
    return told


# -- of an earlier leader --------------------------------------------------------------------------


def inherit(r: Restore, now: float) -> list[Command]:
    """Go on with a release that an earlier leader had recorded, as the nodes attach."""
    r.open_round(Phase.RELEASE, r.policy.adopt_s, now, capped=False)
    r.move(S.RELEASING, "found while it was being released; the nodes tell how far that came")
    return [r.announce(now)]


def on_found(r: Restore, event: NodeAttached, now: float) -> list[Command]:
    """A node is in reach: what its workers are is seen, and then decided."""
    if not r.adopted:
        r.ignore("the plan was settled when the restore began")
        return []
    node, sent = event.facts.node, r.rounds[Phase.RELEASE]
    there = {s.worker: s for s in event.workers if s.job == r.job}
    commands: list[Command] = []
    for worker in r.workers_on(node):
        r.lost.pop(worker, None)
    for worker in r.workers_on(node):
        member = r.members[worker]
        state = there.get(worker)
        if not _is_restored(r, state):
            return failing.fail(r, _gone(r, worker, node), now)
        if state is not None and state.action:
            commands.append(r.order(member, sent, now, incarnation=r.incarnation))
            r.move(S.RELEASING, f"{member} is still stopped and released")
        elif worker in sent.awaited:
            sent.take(worker)
            r.move(S.RELEASING, f"{member} runs already")
    if sent.complete:
        r.close_round(Phase.RELEASE, now)
        return _runs(r, now)
    return commands


def _is_restored(r: Restore, state: WorkerState | None) -> bool:
    """Whether a worker is what this restore brought back, held by it or running."""
    if state is None or state.incarnation != r.incarnation:
        return False
    return state.action == r.id or (state.state == "running" and not state.action)


def _gone(r: Restore, worker: int, node: str) -> Failure:
    return Failure(
        kind=RestoreFailed.__name__,
        what=f"restored worker {worker} is not there any more on {node}; the leader before had "
        "recorded that it was back",
        job=r.job,
        worker=worker,
        node=node,
        phase=str(Phase.RELEASE),
        advice="restore again",
    )
