"""Ranks that were let go build their NCCL communicators anew: who is awaited, and for how long.

RESUME and RELEASE wait for it. An undo does not, since a peer may be dead: what its ranks lack is
found at every look, and a worker that lacks it for too long is faulted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import structlog

from coordinator.core.errors import DeadlinePassed
from coordinator.core.failures import listed
from coordinator.core.model import Finding, Severity
from worker_shim.agent.communicators import (
    POLL_S,
    REBUILD_S,
    REBUILT,
    SHOWN_MAX,
    but_for,
    named,
    of_state,
    place_of,
    require_living,
    unable,
)
from worker_shim.agent.order import Deadline
from worker_shim.agent.worker import Worker
from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_FAILED,
    COMMUNICATORS_GOING_DOWN,
    COMMUNICATORS_UP,
)
from worker_shim.nccl.meetings import Meeting, Visitor
from worker_shim.nccl.port import RankCommunicators
from worker_shim.nccl.visiting import owners

log = structlog.get_logger(__name__)

TOLD_S = 2.0  # how often it is said who is awaited
ANSWER_S = 0.5  # for the coordinator to say which ranks of other nodes have come
CODE = "communicators"

_STANDS = {
    COMMUNICATORS_GOING_DOWN: "has not finished destroying its communicators",
    COMMUNICATORS_DOWN: "has not begun to rebuild its communicators",
    COMMUNICATORS_FAILED: "could not rebuild its communicators (ncclResult_t {result})",
}


async def rebuilt(worker: Worker, deadline: Deadline) -> None:
    """Wait until every rank that was let go has its communicators again.

    Raises DriverError for a rank that could not or that ended, and DeadlinePassed naming the ranks
    that did not come: of this worker first, else those of others for whom these ranks wait. The
    worker runs in any case. Meanwhile its findings say how far each rank is.
    """
    page, rebuild = worker.page, worker.rebuild
    meeting = worker.drivers.endpoint.meetings.of(worker.name)
    if page is None or rebuild is None or meeting is None:
        return
    rebuild.late_at = max(rebuild.late_at, time.monotonic() + deadline.left_s)
    known = {each.pid: each.rank for each in but_for(page.communicators(), REBUILT)}
    told_at = time.monotonic()
    while True:
        now = page.communicators()
        require_living(worker, known, now, "rebuilt its communicators")
        if failed := of_state(now, COMMUNICATORS_FAILED):
            raise unable(worker, failed[0], "rebuild", "ncclCheckpointRestore")
        for each in of_state(now, COMMUNICATORS_UP):
            deadline.arrive(each.rank)
        absent = await _absent(worker, meeting, now)
        awaited = but_for(now, REBUILT)
        if not awaited:
            forget(worker)
            deadline.lap("communicators")
            return
        if absent and deadline.nears():
            raise _not_come(worker, meeting, absent, deadline)
        if deadline.nears(0.5):
            raise await _still_waiting(worker, meeting, awaited, deadline)
        if time.monotonic() - told_at >= TOLD_S:
            told_at = time.monotonic()
            log.info("communicators", worker=worker.name, awaited=progress(meeting, awaited))
            _tell(worker, findings(worker, Severity.WARN))
        await asyncio.sleep(POLL_S)


async def watch(worker: Worker) -> None:
    """Look after ranks that were let go and for which no order waits any more, or none ever did.

    A worker that still lacks communicators after its time is faulted, so that the job can be
    restored; it runs again if they come after all.
    """
    page, rebuild = worker.page, worker.rebuild
    if page is None or rebuild is None or page.hold:
        return
    now = page.communicators()
    meeting = worker.drivers.endpoint.meetings.of(worker.name)
    if meeting is not None:
        await _absent(worker, meeting, now)
    if not (awaited := but_for(now, REBUILT)):
        forget(worker)
        return
    if time.monotonic() < rebuild.late_at:
        return
    if not rebuild.late:
        rebuild.late = True
        log.error("communicators are not rebuilt", worker=worker.name, awaited=named(awaited))
    if worker.state == "running":
        worker.state = "faulted"


def findings(worker: Worker, severity: Severity = Severity.REFUSE) -> tuple[Finding, ...]:
    """What ranks of a worker that is not held lack, by the page: one for each of the first few."""
    page = worker.page
    if page is None or page.hold:
        return ()
    meeting = worker.drivers.endpoint.meetings.of(worker.name)
    after = f" after {worker.rebuilding}" if worker.rebuilding else ""
    late = worker.rebuild is not None and worker.rebuild.late
    return tuple(
        Finding(
            severity,
            CODE,
            f"rank {each.rank} (pid {each.pid}) {_stands(each)}{after}{_keys_of(each, meeting)}; "
            + _outlook(late),
            rank=each.rank,
            pid=each.pid,
        )
        for each in but_for(page.communicators(), REBUILT)[:SHOWN_MAX]
    )


def _outlook(late: bool) -> str:
    if late:
        return f"within {REBUILD_S:g} s that did not change: restore the job"
    return "without its NCCL communicators it cannot go on: restore the job if that lasts"


def forget(worker: Worker) -> None:
    """Its ranks have what they had, or it is gone: nobody meets for it any more."""
    if worker.rebuild is None:
        return
    if worker.rebuild.late and worker.state == "faulted":
        worker.state = "running"
    worker.rebuild = None
    worker.drivers.endpoint.meetings.close(worker.name)
    _tell(worker, ())


def _tell(worker: Worker, found: tuple[Finding, ...]) -> None:
    """Replace what is said of its communicators, and have it reported if that is news."""
    others = tuple(each for each in worker.findings if each.code != CODE)
    if worker.findings != (*others, *found):
        worker.findings = (*others, *found)
        worker.changed(worker)


# -- who has come ----------------------------------------------------------------------------------


async def _absent(
    worker: Worker, meeting: Meeting, now: Sequence[RankCommunicators]
) -> list[RankCommunicators]:
    """The awaited ranks that have not come to the endpoint; the coordinator hears of the others."""
    unknown = [visitor for visitor in meeting.visitors if not visitor.pid]
    if unknown:
        ranks = {each.pid: each.rank for each in now}
        found = await asyncio.to_thread(owners, {visitor.port for visitor in unknown}, ranks)
        for visitor in unknown:
            visitor.pid = found.get(visitor.port, 0)
            visitor.rank = ranks.get(visitor.pid, -1)
    here = {visitor.pid for visitor in meeting.visitors}
    came = {each.rank for each in now if each.pid in here or each.state in REBUILT}
    worker.drivers.endpoint.meetings.came(meeting, came)
    return [each for each in but_for(now, REBUILT) if each.rank not in meeting.came]


def _not_come(
    worker: Worker, meeting: Meeting, absent: Sequence[RankCommunicators], deadline: Deadline
) -> DeadlinePassed:
    return DeadlinePassed(
        f"{named(absent)} did not come to rebuild the NCCL communicators within "
        f"{deadline.took_ms / 1000:.1f} s: it {_stands(absent[0])}",
        where=place_of(worker, absent),
        advice="see its log; ranks that wait for it stay where they are: restore the job",
        definite=False,
        details=progress(meeting, absent),
    )


async def _still_waiting(
    worker: Worker, meeting: Meeting, awaited: Sequence[RankCommunicators], deadline: Deadline
) -> DeadlinePassed:
    meetings = worker.drivers.endpoint.meetings
    came = await meetings.who_came(meeting, deadline_s=min(ANSWER_S, deadline.left_s))
    size = worker.page.world_size if worker.page is not None else 0
    missing = sorted(set(range(size)) - came) if came is not None else []
    waits = f"{named(awaited)} still waited after {deadline.took_ms / 1000:.1f} s"
    if missing:
        ranks = ", ".join(map(str, missing[:SHOWN_MAX]))
        what = f"{waits} for rank {ranks} of other workers, which did not come"
    elif came is None:
        what = f"{waits} for others, and the coordinator did not say which"
    else:
        what = (
            f"{waits} to rebuild the NCCL communicators, though every rank has come"
            f"{_behind(meeting, awaited)}"
        )
    return DeadlinePassed(
        what,
        where=worker.where,
        advice="see the logs of these ranks; NCCL_DEBUG=INFO tells more. Restore the job",
        definite=False,
        details=progress(meeting, awaited),
    )


# -- words -----------------------------------------------------------------------------------------


def progress(meeting: Meeting, awaited: Sequence[RankCommunicators]) -> tuple[str, ...]:
    """One line for each rank that is awaited, and one for each communicator that is known of."""
    lines = [f"rank {each.rank} (pid {each.pid}) {_stands(each)}" for each in awaited]
    for name in _keys(meeting):
        said = "is not set by anybody" if meeting.table.get(name) is None else "is set"
        had = _ranks(visitor for visitor in meeting.seen if name in visitor.keys)
        waits = _ranks(visitor for visitor in meeting.visitors if name == visitor.awaited)
        lines.append(f"{_shown(name)} {said}; set or read by {had}, awaited by {waits} here")
    return tuple(lines)


def _behind(meeting: Meeting, awaited: Sequence[RankCommunicators]) -> str:
    """Which awaited ranks have not read keys that another rank here has set or read."""
    found = []
    for name in _keys(meeting):
        had = {visitor.pid for visitor in meeting.seen if name in visitor.keys}
        if had and (without := [each for each in awaited if each.pid not in had]):
            found.append(f"{named(without)} has not read {_shown(name)}")
    return "; ".join(("", *found[:SHOWN_MAX]))


def _keys_of(rank: RankCommunicators, meeting: Meeting | None) -> str:
    """What the rank was last seen to wait for, or how many keys it has set or read."""
    visits = [v for v in meeting.seen if v.pid == rank.pid] if meeting is not None else []
    waits = [_shown(visitor.awaited) for visitor in visits if visitor.awaited]
    if waits:
        return f" and waits for {waits[-1]}, which nobody has set"
    keys = {name for visitor in visits for name in visitor.keys}
    return f" and has set or read {len(keys)} keys" if keys else ""


def _keys(meeting: Meeting) -> list[bytes]:
    keys = {key.name for key in meeting.table.entries()}
    return sorted(keys | {visitor.awaited for visitor in meeting.visitors} - {b""})


def _ranks(visitors: Iterable[Visitor]) -> str:
    ranks = sorted({visitor.rank for visitor in visitors})
    return listed([f"rank {rank}" if rank >= 0 else "a rank not known" for rank in ranks]) or "none"


def _shown(name: bytes) -> str:
    return name[:80].decode(errors="backslashreplace")


def _stands(each: RankCommunicators) -> str:
    words = _STANDS.get(each.state, "is rebuilding its communicators")
    return words.format(result=each.result)
