"""NCCL's communicators in mode `rebuild`: destroyed when all are parked, and met anew at release.

They are destroyed by the first order after PARK, when every rank of every node is parked: the
shim's call is collective, and a rank that ran on would leave the others waiting in it for ever.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import structlog

from coordinator.core.errors import DeadlinePassed, DriverError, NotReady, Where
from coordinator.core.model import Cut
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
from worker_shim.nccl.port import RankCommunicators, Rebuild
from worker_shim.process.view import view

log = structlog.get_logger(__name__)

DESTROYED = (COMMUNICATORS_NONE, COMMUNICATORS_DOWN)
REBUILT = (COMMUNICATORS_NONE, COMMUNICATORS_UP)

POLL_S = 0.01
BEGIN_S = 2.0  # for a parked rank to see that it is to destroy its communicators
REBUILD_S = 180.0  # since ranks were let go; after that a rebuild is taken for dead
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
    if order.cut is Cut.FREEZE or not page.hold:
        await _require_none(worker)
        return
    ranks = page.communicators()
    if ranks:
        page.tear_down()
    known = {each.pid: each.rank for each in ranks}
    while True:
        now = page.communicators()
        require_living(worker, known, now, "destroyed its communicators")
        failed = of_state(now, COMMUNICATORS_FAILED)
        if failed:
            raise unable(worker, failed[0], "destroy", "ncclCheckpointPrepare")
        standing = but_for(now, DESTROYED)
        if not standing:
            break
        if deadline.nears():
            raise DeadlinePassed(
                f"{named(standing)} did not destroy the NCCL communicators within "
                f"{deadline.took_ms / 1000:.1f} s",
                where=place_of(worker, standing),
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
    """What the library said is held against what the kernel shows, of every process."""
    seen = await asyncio.to_thread(lambda: live.evidence(view(worker.tree())))
    for pid, signs in seen.items():
        rank = ranks.get(pid)
        who = f"process {pid}" if rank is None else f"rank {rank} (pid {pid})"
        raise DriverError(
            f"{who} still has {signs[0]} after the job's NCCL communicators were destroyed",
            where=Where(worker.job, worker.worker, rank),
            advice="a library that NCCL's checkpoint shim does not see (one linked statically, "
            "or opened by itself) keeps communicators of its own, and a process forked from a rank "
            "what it inherited of the rank's",
            details=signs[:SHOWN_MAX],
        )


# -- letting go ------------------------------------------------------------------------------------


async def begin_all(worker: Worker, *, anew: bool) -> None:
    """Before parked ranks are let go by an undo: whoever was told to destroy them has begun to.

    One that had not even seen it would run on with what the others wait for it to destroy. With
    `anew` ranks of other workers were told so, and these are now. The tree has to run.
    """
    page = worker.page
    if page is None or not page.hold:
        return
    if anew and worker.nccl == REBUILD:
        page.tear_down()
    until = time.monotonic() + BEGIN_S
    while page.tearing_down and (idle := of_state(page.communicators(), COMMUNICATORS_UP)):
        if time.monotonic() > until:
            log.warning("ranks are let go with communicators", worker=worker.name, who=named(idle))
            return
        await asyncio.sleep(POLL_S)


async def prepare_release(worker: Worker, action: str) -> None:
    """Before ranks whose communicators are down are let go: write where they will meet.

    Does nothing for others. Raises DriverError when the endpoint or the file cannot be had: ranks
    that were let go would then fail, or look for each other where nobody is.
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
    worker.rebuild = Rebuild(action, time.monotonic() + REBUILD_S)


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


# -- words -----------------------------------------------------------------------------------------


def of_state(ranks: Sequence[RankCommunicators], *states: int) -> list[RankCommunicators]:
    """Those of the ranks that stand so."""
    return [each for each in ranks if each.state in states]


def but_for(ranks: Sequence[RankCommunicators], states: Container[int]) -> list[RankCommunicators]:
    """Those of the ranks that do not."""
    return [each for each in ranks if each.state not in states]


def named(ranks: Sequence[RankCommunicators]) -> str:
    """A few of them by rank and pid, for people."""
    shown = ", ".join(f"rank {each.rank} (pid {each.pid})" for each in ranks[:SHOWN_MAX])
    return shown + (f" and {len(ranks) - SHOWN_MAX} more" * (len(ranks) > SHOWN_MAX))


def place_of(worker: Worker, ranks: Sequence[RankCommunicators]) -> Where:
    """The place of an error about these ranks."""
    return Where(worker.job, worker.worker, ranks[0].rank if len(ranks) == 1 else None)


def unable(worker: Worker, rank: RankCommunicators, what: str, call: str) -> DriverError:
    """The rank's checkpoint shim said no."""
    return DriverError(
        f"rank {rank.rank} (pid {rank.pid}) could not {what} its NCCL communicators: {call} gave "
        f"{rank.result}",
        where=place_of(worker, (rank,)),
        advice="the rank's log has NCCL's own words; NCCL and its checkpoint shim must be of one "
        "version",
        definite=False,
    )


def require_living(
    worker: Worker, known: Mapping[int, int], now: Sequence[RankCommunicators], what: str
) -> None:
    """Raise DriverError for a rank (by pid) that ended before it had done `what`."""
    gone = sorted(known.keys() - {each.pid for each in now})
    if gone:
        raise DriverError(
            f"rank {known[gone[0]]} (pid {gone[0]}) ended before it had {what}",
            where=Where(worker.job, worker.worker, known[gone[0]]),
            advice="see its log",
        )
