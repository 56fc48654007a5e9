"""Ranks that are late, mute, killed, or hold what cannot be saved: each is named."""

from __future__ import annotations

import errno
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coordinator.core.errors import DeadlinePassed, NotReady
from coordinator.core.model import Cut
from lab.host import Host
from tests.integration.badluck.kit import JOB, PROGRAMS, Action, Pair, heard, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]


async def test_a_rank_that_does_not_reach_the_target_is_named(pair: Pair) -> None:
    await pair.stall(2)
    attempt = pair.checkpoint(deadline_s=4.0)
    failure = await attempt.failed()
    assert isinstance(failure, DeadlinePassed), failure.to_fields()
    where = failure.where
    assert (where.worker, where.rank, where.node, where.phase) == (1, 2, "n1", "PARK")
    await pair.aborted(attempt.events[0].action, "rank 2")
    pair.untell(2)
    await pair.went_on(failure)


async def test_a_rank_that_never_reports_a_step_is_named(pair: Pair) -> None:
    host = pair.host("n2")
    deployment = pair.deployment
    deployment.options = ("--criu", str(pair.criu_of("n2")))
    mute = [sys.executable, str(PROGRAMS / "mute.py")]
    deployment.start_worker(host, "mute", workers=1, worker=0, argv=mute)

    async def stepping() -> bool:
        view = await pair.job("mute")
        ranks = view.workers[0].ranks if view and view.workers else ()
        return len(ranks) == 2 and ranks[0].boundary > 0

    try:
        await until("the first step of the rank that speaks", stepping)
        failure = await Action(pair.client.checkpoint("mute", deadline_s=10.0)).failed()
        assert isinstance(failure, NotReady), failure.to_fields()
        where = failure.where
        assert (where.job, where.worker, where.rank, where.node) == ("mute", 0, 1, "n2")
        assert where.phase == "HOLD"
        assert "hook" in failure.what
        view = await pair.job("mute")
        assert view is not None
        before = view.workers[0].ranks[0].boundary

        async def further() -> bool:
            view = await pair.job("mute")
            return view is not None and view.workers[0].ranks[0].boundary > before + 5

        await until("further steps", further)
        frozen = await Action(pair.client.checkpoint("mute", cut=Cut.FREEZE)).ended()
        assert frozen.snapshot is not None  # the way out that the advice names
    finally:
        shim = deployment.shims.pop("n2")
        shim.terminate()
        shim.wait(30)
    await pair.nothing_left(("n2",))


async def test_an_io_uring_is_kept_out_by_the_filter(pair: Pair) -> None:
    pair.tell(3, "uring")
    assert await pair.said(3) == str(-errno.ENOSYS)
    await pair.went_on()


async def test_what_cannot_be_saved_is_refused_by_name(pair: Pair) -> None:
    lender = pair.host("n1").popen(
        [sys.executable, str(PROGRAMS / "lender.py")], stdout=-1, text=True
    )
    try:
        assert lender.stdout is not None
        lent = lender.stdout.readline().strip()
        assert not lent.startswith("error"), lent
        pair.tell(3, "open", "userfaultfd", "terminal", f"borrowed:{lent}")
        assert await pair.said(3) == "opened"
        refused = await pair.checkpoint().failed()
        assert isinstance(refused, NotReady), refused.to_fields()
        where = refused.where
        assert (where.job, where.worker, where.rank, where.node) == (JOB, 1, 3, "n1")
        assert where.phase in ("PREFLIGHT", "HOLD")
        told = "\n".join((refused.what, *refused.details))
        for code in ("io_uring", "userfaultfd", "tty"):
            assert code in told, told
    finally:
        if lender.stdout is not None:
            lender.stdout.close()
        lender.terminate()
        lender.wait(10)
    pair.untell(3)
    await until("that the coordinator knows better", lambda: no_findings(pair))
    await pair.went_on(refused)


async def no_findings(pair: Pair) -> bool:
    view = await pair.job()
    return view is not None and not any(worker.findings for worker in view.workers)


