"""Bugs to plant: each takes one of the promises away, and the simulator has to notice.

A plant changes the code of this process for the rest of its life, and returns the kinds of faults
that look for it (all kinds would find it too, later).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from coordinator.core import committing
from coordinator.core.action import FOREVER, Round
from coordinator.core.gpu_health import GpuHealth
from coordinator.core.keeper import Keeper
from coordinator.core.model import Phase
from coordinator.store.keeping import Keeping
from coordinator.store.kv import Compare, Delete, Put
from coordinator.store.port import Weighed
from coordinator.store.writing import Conflict, Writer, holds
from worker_shim.agent import dumping, lane
from worker_shim.agent.fence import Fence
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker

Faults = tuple[str, ...]


def commit_without_epoch() -> Faults:
    """The commit transaction does not compare the leader's key."""
    real = Writer._write

    async def _write(
        self: Writer,
        conditions: Sequence[Compare],
        ops: Sequence[Put | Delete],
        own: Iterable[str] = (),
    ) -> None:
        if not any("/snapshots/" in op.key for op in ops):
            await real(self, conditions, ops, own)
            return
        self.fence.check()
        written = await self.kv.write(conditions, ops)
        if not written.done:
            changed = [each.key for each in conditions if not holds(each, written.seen)]
            raise Conflict(changed, written.seen)
        self._seen.update((op.key, written.revision) for op in ops if op.key in self._seen)

    Writer._write = _write  # type: ignore[method-assign]
    return ("late_commit",)


def vote_missing() -> Faults:
    """CUT is declared while one worker's dump is not in."""

    def complete(self: Round) -> bool:
        missing = 1 if self.phase is Phase.DUMP and self.expected > 1 else 0
        return len(self.awaited) <= missing and not self.whom

    Round.complete = property(complete)  # type: ignore[assignment, method-assign]
    committing.require_cut = lambda a, now: None
    return ("slow_drivers", "slow_machine")


def early_unlock() -> Faults:
    """A worker's network is unlocked as soon as its own dump is done."""

    async def dump(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
        outcome = await dumping.dump(worker, order, deadline)
        await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
        return outcome

    lane.STEPS[Phase.DUMP] = dump
    return ("slow_drivers", "slow_machine")


def hold_ignored() -> Faults:
    """The coordinator sends holds, and does not look whether they could have run out."""
    Round.sure_until = property(lambda self: FOREVER)  # type: ignore[assignment, method-assign]
    committing.require_cut = lambda a, now: None
    return ("slow_votes",)


def old_epoch_obeyed() -> Faults:
    """A shim takes whatever epoch it is told."""
    Fence.admit = lambda self, epoch: None  # type: ignore[method-assign]
    Fence.require = lambda self, epoch: None  # type: ignore[method-assign]
    return ("old_orders",)


def deleted_while_used() -> Faults:
    """A snapshot is deleted whoever restores it or shares its bytes."""
    Keeper.user_of = lambda self, job, snapshot: ""  # type: ignore[method-assign]
    Keeper._users_of = lambda self, job, snapshots: ()  # type: ignore[method-assign]
    Keeper.validate = lambda self: None  # type: ignore[method-assign]
    return ("slow_drivers",)


def garbage_by_listing() -> Faults:
    """Whatever is no snapshot counts as garbage, whether its attempt has ended or not."""
    real = Keeping.weigh

    async def weigh(
        self: Keeping, job: str, attempts: Sequence[str], deleting: Sequence[str]
    ) -> Weighed:
        weighed = await real(self, job, attempts, deleting)
        snapshots = {each.snapshot for each in await self.snapshots(job)}
        return replace(weighed, dead=tuple({*weighed.dead, *attempts} - snapshots | {*deleting}))

    Keeping.weigh = weigh  # type: ignore[method-assign]
    return ("slow_drivers", "slow_machine")


def nothing_is_suspect() -> Faults:
    """What is known of GPUs is not asked when a snapshot is committed."""
    GpuHealth.suspicion = lambda self, records: ""  # type: ignore[method-assign]
    return ("slow_drivers",)


PLANTS: dict[str, Callable[[], Faults]] = {
    "commit-without-epoch": commit_without_epoch,
    "vote-missing": vote_missing,
    "early-unlock": early_unlock,
    "hold-ignored": hold_ignored,
    "old-epoch-obeyed": old_epoch_obeyed,
    "deleted-while-used": deleted_while_used,
    "garbage-by-listing": garbage_by_listing,
    "nothing-is-suspect": nothing_is_suspect,
}
