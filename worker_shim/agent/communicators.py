"""NCCL's communicators in mode `rebuild`: destroyed when all ranks are parked, met anew at release.

They are destroyed by the first order after PARK, when every rank of every node is parked: the
shim's call is collective, and a rank that ran on would leave the others waiting in it for ever.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from coordinator.core.errors import DeadlinePassed, DriverError, NotReady, Where
from coordinator.core.model import Cut, Finding, Severity
from worker_shim.agent.order import Deadline, Order
from worker_shim.agent.worker import Worker
from worker_shim.hook.communicators import REBUILD
from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_FAILED,
    COMMUNICATORS_NONE,
    COMMUNICATORS_UP,
)
from worker_shim.nccl import live
from worker_shim.nccl.endpoint import HOST
from worker_shim.nccl.launching import KVS_FILE
from worker_shim.nccl.meetings import Meeting
from worker_shim.nccl.port import RankCommunicators
from worker_shim.nccl.visiting import owners
from worker_shim.process.view import view

log = structlog.get_logger(__name__)

POLL_S = 0.01
TOLD_S = 2.0  # how often the log says who is awaited
EARLY_S = 2.0  # before the deadline it is said who has not come, so that it is heard in time,
EARLY_PART = 0.2  # or this part of a short one
ANSWER_S = 0.5  # for the coordinator to say which ranks of other nodes have come
SHOWN_MAX = 8


# -- before a dump ---------------------------------------------------------------------------------


async def take_down(worker: Worker, order: Order, deadline: Deadline) -> None:
    """Let the parked ranks destroy their communicators, unless they are down already.

    Raises NotReady for live ones of ranks that are not parked (cut `freeze`), and DriverError or
    DeadlinePassed naming the rank that could not. What is down comes back at the release.
    """
    if worker.nccl != REBUILD or worker.page is None:
        return
    page = worker.page
    standing = _of_state(page.communicators(), COMMUNICATORS_UP)
    if order.cut is Cut.FREEZE or not page.hold:
        await _require_none(worker)
        return
    if not standing:
        return
    page.tear_down()
    known = {each.pid: each.rank for each in standing}
    while True:
        now = page.communicators()
        _require_living(worker, known, now, "destroyed its communicators")
        failed = [each for each in now if each.state == COMMUNICATORS_FAILED]
        if failed:
            raise _failed(worker, failed[0], "destroy", "ncclCheckpointPrepare")
        if not (standing := _of_state(now, COMMUNICATORS_UP)):
            break
        if deadline.passed:
            raise DeadlinePassed(
                f"{_ranks(standing)} did not destroy the NCCL communicators within "
                f"{deadline.total_s:.1f} s",
                where=_where(worker, standing),
                advice="a collective that was never completed is the usual cause; NCCL waits for "
                "it without a limit",
            )
        await asyncio.sleep(POLL_S)
    await _require_gone(worker, known)
    deadline.lap("communicators")


async def _require_none(worker: Worker) -> None:
    seen = await asyncio.to_thread(lambda: live.evidence(view(worker.tree())))
    for pid, signs in seen.items():
        raise NotReady(
            f"process {pid} has live NCCL communicators ({signs[0]}), which can only be destroyed "
            "at a step",
            where=worker.where,
            advice="use --cut step",
        )


async def _require_gone(worker: Worker, ranks: Mapping[int, int]) -> None:
    """What the library said is held against what the kernel shows."""
    seen = await asyncio.to_thread(lambda: live.evidence(view(worker.tree())))
    for pid, signs in seen.items():
        if pid in ranks:
            raise DriverError(
                f"rank {ranks[pid]} (pid {pid}) still has {signs[0]} after its NCCL communicators "
                "were destroyed",
                where=Where(worker.job, worker.worker, ranks[pid]),
                advice="a library that NCCL's checkpoint shim does not see (one linked statically, "
                "or opened by itself) keeps communicators of its own",
                details=signs[:SHOWN_MAX],
            )


# -- letting go ------------------------------------------------------------------------------------


async def prepare_release(worker: Worker, action: str) -> None:
    """Before ranks whose communicators are down are let go: write where they will meet.

    Does nothing for others. Raises DriverError when the endpoint or the file cannot be had.
    """
    if worker.page is None or not worker.page.tearing_down:
        return
    endpoint = worker.drivers.endpoint
    path = worker.directory / KVS_FILE
    try:
        port = await endpoint.start()
        prefix = endpoint.meetings.open(worker.job, worker.name, action)
        _write(path, f"{HOST}:{port}/{prefix}\n", worker)
    except OSError as error:
        raise DriverError(
            f"the ranks cannot be told where to meet, by {path}: {error}",
            where=worker.where,
            advice="the run directory needs room, and the shim a loopback interface",
        ) from error
    worker.rebuilding = action


def _write(path: Path, line: str, worker: Worker) -> None:
    """The file appears whole, and never where others than the worker's user can read it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", opener=_for_us_alone) as file:
        file.write(line)
    _give(temporary, worker)
    temporary.replace(path)


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _give(path: Path, worker: Worker) -> None:
    """The prefix is a secret of the worker's user; of several users all may read it."""
    users = set()
    for process in worker.tree().processes:
        try:
            users.add(os.stat(f"/proc/{process.pid}").st_uid)
        except OSError:
            continue
    if len(users) == 1:
        os.chown(path, users.pop(), -1)
    elif users:
        os.chmod(path, 0o644)


