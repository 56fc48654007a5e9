"""One restore as data, and the first half of its arrows: everything up to the restored trees.

Every function named `on_...` is the arrow of one event; the states and rows are in `restore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from coordinator.core.action import Action, Member, Round
from coordinator.core.commands import AdmitRestore, Announce, Command, FenceWorkers, PutRestore
from coordinator.core.connections import of_the_job
from coordinator.core.errors import AllstopError, BugError, RestoreFailed
from coordinator.core.events import (
    Cleared,
    Fetched,
    GpuRestored,
    GpuUnlocked,
    NodeAttached,
    NodeReported,
    OrderAnswered,
    Released,
    RestoreAdmitted,
    Restored,
    RestoreStored,
    WorkerExited,
)
from coordinator.core.model import (
    Cut,
    Endpoint,
    Phase,
    Plan,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
    WorkerState,
)
from coordinator.core.policy import Policy

S = RestoreState


@dataclass
class Restore(Action[RestoreState]):
    """One restore on its way; its plan is settled when it begins."""

    FAILED_AS: ClassVar[type[AllstopError]] = RestoreFailed
    ENDS: ClassVar[frozenset[StrEnum]] = frozenset({S.RUNNING, S.FAILED})

    snapshot: Snapshot | None = None  # None: adopted from an earlier leader, which only undoes
    plan: Plan = field(default_factory=lambda: Plan("", "", (), ()))
    snapshot_id: str = ""
    old_incarnation: int = 0
    gpu: bool = False  # some rank has state on a device: GPU_RESTORE and GPU_UNLOCK are part of it
    strays: dict[tuple[str, int], WorkerState] = field(default_factory=dict)  # to be fenced
    records: dict[int, WorkerRecord] = field(default_factory=dict)
    root_pids: dict[int, int] = field(default_factory=dict)
    ordered: bool = False
    cleared: bool = False  # CLEAR was ordered: the old incarnation is gone, or partly
    admitted: bool = False  # the incarnation is raised in the store
    found: set[int] = field(default_factory=set)  # of an adopted one: members that run restored

    def record(self) -> RestoreRecord:
        """The restore as etcd keeps it."""
        return RestoreRecord(
            restore=self.id,
            job=self.job,
            snapshot=self.snapshot_id,
            state=self.state,
            epoch=self.epoch,
            incarnation=self.incarnation,
            plan=self.plan,
            deadline_s=self.deadline_s,
            requested_unix_s=self.unix_s,
            reason=self.reason,
            failure=self.failure,
            timings=tuple(self.timings),
        )

    def begin(self, now: float) -> list[Command]:
        """Have the restore recorded and the incarnation raised; nothing is touched before that."""
        self.open_round(Phase.ADMIT, self.policy.admit_s, now, whom="the store")
        moved = sum(p.from_node != p.to_node for p in self.plan.placements)
        self.move(S.ADMITTING, f"planned: {len(self.members)} workers, {moved} on another node")
        return [AdmitRestore(self.record(), self.old_incarnation), self.announce(now)]

    def announce(self, now: float, *, last: bool = False, **result: Any) -> Announce:
        """As any action; old workers that are still to end are awaited too."""
        made = super().announce(now, last=last, **result)
        if self.state is not S.CLEARING or not self.strays:
            return made
        since = self.rounds[Phase.CLEAR].sent_at if Phase.CLEAR in self.rounds else now
        strays = tuple((worker, node, (), now - since) for node, worker in self.strays)
        return replace(made, awaited=made.awaited + strays)

    def concerns(self, node: str) -> bool:
        """Nodes that only have old workers count too."""
        return super().concerns(node) or any(at == node for at, _ in self.strays)

    def cares_about_exit(self, event: WorkerExited) -> bool:
        """Old workers that are to end count too."""
        return (event.node, event.worker) in self.strays or super().cares_about_exit(event)

    def awaits_reports_of(self, node: str) -> bool:
        """Whether a report of a node may complete something: old workers there are to end."""
        return self.state is S.CLEARING and any(at == node for at, _ in self.strays)

    def restored_workers(self) -> list[WorkerState]:
        """The workers as they are once released; their shims' next reports say the rest."""
        if self.snapshot is None:
            return []
        return [
            WorkerState(
                job=self.job,
                worker=record.worker,
                workers=len(self.snapshot.workers),
                state="running",
                incarnation=self.incarnation,
                root_pid=self.root_pids.get(record.worker, 0),
                world_size=self.snapshot.world_size,
                ranks=tuple(replace(rank, parked=False) for rank in record.ranks),
                command=record.command,
            )
            for record in self.snapshot.workers
        ]

    def validate(self) -> None:
        """Raise BugError when the restore breaks a rule of its own."""
        if self.ended and self.rounds:
            raise BugError(f"{self.id} is {self.state} and still awaits {list(self.rounds)}")
        if not self.ended and not self.rounds:
            raise BugError(f"{self.id} is {self.state} and awaits nobody: it would never end")
        if self.state is S.FAILED and self.failure is None:
            raise BugError(f"{self.id} is FAILED without a failure")
        if self.incarnation <= self.old_incarnation:
            raise BugError(f"{self.id} does not raise the incarnation {self.old_incarnation}")


