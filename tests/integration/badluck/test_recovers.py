"""Real jobs that come back without a person, one kind of bad luck after another."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.api.values import Story
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState, When
from coordinator.core.model import RestoreState
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, POLICY, PROGRAMS, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

BACK = JobPolicy(JOB, on_failure=OnFailure.RESTORE, tries=1, grace_s=1.0, wait_s=60.0)
HUNG_S = 2.0
DAY_S = 86_400.0
STOP_RANKS = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <"$process/cmdline" | grep -q '[p]air.py rank'; then
        kill -STOP "${process#/proc/}"
    fi
done
"""


async def told(pair: Pair, *words: str, times: int = 1) -> Story:
    """Wait until so many lines of the story have all these words."""

    async def has() -> Story | None:
        story = await pair.client.story(JOB)
        lines = [line.text for line in story.lines]
        found = sum(all(word in line for word in words) for line in lines)
        return story if found >= times else None

    try:
        return await until(f"{words} in the story", has)  # type: ignore[no-any-return]
    except AssertionError as error:
        lines = (await pair.client.story(JOB)).lines
        raise AssertionError(f"{error}: " + "\n".join(line.text for line in lines)) from None


async def came_back(pair: Pair, times: int, snapshot: str = "") -> None:
    """It runs again, for so many times now, and steps."""
    await told(pair, f"the job runs from {snapshot}", times=times)
    await pair.moves()
    story = await pair.client.story(JOB)
    assert story.recovery.state is RecoveryState.WATCHING


async def test_ranks_that_die_hang_and_evaluate(start_pair: Start) -> None:
    policy = (*POLICY, "--policy", f"hung_s={HUNG_S:g}s")
    pair = await start_pair(policy=policy)
    await pair.client.set_policy(replace(BACK, tries=3))
    await told(pair, "is watched")
    taken = await pair.snapshot()

    pair.host("n1").run(["kill", "-KILL", str(await pair.pid_of(3))])
    await came_back(pair, 1, taken.snapshot)
    await told(pair, "the run has ended", "worker 1 on n1 ended with exit code 137")

    await pair.client.set_policy(replace(BACK, tries=3, hung=20.0))
    await pair.moves()
    pair.tell(2, "evaluate")
    assert await pair.said(2) == "evaluate"
    at = time.monotonic()

    async def evaluates() -> bool:
        view = await pair.job()
        assert view is not None
        ranks = [rank for worker in view.workers for rank in worker.ranks]
        assert view.state == "running"
        return any(rank.no_steps for rank in ranks) and time.monotonic() - at > 2 * HUNG_S

    await until("a long evaluation", evaluates)
    pair.untell(2)
    await pair.moves()
    assert "no step for" not in str(await pair.client.story(JOB))

    await pair.stall(2)
    await told(pair, "the run has ended", "no step for", "rank 2 on n1 at step")
    await told(pair, f"the job runs from {taken.snapshot}", times=2)
    pair.untell(2)
    await pair.moves()


async def test_a_poisoned_snapshot_is_left_behind(start_pair: Start) -> None:
    pair = await start_pair()
    await pair.client.set_policy(BACK)
    await told(pair, "is watched")
    good = await pair.snapshot()
    pair.tell(3, "poison")
    assert await pair.said(3) == "poisoned"
    bad = await pair.snapshot()
    pair.tell(3, "bite")
    await came_back(pair, 1, good.snapshot)
    story = await told(pair, f"{bad.snapshot} is left behind")
    lines = " | ".join(line.text for line in story.lines)
    assert "a crash loop: it has ended 2 times at step" in lines
    assert story.recovery.skipped == (bad.snapshot,)

    async def further() -> bool:
        return min(pair.steps().values()) > story.recovery.crash_step

    await until("further steps than ever before", further)
    pair.untell(3)
    await pair.snapshot()
    assert (await pair.client.story(JOB)).recovery.skipped == ()


async def test_a_shim_is_lost_and_there_is_no_spare_until_one_registers(start_pair: Start) -> None:
    pair = await start_pair()
    await pair.client.set_policy(BACK)
    await told(pair, "is watched")
    taken = await pair.snapshot()
    pair.signal("n1", signal.SIGKILL)
    story = await told(pair, "waits for nodes, 60 s at most")
    assert story.recovery.state is RecoveryState.WAITING
    pair.start_spare("n1")
    await came_back(pair, 1, taken.snapshot)
    view = await pair.job()
    assert view is not None
    assert view.nodes == ("n0", "n1")


async def test_a_spare_that_dies_in_a_restore_and_a_node_that_returns(start_pair: Start) -> None:
    pair = await start_pair("n2", "n3", spares=("n2", "n3"))
    await pair.client.set_policy(BACK)
    await told(pair, "is watched")
    taken = await pair.snapshot()
    pair.tell_criu("n2", "wait-restore")
    pair.host("n1").cut_off()

    async def restoring() -> bool:
        story = await pair.client.story(JOB)
        if not story.recovery.snapshot:
            return False
        view = await pair.job()
        shown = await pair.client.show(view.action) if view is not None and view.action else None
        record = shown.restore if shown is not None else None
        return record is not None and record.state is RestoreState.RESTORING

    await until("a restore that waits for n2", restoring)
    pair.host("n2").power_off()
    await came_back(pair, 1, taken.snapshot)
    story = await told(pair, "failed, and not of its snapshot", "n2")
    assert story.recovery.skipped == ()
    view = await pair.job()
    assert view is not None
    assert view.nodes == ("n0", "n3")

    assert pair.ranks_on("n1") == 2
    # Stopped, or they might end by themselves when their peers answer with RST.
    pair.host("n1").run(["sh", "-c", STOP_RANKS])
    pair.host("n1").reconnect()
    await told(pair, "n1 is fenced: worker 1")

    async def gone() -> bool:
        return pair.ranks_on("n1") == 0

    await until("the end of the old ranks", gone)
    await pair.moves()
    after = await pair.job()
    assert after is not None
    assert (after.nodes, after.job.incarnation) == (view.nodes, view.job.incarnation)


async def test_the_coordinators_clock_is_set_back_and_forward(
    start_pair: Start, tmp_path: Path
) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    env = {"PYTHONPATH": str(PROGRAMS / "clock"), "CLOCK_OFFSET": str(offset)}
    pair = await start_pair(plane_env=env)
    await pair.snapshot()
    for jump_s in (-DAY_S, DAY_S):
        await pair.client.set_policy(replace(BACK, when=When.SECONDS, interval_s=1.0))
        offset.write_text(str(jump_s))
        await another(pair)
        await pair.client.set_policy(BACK)
        newest = await last_one(pair)
        restored = await pair.restore()  # the newest, where nobody says which
        assert restored.restore is not None
        assert restored.restore.snapshot == newest
    pair.host("n1").run(["kill", "-KILL", str(await pair.pid_of(3))])
    await came_back(pair, 1, newest)


async def another(pair: Pair) -> None:
    """Wait for two more snapshots, which do not come too soon."""
    before = len((await pair.client.snapshots(JOB)).snapshots)
    began = time.monotonic()

    async def there() -> int:
        more = len((await pair.client.snapshots(JOB)).snapshots) - before
        return more if more >= 2 else 0

    more = await until("two more snapshots", there)
    assert more <= 2 + (time.monotonic() - began) / 1.0


async def last_one(pair: Pair) -> str:
    """Take a snapshot once those that were due are over."""

    async def idle() -> bool:
        view = await pair.job()
        return view is not None and not view.action

    await until("the end of what was due", idle)
    return (await pair.snapshot()).snapshot