async def rebuilt(worker: Worker, deadline: Deadline) -> None:
    """Wait until every rank that was let go has its communicators again.

    Raises DriverError for a rank that could not or that ended, and DeadlinePassed naming the ranks
    that did not come: of this worker first, else those of others for whom these ranks wait. The
    worker runs in any case.
    """
    page, action = worker.page, worker.rebuilding
    meeting = worker.drivers.endpoint.meetings.of(worker.name)
    if page is None or not action or meeting is None:
        return
    known = {each.pid: each.rank for each in _awaited(page.communicators())}
    early_s = min(EARLY_S, EARLY_PART * deadline.total_s)
    told_at = time.monotonic()
    while True:
        now = page.communicators()
        _require_living(worker, known, now, "rebuilt its communicators")
        failed = [each for each in now if each.state == COMMUNICATORS_FAILED]
        if failed:
            raise _failed(worker, failed[0], "rebuild", "ncclCheckpointRestore")
        for each in _of_state(now, COMMUNICATORS_UP):
            deadline.arrive(each.rank)
        awaited = _awaited(now)
        if not awaited:
            forget(worker)
            deadline.lap("communicators")
            return
        absent = await _absent(worker, meeting, now)
        if absent and deadline.left_s <= early_s:
            raise _not_come(worker, meeting, absent, deadline)
        if deadline.left_s <= early_s / 2:
            raise await _still_waiting(worker, meeting, awaited, deadline)
        if time.monotonic() - told_at >= TOLD_S:
            told_at = time.monotonic()
            log.info("communicators", worker=worker.name, awaited=progress(meeting, awaited))
        await asyncio.sleep(POLL_S)


def findings(worker: Worker) -> tuple[Finding, ...]:
    """What a worker that was let go still lacks; none once all its ranks have what they had.

    This is how it shows after an undo, which waits for no rank.
    """
    page, action = worker.page, worker.rebuilding
    meeting = worker.drivers.endpoint.meetings.of(worker.name)
    if page is None or not action or meeting is None or page.hold:
        return ()
    now = page.communicators()
    lacking = [each for each in now if each.state not in (COMMUNICATORS_NONE, COMMUNICATORS_UP)]
    if not lacking:
        forget(worker)
    return tuple(
        Finding(
            Severity.REFUSE,
            "communicators",
            f"rank {each.rank} (pid {each.pid}) {_stands(each)} after {action}; without its NCCL "
            "communicators it cannot go on: restore the job if that lasts",
            rank=each.rank,
            pid=each.pid,
        )
        for each in lacking[:SHOWN_MAX]
    )


def forget(worker: Worker) -> None:
    """The worker is gone, and nobody meets for it any more."""
    worker.rebuilding = ""
    worker.drivers.endpoint.meetings.close(worker.name)


def progress(meeting: Meeting, awaited: Sequence[RankCommunicators]) -> tuple[str, ...]:
    """One line for each rank that is awaited, and one for each communicator that is known of."""
    lines = [f"rank {each.rank} (pid {each.pid}) {_stands(each)}" for each in awaited]
    keys = {key.name for key in meeting.table.entries()}
    for name in sorted(keys | {visitor.awaited for visitor in meeting.visitors} - {b""}):
        readers = sum(name in visitor.read_keys for visitor in meeting.visitors)
        waiting = sum(name == visitor.awaited for visitor in meeting.visitors)
        said = "is set" if name in keys else "is not set by anybody"
        shown = name[:80].decode(errors="backslashreplace")
        lines.append(f"{shown} {said}; read by {readers} and awaited by {waiting} ranks here")
    return tuple(lines)