def from_record(record: RestoreRecord, *, epoch: int, policy: Policy, now: float) -> Restore:
    """A restore of an earlier leader: its plan says whom to tell that it is over."""
    return Restore(
        id=record.restore,
        job=record.job,
        epoch=epoch,
        incarnation=record.incarnation,
        policy=policy,
        started=now,
        deadline_s=record.deadline_s,
        unix_s=record.requested_unix_s,
        members={p.worker: Member(p.worker, p.to_node) for p in record.plan.placements},
        state=record.state,
        reason=record.reason,
        failure=record.failure,
        timings=list(record.timings),
        plan=record.plan,
        snapshot_id=record.snapshot,
        old_incarnation=record.incarnation - 1,
        ordered=True,
        cleared=record.state not in (S.ADMITTING, S.FETCHING),
        admitted=True,
        adopted=True,
    )


def moved(endpoint: Endpoint, addresses: Mapping[str, str]) -> Endpoint:
    """A connection as it will be after the restore."""
    return replace(
        endpoint,
        local_address=addresses.get(endpoint.local_address, endpoint.local_address),
        remote_address=addresses.get(endpoint.remote_address, endpoint.remote_address),
    )


# -- forward ---------------------------------------------------------------------------------------


def on_admitted(r: Restore, event: RestoreAdmitted, now: float) -> list[Command]:
    """The record stands and no other restore can win: bring the images to the nodes."""
    r.close_round(Phase.ADMIT, now)
    r.ordered = r.admitted = True
    sent = r.open_round(Phase.FETCH, r.policy.fetch_s, now)
    r.move(S.FETCHING, f"recorded as incarnation {r.incarnation}; images are brought to the nodes")
    return [*_orders(r, sent, now), r.announce(now)]


def on_fetched(r: Restore, event: Fetched, now: float) -> list[Command]:
    """A node has the images; when all have, what is left of the old incarnation goes."""
    more = _answered(r, event, Phase.FETCH, now)
    if more is not None:
        return more
    r.open_round(Phase.CLEAR, r.policy.admit_s, now, whom="the store")
    r.move(S.CLEARING, "every image is in place; that the old incarnation goes is recorded first")
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
            **_common(r),
        )
        for member in sent.awaited.values()
    ]
    r.move(S.CLEARING, f"recorded; incarnation {r.old_incarnation} is cleared away")
    return [*commands, *_fence_strays(r), r.announce(now)]


def on_found(r: Restore, event: NodeAttached, now: float) -> list[Command]:
    """A node came (back) with workers of the job for which the plan has no place there."""
    node = event.facts.node
    for state in event.workers:
        member = r.members.get(state.worker)
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
    return toward_restore(r, now)


def on_stray_ended(r: Restore, event: WorkerExited, now: float) -> list[Command]:
    """An old worker on a node that gets nothing has ended."""
    if r.strays.pop((event.node, event.worker), None) is None:
        r.ignore("an old worker ended; it is being cleared away anyway")
        return []
    r.move(S.CLEARING, f"old worker {event.worker} on {event.node} is gone")
    return toward_restore(r, now)


def on_report(r: Restore, event: NodeReported, now: float) -> list[Command]:
    """What a node reports tells whether an old worker there is gone."""
    alive = {w.worker for w in event.workers if w.job == r.job and w.state != "exited"}
    gone = [key for key in r.strays if key[0] == event.node and key[1] not in alive]
    for key in gone:
        r.strays.pop(key)
    if not gone:
        return []
    r.move(S.CLEARING, f"nothing of the old incarnation is left on {event.node}")
    return toward_restore(r, now)


