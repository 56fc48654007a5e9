"""From the first order to the cut: everyone holds, parks at one step, and is dumped.

Every function named `on_...` is the arrow of one event; the states and rows are in `checkpoint`.
"""

from __future__ import annotations

from coordinator.core import aborting, committing
from coordinator.core.agreement import agree, check_at, check_findings, check_loaded
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command
from coordinator.core.errors import AllstopError, AttemptFailed, IllegalEvent, Where
from coordinator.core.events import (
    AttemptStored,
    Dumped,
    GpuLocked,
    GpuSaved,
    Held,
    OrderAnswered,
    Parked,
)
from coordinator.core.model import AttemptState, Cut, Phase

S = AttemptState


def on_stored(a: Attempt, event: AttemptStored, now: float) -> list[Command]:
    if event.state != S.ADMITTING:
        raise IllegalEvent(
            f"{a.id} was never put as {event.state}", where=Where(job=a.job), advice="report this"
        )
    a.close_round(Phase.ADMIT, now)
    if a.cut is Cut.FREEZE:
        return _after_rest(a, now, "recorded; ranks are frozen wherever they are")
    a.ordered = True
    sent = a.open_round(Phase.HOLD, a.policy.hold_s, now, holds=True)
    a.move(S.HOLDING, f"recorded; {len(a.members)} workers are told to hold")
    orders = a.orders(
        sent,
        now,
        cut=a.cut,
        world_size=a.world_size,
        stand_still_s=a.policy.stand_still_s,
        workers=len(a.members),
    )
    return [*orders, a.announce(now)]


def on_held(a: Attempt, event: Held, now: float) -> list[Command]:
    sent = a.accept(event, Phase.HOLD)
    if sent is None:
        return []
    member = sent.awaited[event.worker]
    a.observe(event.worker, event.ranks)
    try:
        check_findings(event.worker, member.node, event.findings, freeze=False, phase="HOLD")
        check_loaded(event.worker, member.node, event.ranks)
    except AllstopError as error:
        return aborting.abort_for(a, error, now)
    a.answers[event.worker] = event.ranks
    if event.gpu:
        a.finds_devices()
    sent.take(event.worker)
    if not sent.complete:
        return a.progress(sent, now)
    if now >= sent.sure_until:
        return _hold_ran_out(a, Phase.HOLD, now)
    try:
        agreed = agree(a.answers, {m.worker: m.node for m in a.members.values()}, a.world_size)
    except AllstopError as error:
        return aborting.abort_for(a, error, now)
    a.target, a.world_size = agreed.target, agreed.world_size
    a.close_round(Phase.HOLD, now)
    parking = a.open_round(Phase.PARK, a.policy.park_s, now, holds=True)
    a.move(
        S.PARKING,
        f"{a.world_size} ranks were last seen at steps {agreed.lowest}..{a.target - 1}; "
        f"all park at {a.target}",
    )
    orders = a.orders(parking, now, cut=a.cut, target=a.target, world_size=a.world_size)
    return [*orders, a.announce(now)]


def on_parked(a: Attempt, event: Parked, now: float) -> list[Command]:
    sent = a.accept(event, Phase.PARK)
    if sent is None:
        return []
    member = sent.awaited[event.worker]
    a.observe(event.worker, event.ranks)
    try:
        check_at(a.target, event.worker, member.node, a.answers[event.worker], event.ranks, "PARK")
    except AllstopError as error:
        return aborting.abort_for(a, error, now)
    sent.take(event.worker)
    if not sent.complete:
        return a.progress(sent, now)
    if now >= sent.sure_until:
        return _hold_ran_out(a, Phase.PARK, now)
    a.close_round(Phase.PARK, now)
    return _after_rest(a, now, f"all {a.world_size} ranks are parked at step {a.target}")


def _after_rest(a: Attempt, now: float, why: str) -> list[Command]:
    """The ranks are at rest (or DUMP will freeze them): devices next, where there are any."""
    a.ordered = True
    a.torn = a.rebuilds and a.cut is Cut.STEP  # by whichever order is the next one
    if not a.gpu:
        return _dump(a, now, why)
    sent = a.open_round(Phase.GPU_LOCK, a.policy.gpu_lock_s, now, holds=True)
    a.move(S.LOCKING, f"{why}; their devices are locked")
    return [*a.orders(sent, now, cut=a.cut, target=a.target), a.announce(now)]


def on_gpu_locked(a: Attempt, event: GpuLocked, now: float) -> list[Command]:
    more = _answered(a, event, Phase.GPU_LOCK, now)
    if more is not None:
        return more
    sent = a.open_round(Phase.GPU_SAVE, a.policy.gpu_save_s, now, holds=True)
    a.move(S.SAVING, "every device is locked; their memory is saved")
    return [*a.orders(sent, now, cut=a.cut, target=a.target), a.announce(now)]


def on_gpu_saved(a: Attempt, event: GpuSaved, now: float) -> list[Command]:
    more = _answered(a, event, Phase.GPU_SAVE, now)
    return _dump(a, now, "every device is saved") if more is None else more


def _dump(a: Attempt, now: float, why: str) -> list[Command]:
    sent = a.open_round(Phase.DUMP, a.policy.dump_s, now, holds=True)
    a.move(S.DUMPING, f"{why}; the trees are dumped")
    return [*a.orders(sent, now, cut=a.cut, target=a.target), a.announce(now)]


def on_dumped(a: Attempt, event: Dumped, now: float) -> list[Command]:
    sent = a.accept(event, Phase.DUMP)
    if sent is None:
        return []
    member = sent.awaited[event.worker]
    try:
        committing.check_record(a, event.record, event.worker, member.node, "DUMP")
    except AllstopError as error:
        return aborting.abort_for(a, error, now)
    a.records[event.worker] = event.record
    sent.take(event.worker)
    if not sent.complete:
        return a.progress(sent, now)
    if now >= sent.sure_until:
        return _hold_ran_out(a, Phase.DUMP, now)
    a.torn = False  # every worker has, and builds its communicators anew whatever lets it go
    return committing.cut(a, now)


# -- checks ----------------------------------------------------------------------------------------


def _answered(a: Attempt, event: OrderAnswered, phase: Phase, now: float) -> list[Command] | None:
    """Take a bare answer; None when it completes the round, else what to do meanwhile."""
    sent = a.accept(event, phase)
    if sent is None:
        return []
    sent.take(event.worker)
    if not sent.complete:
        return a.progress(sent, now)
    if now >= sent.sure_until:
        return _hold_ran_out(a, phase, now)
    a.close_round(phase, now)
    return None


def _hold_ran_out(a: Attempt, phase: Phase, now: float) -> list[Command]:
    sent = a.rounds[phase]
    error = AttemptFailed(
        f"the last answer to {phase} came {now - sent.sent_at:.1f} s after the order, when a hold "
        f"of {sent.held_until - sent.sent_at:.1f} s could have run out",
        where=Where(phase=str(phase)),
        advice="the coordinator was too slow or stood still; try again",
    )
    return aborting.abort_for(a, error, now)