@pytest.mark.parametrize("known", [False, True], ids=["found at HOLD", "known before"])
async def test_too_little_staging_is_refused_before_anybody_is_held(
    pair: Pair, known: bool
) -> None:
    small = "mount -t tmpfs -o size=8m tmpfs /run/allstop-staging"
    pair.host("n1").run(small.split())
    try:
        if known:

            async def found() -> bool:
                return not await no_findings(pair)

            await until("the finding", found)
        refused = await pair.checkpoint().failed()
    finally:
        pair.host("n1").run(["umount", "/run/allstop-staging"])
    assert isinstance(refused, NotReady), refused.to_fields()
    assert (refused.where.worker, refused.where.node) == (1, "n1")
    assert refused.where.phase in (("PREFLIGHT",) if known else ("PREFLIGHT", "HOLD"))
    # What is kept there of the last snapshot would go first, and counts as free.
    assert re.search(r"staging has [1-9]\d? MiB free and the worker needs", refused.what)
    await until("that the coordinator knows better", lambda: no_findings(pair))
    await pair.went_on(refused)


async def test_a_worker_that_exits_while_its_ranks_park(pair: Pair) -> None:
    taken = await pair.snapshot()
    await pair.stall(2)
    attempt = pair.checkpoint()
    await attempt.reached("PARKING")
    pair.tell(2, "exit", "7")
    failure = await attempt.failed()
    where = failure.where
    assert (where.worker, where.node, where.phase) == (1, "n1", "PARK"), failure.to_fields()
    assert "7" in failure.what or where.rank == 2, failure.to_fields()
    await died_and_came_back(pair, attempt.events[0].action, taken.snapshot)


@pytest.mark.parametrize("phase", ["PARK", "DUMP"])
async def test_a_rank_that_is_killed_is_named(pair: Pair, phase: str) -> None:
    taken = await pair.snapshot()
    pid = await pair.pid_of(3)
    if phase == "PARK":
        await pair.stall(2)
    else:
        pair.tell_criu("n1", "slow", "2")
    attempt = pair.checkpoint()
    await attempt.reached("PARKING" if phase == "PARK" else "DUMPING")
    if phase == "DUMP":
        await until("the stop", lambda: is_stopped(pair, pid))
    with its_parent_busy(pair.host("n1"), pid, needed=phase == "PARK"):
        kill(pair.host("n1"), pid)
        failure = await attempt.failed()
    where = failure.where
    assert (where.worker, where.rank, where.node, where.phase) == (1, 3, "n1", phase), (
        failure.to_fields()
    )
    await died_and_came_back(pair, attempt.events[0].action, taken.snapshot)


async def test_launchers_are_killed_and_the_job_comes_back_in_place(pair: Pair) -> None:
    """Nobody collects the ranks that outlive them but the shim, and their ids are needed."""
    taken = await pair.snapshot()
    view = await pair.job()
    assert view is not None
    for worker in view.workers:
        line = ["kill", "-KILL", str(worker.root_pid)]
        pair.host(f"n{worker.worker}").run(line, check=False)  # the other's end may have ended it

    async def ended() -> bool:
        view = await pair.job()
        return view is not None and view.state == "exited"

    await until("the end of both workers", ended)
    back = await pair.restore(taken.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == ["n0", "n1"]
    await pair.went_on()


@contextmanager
def its_parent_busy(host: Host, pid: int, *, needed: bool) -> Iterator[None]:
    """Stop the launcher: it ends the other rank at once, and then either may be seen first."""
    if not needed:
        yield
        return
    parent = host.run(["sh", "-c", f"cut -d' ' -f4 /proc/{pid}/stat"]).stdout.strip()
    host.run(["kill", "-STOP", parent])
    try:
        yield
    finally:
        host.run(["kill", "-CONT", parent], check=False)


async def is_stopped(pair: Pair, pid: int) -> bool:
    return pid in pair.stopped_on("n1")


def kill(host: Host, pid: int) -> None:
    host.run(["kill", f"-{signal.SIGKILL.value}", str(pid)])


async def died_and_came_back(pair: Pair, action: str, snapshot: str) -> None:
    """The other worker was let go (and so saw its peer's end); the last snapshot is as it was."""
    await pair.aborted(action)

    async def ended() -> bool:
        view = await pair.job()
        return view is not None and view.state == "exited"

    await until("the end of both workers", ended)
    await heard(pair, "n0", "lost a peer")
    await pair.nothing_left()
    pair.behave()
    back = await pair.restore(snapshot)
    assert back.restore is not None
    assert back.restore.snapshot == snapshot
    await pair.went_on()
