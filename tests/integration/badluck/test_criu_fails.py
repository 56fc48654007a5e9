"""CRIU fails on one node: the others go on, nothing stays, and its own words are kept."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from coordinator.core.errors import DriverError
from lab.deployment import allstop
from tests.integration.badluck.kit import JOB, NODES, Action, Pair, heard, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

SAID = "a process has anon_inode:[made-up] open"
OWN_WORDS = "Unknown shit 600 (anon_inode:[made-up])"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("says", (SAID, OWN_WORDS)),
        ("dies", ("SIGKILL",)),
        ("full", ("criu cannot dump",)),
    ],
)
async def test_criu_fails_on_one_node(pair: Pair, how: str, words: tuple[str, ...]) -> None:
    pair.tell_criu("n1", how)
    attempt = pair.checkpoint()
    failure = await attempt.failed()
    where = failure.where
    assert (where.worker, where.node, where.phase) == (1, "n1", "DUMP"), failure.to_fields()
    await pair.aborted(attempt.events[0].action, *words)
    shown = await asyncio.to_thread(
        subprocess.run,
        [*allstop("show"), attempt.events[0].action, "--coordinator", pair.deployment.socket],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ABORTED" in shown.stdout
    for word in words:
        assert word in shown.stdout, shown.stdout
    await pair.went_on(failure)


async def test_criu_is_killed_while_it_holds_the_tree(pair: Pair) -> None:
    """What it held goes on, or has died of it (ADR 2) and is named; nobody else comes to harm."""
    taken = await pair.snapshot()
    pair.tell_criu("n1", "killed")
    attempt = pair.checkpoint()
    failure = await attempt.failed()
    where = failure.where
    assert (where.worker, where.node) == (1, "n1"), failure.to_fields()
    await pair.aborted(attempt.events[0].action, "SIGKILL")
    await pair.nothing_left()
    before = pair.steps()

    async def decided() -> bool:
        view = await pair.job()
        ahead = all(now > before[rank] for rank, now in pair.steps().items())
        return ahead or (view is not None and view.state == "exited")

    await until("that the job goes on, or is said to have ended", decided)
    view = await pair.job()
    assert view is not None
    if view.state == "exited":
        await heard(pair, "n0", "lost a peer")  # it ran, and saw it
        pair.behave()
        await pair.restore(taken.snapshot)
    await pair.went_on()


async def test_criu_cannot_restore_on_one_node(pair: Pair) -> None:
    taken = await pair.snapshot()
    pair.tell_criu("n1", "missing")
    restore = Action(pair.client.restore(JOB))
    failure = await restore.failed()
    assert isinstance(failure, DriverError), failure.to_fields()
    where = failure.where
    assert (where.job, where.worker, where.node, where.phase) == (JOB, 1, "n1", "RESTORE")
    assert "/made/up is missing on this node" in failure.what
    shown = (await pair.client.show(restore.events[0].action)).restore
    assert shown is not None
    assert shown.state == "FAILED"
    await pair.nothing_left()
    assert [pair.ranks_on(node) for node in NODES] == [0, 0]  # nobody runs half a job
    pair.behave()
    back = await pair.restore()
    assert back.restore is not None
    assert back.restore.snapshot == taken.snapshot
    await pair.went_on()


async def test_criu_hangs_on_one_node(pair: Pair) -> None:
    pair.tell_criu("n1", "hangs")
    attempt = pair.checkpoint(deadline_s=6.0)
    failure = await attempt.failed()
    where = failure.where
    assert (where.worker, where.node, where.phase) == (1, "n1", "DUMP"), failure.to_fields()
    await pair.aborted(attempt.events[0].action, "worker 1 on n1")
    await pair.went_on(failure)


async def test_criu_is_gone_from_one_node(pair: Pair) -> None:
    pair.criu_of("n1").unlink()
    failure = await pair.checkpoint().failed()
    pair.criu_of("n1")
    where = failure.where
    assert (where.worker, where.node) == (1, "n1"), failure.to_fields()
    assert where.phase in ("PREFLIGHT", "HOLD")  # nobody was stopped for it
    assert "CRIU" in "\n".join((failure.what, *failure.details))
    await pair.went_on(failure)