# -- who has come ----------------------------------------------------------------------------------


async def _absent(
    worker: Worker, meeting: Meeting, now: Sequence[RankCommunicators]
) -> list[RankCommunicators]:
    """The awaited ranks that have not come to the endpoint; the coordinator hears of the others."""
    unknown = [visitor for visitor in meeting.visitors if not visitor.pid]
    if unknown:
        pids = [each.pid for each in now]
        found = await asyncio.to_thread(owners, {visitor.port for visitor in unknown}, pids)
        for visitor in unknown:
            visitor.pid = found.get(visitor.port, 0)
    here = {visitor.pid for visitor in meeting.visitors}
    came = {each.rank for each in now if each.pid in here or each.state == COMMUNICATORS_UP}
    worker.drivers.endpoint.meetings.came(meeting, came)
    return [each for each in _awaited(now) if each.rank not in meeting.came]


def _not_come(
    worker: Worker, meeting: Meeting, absent: Sequence[RankCommunicators], deadline: Deadline
) -> DeadlinePassed:
    return DeadlinePassed(
        f"{_ranks(absent)} did not come to rebuild the NCCL communicators within "
        f"{deadline.took_ms / 1000:.1f} s: it {_stands(absent[0])}",
        where=_where(worker, absent),
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
    waits = f"{_ranks(awaited)} still waited after {deadline.took_ms / 1000:.1f} s"
    if missing:
        named = ", ".join(map(str, missing[:SHOWN_MAX]))
        what = f"{waits} for rank {named} of other workers, which did not come"
    elif came is None:
        what = f"{waits} for others, and the coordinator did not say which"
    else:
        what = f"{waits} to rebuild the NCCL communicators, though every rank has come"
    return DeadlinePassed(
        what,
        where=worker.where,
        advice="see the logs of these ranks; NCCL_DEBUG=INFO tells more. Restore the job",
        definite=False,
        details=progress(meeting, awaited),
    )


# -- words -----------------------------------------------------------------------------------------


def _of_state(
    communicators: Sequence[RankCommunicators], state: int
) -> tuple[RankCommunicators, ...]:
    return tuple(each for each in communicators if each.state == state)


def _awaited(communicators: Sequence[RankCommunicators]) -> list[RankCommunicators]:
    through = (COMMUNICATORS_NONE, COMMUNICATORS_UP)
    return [each for each in communicators if each.state not in through]


def _stands(each: RankCommunicators) -> str:
    if each.state == COMMUNICATORS_DOWN:
        return "has not begun to rebuild its communicators"
    if each.state == COMMUNICATORS_FAILED:
        return f"could not rebuild its communicators (ncclResult_t {each.result})"
    return "is rebuilding its communicators"


def _ranks(ranks: Sequence[RankCommunicators]) -> str:
    named = [f"rank {each.rank} (pid {each.pid})" for each in ranks[:SHOWN_MAX]]
    return ", ".join(named) + (f" and {len(ranks) - SHOWN_MAX} more" * (len(ranks) > SHOWN_MAX))


def _where(worker: Worker, ranks: Sequence[RankCommunicators]) -> Where:
    return Where(worker.job, worker.worker, ranks[0].rank if len(ranks) == 1 else None)


def _failed(worker: Worker, rank: RankCommunicators, what: str, call: str) -> DriverError:
    return DriverError(
        f"rank {rank.rank} (pid {rank.pid}) could not {what} its NCCL communicators: {call} gave "
        f"{rank.result}",
        where=_where(worker, (rank,)),
        advice="the rank's log has NCCL's own words; NCCL and its checkpoint shim must be of one "
        "version",
        definite=False,
    )


def _require_living(
    worker: Worker,
    known: Mapping[int, int],
    now: Sequence[RankCommunicators],
    what: str,
) -> None:
    gone = sorted(known.keys() - {each.pid for each in now})
    if gone:
        raise DriverError(
            f"rank {known[gone[0]]} (pid {gone[0]}) ended before it had {what}",
            where=Where(worker.job, worker.worker, known[gone[0]]),
            advice="see its log",
        )