def toward_restore(r: Restore, now: float) -> list[Command]:
    """Restore when every node is clear and no old worker is left in reach."""
    sent = r.rounds[Phase.CLEAR]
    if not sent.complete or r.strays:
        return r.progress(sent, now)
    r.close_round(Phase.CLEAR, now)
    extra = r.policy.gpu_restore_s + r.policy.gpu_unlock_s if r.gpu else 0.0
    restoring = r.open_round(
        Phase.RESTORE, r.policy.rebuild_s, now, holds=True, hold_extra_s=extra + r.policy.margin_s
    )
    r.move(S.RESTORING, "the nodes are clear; the trees are restored, stopped")
    return [*_orders(r, restoring, now), r.announce(now)]


def on_restored(r: Restore, event: Restored, now: float) -> list[Command]:
    """A tree is back, stopped; when all are, devices come next, or the release."""
    sent = r.accept(event, Phase.RESTORE)
    if sent is None:
        return []
    r.root_pids[event.worker] = event.root_pid
    sent.take(event.worker)
    if not sent.complete:
        return r.progress(sent, now)
    r.close_round(Phase.RESTORE, now)
    if not r.gpu:
        return _release(r, now, "every tree is back")
    nxt = r.open_round(Phase.GPU_RESTORE, r.policy.gpu_restore_s, now, holds=True)
    r.move(S.GPU_RESTORING, "every tree is back; device memory is restored")
    return [*_orders(r, nxt, now), r.announce(now)]


def on_gpu_restored(r: Restore, event: GpuRestored, now: float) -> list[Command]:
    """Device memory is back on a node."""
    more = _answered(r, event, Phase.GPU_RESTORE, now)
    if more is not None:
        return more
    sent = r.open_round(Phase.GPU_UNLOCK, r.policy.gpu_unlock_s, now, holds=True)
    r.move(S.GPU_UNLOCKING, "device memory is back everywhere; devices are unlocked")
    return [*_orders(r, sent, now), r.announce(now)]


def on_gpu_unlocked(r: Restore, event: GpuUnlocked, now: float) -> list[Command]:
    """The CUDA processes of a node may run."""
    more = _answered(r, event, Phase.GPU_UNLOCK, now)
    return _release(r, now, "every device is unlocked") if more is None else more


def _release(r: Restore, now: float, why: str) -> list[Command]:
    sent = r.open_round(Phase.RELEASE, r.policy.release_s, now)
    r.move(S.RELEASING, f"{why}; the job is released")
    return [*_orders(r, sent, now), r.announce(now)]


def on_released(r: Restore, event: Released, now: float) -> list[Command]:
    """A worker runs; when all do, the restore is over."""
    more = _answered(r, event, Phase.RELEASE, now)
    if more is not None:
        return more
    step = f" at step {r.snapshot.step}" if r.snapshot and r.snapshot.cut is Cut.STEP else ""
    r.move(S.RUNNING, r.with_notes(f"snapshot {r.snapshot_id} runs again{step}"))
    record = r.record()
    return [PutRestore(record), r.announce(now, last=True, restore=record)]


# -- small things ----------------------------------------------------------------------------------


def _answered(r: Restore, event: OrderAnswered, phase: Phase, now: float) -> list[Command] | None:
    """Take a bare answer; None when it completes the round, else what to do meanwhile."""
    sent = r.accept(event, phase)
    if sent is None:
        return []
    sent.take(event.worker)
    if not sent.complete:
        return r.progress(sent, now)
    r.close_round(phase, now)
    return None


def _common(r: Restore) -> dict[str, Any]:
    if r.snapshot is None:
        raise BugError(f"{r.id} was adopted without its snapshot and can only be undone")
    return {
        "cut": r.snapshot.cut,
        "target": r.snapshot.step,
        "world_size": r.snapshot.world_size,
        "workers": len(r.snapshot.workers),
        "incarnation": r.incarnation,
        "addresses": r.plan.addresses,
    }


def _orders(r: Restore, sent: Round, now: float) -> list[Command]:
    common = _common(r)
    return [
        r.order(member, sent, now, record=r.records[member.worker], **common)
        for member in sent.awaited.values()
    ]
