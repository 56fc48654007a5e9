"""Ranks as workers of their own: saved and put back together, ended together, undone together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES, until
from tests.integration.badluck.sharing import kept
from tests.integration.ranks.kit import Trees, beside

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

STILL_S = 0.5  # a step takes some 25 ms

Start = Callable[..., Awaitable[Trees]]


@pytest_asyncio.fixture(scope="module")
async def _shared(
    tmp_path_factory: pytest.TempPathFactory, criu_path: str
) -> AsyncIterator[Callable[[], Awaitable[Trees]]]:
    def make(stack: ExitStack) -> Trees:
        root = tmp_path_factory.mktemp("trees")
        return Trees(stack.enter_context(Lab(root / "lab", [*NODES, "n2"])), root, criu_path)

    async with kept(make) as sound:
        yield sound


@pytest_asyncio.fixture
async def trees(_shared: Callable[[], Awaitable[Trees]]) -> AsyncIterator[Trees]:
    """Two ranks on n0 and two on n1, stepping; n2 is a host without anything."""
    trees = await _shared()
    yield trees
    trees.behave()


@pytest_asyncio.fixture
async def start_trees(tmp_path: Path, criu_path: str) -> AsyncIterator[Start]:
    """`await start_trees("n2", spares=("n2",))` gives a job of the test's own with more hosts."""
    with ExitStack() as labs:
        made: list[Trees] = []

        async def start(*hosts: str, spares: tuple[str, ...], **how: object) -> Trees:
            lab = labs.enter_context(Lab(tmp_path / "lab", [*NODES, *hosts]))
            made.append(Trees(lab, tmp_path, criu_path, **how))  # type: ignore[arg-type]
            await made[-1].start(spares=spares)
            return made[-1]

        yield start
        for trees in made:
            await trees.stop()


async def test_a_lost_node_s_ranks_come_back_together_on_a_spare(start_trees: Start) -> None:
    trees = await start_trees("n2", spares=("n2",))
    taken = await trees.snapshot()
    assert [(one.worker, one.node, len(one.ranks)) for one in taken.workers] == [
        (0, "n0", 1), (1, "n0", 1), (2, "n1", 1), (3, "n1", 1),
    ]  # fmt: skip
    assert len(beside(taken.workers, 1)) == 1  # to rank 0, over the node's own address
    await trees.moves()
    trees.host("n1").power_off()
    back = await trees.restore(taken.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == ["n0", "n0", "n2", "n2"]
    assert trees.ranks_on("n2") == 2
    await trees.nothing_left(("n0", "n2"))

    # Once more, of what was restored, and everything somewhere else.
    again = await trees.snapshot()
    assert again.step > taken.step
    trees.deployment.shims.pop("n1")
    shim = trees.deployment.shims.pop("n0")
    shim.terminate()
    assert shim.wait(30) == 128 + signal.SIGTERM
    trees.start_spare("n0")
    await until("n0", lambda: is_attached(trees, "n0"))
    back = await trees.restore(again.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == ["n0", "n0", "n2", "n2"]
    await trees.nothing_left(("n0", "n2"))


async def test_ranks_that_meet_on_loopback_move_to_another_host(start_trees: Start) -> None:
    trees = await start_trees("n2", spares=("n2",), names=("n0",), loopback=True)
    taken = await trees.snapshot()
    assert {one.node for one in taken.workers} == {"n0"}
    for rank in (1, 2, 3):
        (end,) = beside(taken.workers, rank)
        assert (end.local_address, end.remote_address) == ("127.0.0.1", "127.0.0.1")
    await trees.moves()
    shim = trees.deployment.shims.pop("n0")
    shim.terminate()  # out of reach they could be training on
    shim.wait(30)
    trees.host("n0").power_off()
    back = await trees.restore(taken.snapshot)
    assert back.restore is not None
    assert {place.to_node for place in back.restore.plan.placements} == {"n2"}
    assert trees.ranks_on("n2") == 4
    await trees.nothing_left(("n2",))


async def test_a_failed_attempt_lets_every_worker_of_the_node_go(trees: Trees) -> None:
    trees.tell_criu("n0", "says")
    failure = await trees.checkpoint().failed()
    assert (failure.where.node, failure.where.phase) == ("n0", "DUMP"), failure.to_fields()
    await trees.went_on(failure)


async def test_an_aborted_attempt_lets_every_worker_of_the_node_go(trees: Trees) -> None:
    trees.tell_criu("n1", "slow", "3")
    attempt = trees.checkpoint()
    action = await attempt.reached("DUMPING")

    async def both_stopped() -> bool:
        return len(trees.stopped_on("n1")) >= 2

    await until("the stop of both ranks", both_stopped)
    await trees.client.abort(action)
    await trees.went_on(await attempt.failed())


async def test_a_shim_that_is_killed_during_the_dump(trees: Trees) -> None:
    taken = await trees.snapshot()
    trees.tell_criu("n1", "slow", "3")
    attempt = trees.checkpoint()
    await attempt.reached("DUMPING")
    trees.signal("n1", signal.SIGKILL)
    failure = await attempt.failed()
    assert "n1 was lost" in failure.what, failure.to_fields()
    trees.deployment.shims.pop("n1").wait(10)
    trees.tell_criu("n1")
    trees.start_spare("n1")

    await until("n1, swept", lambda: is_attached(trees, "n1"))
    assert trees.left_on("n1") == []
    assert trees.ranks_on("n1") == 0
    back = await trees.restore(taken.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == ["n0", "n0", "n1", "n1"]
    await trees.went_on()


async def test_one_rank_ends_and_the_other_of_its_node_with_it(trees: Trees) -> None:
    """By their shim's hand: a rank that stalls does not notice that its peer is gone."""
    taken = await trees.snapshot()
    trees.tell(1, "stall")
    await until("that rank 1 stands still", lambda: stands_still(trees, 1))
    pid = await trees.pid_of(0)
    trees.host("n0").run(["kill", "-KILL", str(pid)])

    async def ended() -> bool:
        view = await trees.job()
        return view is not None and view.state == "exited"

    await until("the end of every worker", ended)
    view = await trees.job()
    assert view is not None
    codes = {worker.worker: worker.exit_code for worker in view.workers}
    assert (codes[0], codes[1]) == (-signal.SIGKILL, -signal.SIGTERM)
    # On n1 both lose their peer, and who notices later may be told first.
    assert {codes[2], codes[3]} in ({1}, {1, -signal.SIGTERM})
    await trees.nothing_left()
    trees.behave()
    back = await trees.restore(taken.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == ["n0", "n0", "n1", "n1"]
    await trees.went_on()


async def is_attached(trees: Trees, node: str) -> bool:
    view = await trees.node(node)
    return view is not None and view.state == "attached"


async def stands_still(trees: Trees, rank: int) -> bool:
    """Whether a rank takes no step for as long as it would take many."""
    before = trees.steps()[rank]
    await asyncio.sleep(STILL_S)
    return trees.steps()[rank] == before


@pytest.mark.parametrize("failing", [0, 5])
async def test_the_shim_ends_as_its_ranks_end(trees: Trees, failing: int) -> None:
    deployment = trees.deployment
    script = f"echo rank $RANK of $WORLD_SIZE; exit $((RANK * {failing}))"
    deployment.options = ("--criu", trees.criu)
    deployment.start_ranks(trees.host("n2"), "short", ranks=2, argv=["sh", "-c", script])
    assert deployment.shims.pop("n2").wait(30) == failing
    told = deployment.log("n2").read_text().splitlines()
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(told)
