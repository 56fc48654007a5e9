"""One restore as data: its begin, its record, and how a new leader finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from coordinator.core.action import NOT_SEEN, Action, Member, Round
from coordinator.core.cluster import NO_STEPS
from coordinator.core.commands import AdmitRestore, Announce, Command
from coordinator.core.errors import AllstopError, BugError, RestoreFailed
from coordinator.core.events import WorkerExited
from coordinator.core.files import FileBack
from coordinator.core.model import (
    Endpoint,
    OldWorker,
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
FILES_MAX = 512  # a record is one value of the store


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
    cleared: bool = False  # CLEAR was ordered: the old incarnation is gone, or partly
    recorded: bool = False  # that it is released, before that is ordered
    released: bool = False  # RELEASE was ordered: some of it runs
    admitted: bool = False  # the incarnation is raised in the store
    run_from: int = 1  # workers from this incarnation on are of the run that is replaced
    held: set[tuple[str, int]] = field(default_factory=set)  # those in reach, by node and number
    sure: bool = False  # one worker of that run is gone, so that it takes no more steps
    cold_why: str = ""  # why the job is started from scratch instead
    cause: str = ""  # what ended the run that it replaces; empty: an operator asked
    files: list[FileBack] = field(default_factory=list)  # told by its workers, so many at most
    files_unnamed: int = 0

    @property
    def cold(self) -> bool:
        """Whether nothing is put back: the job's commands are started from scratch."""
        return self.plan.cold

    def ends(self, node: str, worker: int) -> None:
        """A worker on a node is gone: where it was of the run that is replaced, that is over."""
        self.sure = self.sure or (node, worker) in self.held

    def sees(self, node: str, workers: Iterable[WorkerState]) -> None:
        """A node tells what lives there: an old worker that does not is gone."""
        alive = {s.worker for s in workers if s.job == self.job and s.state not in NO_STEPS}
        for at, worker in self.held:
            if at == node and worker not in alive:
                self.ends(at, worker)

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
            owed=self.not_undone() if self.state is S.FAILED else (),
            old=tuple(OldWorker(*each) for each in sorted(self.held)),
            old_from=self.run_from,
            sure=self.sure,
            cold=self.cold,
            cold_why=self.cold_why,
            cause=self.cause,
            files=tuple(self.files),
            files_unnamed=self.files_unnamed,
        )

    def tell_files(self, files: tuple[FileBack, ...], unnamed: int) -> None:
        """Keep what a worker did to files, as far as the record has room."""
        room = FILES_MAX - len(self.files)
        self.files += files[:room]
        self.files_unnamed += len(files[room:]) + unnamed

    def begin(self, now: float) -> list[Command]:
        """Have the restore recorded and the incarnation raised; nothing is touched before that."""
        self.open_round(Phase.ADMIT, self.policy.admit_s, now, whom="the store")
        moved = sum(p.from_node != p.to_node for p in self.plan.placements)
        start = ", to be started from scratch" if self.cold else ""
        told = f"planned: {len(self.members)} workers{start}, {moved} on another node"
        self.move(S.ADMITTING, told)
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
        if self.cold:
            return [self._started(record) for record in self.snapshot.workers]
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
                gpu=bool(record.gpu_pids),
                nccl=record.nccl,
            )
            for record in self.snapshot.workers
        ]

    def _started(self, record: WorkerRecord) -> WorkerState:
        """A worker that begins from nothing: its shim has yet to tell of its ranks."""
        return WorkerState(
            job=self.job,
            worker=record.worker,
            workers=len(self.records),
            state="running",
            incarnation=self.incarnation,
            root_pid=0,
            world_size=0,
            command=record.command,
        )

    def common(self) -> dict[str, Any]:
        """What every order of this restore says."""
        if self.snapshot is None:
            raise BugError(f"{self.id} was adopted without its snapshot and restores nothing")
        return {
            "cut": self.snapshot.cut,
            "target": self.snapshot.step,
            "world_size": self.snapshot.world_size,
            "workers": len(self.snapshot.workers),
            "incarnation": self.incarnation,
            "addresses": self.plan.addresses,
            "cold": self.cold,
        }

    def phase_orders(self, sent: Round, now: float) -> list[Command]:
        """The order of a round for everyone it awaits, each with its worker's record."""
        common = self.common()
        devices = {p.worker: p.devices for p in self.plan.placements}
        return [
            self.order(
                member,
                sent,
                now,
                record=self.records[member.worker],
                devices=devices.get(member.worker, ()),
                **common,
            )
            for member in sent.awaited.values()
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
    """A restore of an earlier leader: its plan says whom to tell how it ends."""
    members = {p.worker: Member(p.worker, p.to_node) for p in record.plan.placements}
    return Restore(
        id=record.restore,
        job=record.job,
        epoch=epoch,
        incarnation=record.incarnation,
        policy=policy,
        started=now,
        deadline_s=record.deadline_s,
        unix_s=record.requested_unix_s,
        members=members,
        state=record.state,
        reason=record.reason,
        failure=record.failure,
        timings=list(record.timings),
        lost=dict.fromkeys(members, NOT_SEEN),
        plan=record.plan,
        snapshot_id=record.snapshot,
        old_incarnation=record.incarnation - 1,
        ordered=True,
        cleared=record.state not in (S.ADMITTING, S.FETCHING),
        released=record.state is S.RELEASING,
        admitted=True,
        adopted=True,
        run_from=record.old_from or max(record.incarnation - 1, 1),
        held={(each.node, each.worker) for each in record.old},
        sure=record.sure,
        cold_why=record.cold_why,
        files=list(record.files),
        files_unnamed=record.files_unnamed,
    )


def moved(endpoint: Endpoint, addresses: Mapping[str, str]) -> Endpoint:
    """A connection as it will be after the restore."""
    return replace(
        endpoint,
        local_address=addresses.get(endpoint.local_address, endpoint.local_address),
        remote_address=addresses.get(endpoint.remote_address, endpoint.remote_address),
    )
