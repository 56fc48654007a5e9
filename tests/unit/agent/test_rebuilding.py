"""Ranks whose communicators are destroyed: what is left, and what an undo leaves them in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from allstop.v1 import shim_pb2

from coordinator.core.model import Severity
from tests.unit.agent.communicating import Page, until_written
from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import Rig
from worker_shim.agent import communicators, rebuilding
from worker_shim.agent.looking import Looker
from worker_shim.agent.worker import Worker
from worker_shim.cuda.fake import Held
from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_GOING_DOWN,
    COMMUNICATORS_NONE,
    COMMUNICATORS_REBUILDING,
    COMMUNICATORS_UP,
)
from worker_shim.nccl import live
from worker_shim.nccl.launching import KVS_FILE

EVIDENCE = ("/dev/shm/nccl-x", "thread NCCL Service 0")


@pytest.fixture
async def page(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Worker, "nccl", "rebuild")
    rig.hook.page = made = Page()
    await rig.launch()
    yield made
    rig.drivers.endpoint.close()


def came(rig: Rig) -> set[int]:
    return {rank for message in rig.sent for rank in message.meeting.came}


async def look(rig: Rig) -> None:
    """As the reports do, the preflight included."""
    await Looker().look(rig.worker, busy=False)


def told(rig: Rig) -> list[tuple[Severity, int, str]]:
    found = [each for each in rig.worker.findings if each.code == "communicators"]
    return [(each.severity, each.rank, each.text) for each in found]


# -- before the dump -------------------------------------------------------------------------------


async def test_they_are_down_before_any_device_is_locked(rig: Rig, page: Page) -> None:
    rig.cuda.held = {ROOT: Held("GPU-0"), RANK: Held("GPU-1")}
    seen: list[tuple[str, set[int]]] = []

    def seeing(call: str) -> Any:
        real = getattr(rig.cuda, call)

        async def wrapped(*args: Any, **more: Any) -> Any:
            seen.append((call, set(page.stands.values())))
            return await real(*args, **more)

        return wrapped

    for call in ("processes", "lock", "checkpoint"):
        setattr(rig.cuda, call, seeing(call))
    await rig.to("PARK")
    assert page.torn == 0
    await rig.done("GPU_LOCK", cut="CUT_STEP")
    await rig.done("GPU_SAVE")
    down = {COMMUNICATORS_DOWN}
    assert seen == [("processes", down), *[("lock", down)] * 2, *[("checkpoint", down)] * 2]
    await rig.done("UNDO")
    assert rig.free()


@pytest.mark.parametrize("state", [COMMUNICATORS_UP, COMMUNICATORS_DOWN, COMMUNICATORS_NONE])
@pytest.mark.parametrize("pid", [ROOT, RANK])
async def test_what_is_left_is_found_in_every_process(
    rig: Rig, page: Page, monkeypatch: pytest.MonkeyPatch, state: int, pid: int
) -> None:
    await rig.to("PARK")
    page.stands = dict.fromkeys(page.stands, state)
    monkeypatch.setattr(live, "evidence", lambda tree: {pid: EVIDENCE})
    failed = (await rig.order("DUMP", cut="CUT_STEP")).failure
    who = f"rank 0 (pid {pid})" if pid == RANK else f"process {pid}"
    assert failed.what.startswith(f"{who} still has {EVIDENCE[0]}")
    assert "dump" not in rig.images.calls
    await rig.done("UNDO")


async def test_ranks_that_have_none_left_meet_anew_all_the_same(rig: Rig, page: Page) -> None:
    """Such as those that were held again before they had begun to rebuild."""
    await rig.to("PARK")
    page.stands = dict.fromkeys(page.stands, COMMUNICATORS_DOWN)
    await rig.done("DUMP", cut="CUT_STEP")
    await rig.done("RESUME")
    assert "/a1." in (rig.worker.directory / KVS_FILE).read_text()


# -- an undo ---------------------------------------------------------------------------------------


async def test_a_destroying_that_outlasts_its_order_is_met_after_the_undo(
    rig: Rig, page: Page
) -> None:
    await rig.to("PARK")
    page.stuck = {1}
    late = await rig.order("DUMP", cut="CUT_STEP", deadline_s=5.0)
    assert "rank 1 (pid" in late.failure.what
    assert late.took_ms < 5000, "while somebody listens"
    await rig.done("UNDO")
    host, _, prefix = (await until_written(rig)).strip().partition("/")
    await look(rig)
    ((severity, rank, text),) = told(rig)
    assert (severity, rank) == (Severity.REFUSE, 1)
    assert "has not finished destroying its communicators after a1" in text
    again = await rig.order("HOLD", "a2", cut="CUT_STEP")
    assert "has not finished destroying" in again.failure.what

    page.prepared(1)
    await look(rig)
    async with redis.asyncio.Redis(host="127.0.0.1", port=int(host.split(":")[1])) as client:
        assert await client.set(f"{prefix}/uid", b"v"), "its prefix still means something"
    page.stands[1] = COMMUNICATORS_UP
    await look(rig)
    assert told(rig) == []
    assert rig.drivers.endpoint.meetings.of("llm/0") is None
    page.stuck = set()
    await rig.to("DUMP", "a3")


async def test_nobody_is_let_go_who_has_not_seen_that_the_others_wait_for_it(
    rig: Rig, page: Page
) -> None:
    await rig.to("PARK")
    page.blind = {1}
    await rig.order("DUMP", cut="CUT_STEP", deadline_s=0.2)
    since = rig.give("UNDO")
    looks = 0
    real = page.communicators

    def seeing() -> Any:
        nonlocal looks
        looks += 1
        if looks == 10:
            page.stands[1] = COMMUNICATORS_GOING_DOWN
        return real()

    page.communicators = seeing  # type: ignore[method-assign]
    undone = await rig.answer("UNDO", since)
    assert not undone.HasField("failure")
    assert page.let_go_with == {0: COMMUNICATORS_DOWN, 1: COMMUNICATORS_GOING_DOWN}


async def test_one_that_never_sees_it_does_not_hold_the_others_for_ever(
    rig: Rig, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators, "BEGIN_S", 0.05)
    await rig.to("PARK")
    page.blind = {1}
    await rig.order("DUMP", cut="CUT_STEP", deadline_s=0.2)
    await rig.done("UNDO")
    assert rig.free()


@pytest.mark.parametrize("tear_down", [True, False])
async def test_an_undo_says_whether_other_workers_have_begun(
    rig: Rig, page: Page, tear_down: bool
) -> None:
    await rig.to("PARK")
    await rig.done("UNDO", tear_down=tear_down)
    assert rig.free()
    assert (rig.worker.directory / KVS_FILE).exists() is tear_down
    assert set(page.let_go_with.values()) == {COMMUNICATORS_DOWN if tear_down else COMMUNICATORS_UP}
    assert set(page.stands.values()) == {COMMUNICATORS_UP}


async def test_an_undo_that_overtakes_the_order_to_destroy_does_what_it_wanted(
    rig: Rig, page: Page
) -> None:
    await rig.to("PARK")
    since = rig.give("DUMP", cut="CUT_STEP")
    rig.give("UNDO", tear_down=True)
    assert (await rig.answer("DUMP", since)).HasField("failure")
    assert not (await rig.answer("UNDO", since)).HasField("failure")
    assert set(page.let_go_with.values()) == {COMMUNICATORS_DOWN}
    assert rig.free()


async def test_ranks_that_cannot_be_told_where_to_meet_stay_parked(
    rig: Rig, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    with monkeypatch.context() as full:
        full.setattr(rig.drivers.endpoint, "start", _no_room)
        failed = (await rig.order("UNDO")).failure
        assert "cannot be let go" in failed.what
        assert any("cannot be told where to meet" in line for line in failed.details)
        assert (rig.worker.state, page.hold != 0) == ("faulted", True)
    await rig.done("UNDO", epoch=2)
    assert rig.free()
    assert set(page.stands.values()) == {COMMUNICATORS_UP}


async def _no_room() -> int:
    raise OSError(28, "No space left on device")


# -- who has come ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMUNICATORS_UP, COMMUNICATORS_NONE])
async def test_who_is_through_or_has_none_has_come(rig: Rig, page: Page, state: int) -> None:
    """Others would be told that they wait for it."""
    page.stands[1] = state
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    await rig.done("RESUME")
    assert came(rig) == {0, 1}


async def test_a_worker_without_any_comes_too(rig: Rig, page: Page) -> None:
    page.stands = dict.fromkeys(page.stands, COMMUNICATORS_NONE)
    await rig.to("RESUME")
    assert came(rig) == {0, 1}
    assert rig.worker.rebuild is None


async def test_what_each_communicator_waits_for_is_told_meanwhile_and_in_the_end(
    rig: Rig, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has come; rank 0 has one communicator and waits in another, rank 1 has none."""
    monkeypatch.setattr(rebuilding, "TOLD_S", 0.05)
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    page.stuck = {0, 1}
    page.stands = dict.fromkeys(page.stands, COMMUNICATORS_REBUILDING)
    since = rig.give("RESUME", deadline_s=2.5)
    host, _, prefix = (await until_written(rig)).strip().partition("/")
    owned: dict[int, int] = {}
    monkeypatch.setattr(rebuilding, "owners", lambda ports, pids: owned)
    url: dict[str, Any] = {"host": "127.0.0.1", "port": int(host.split(":")[1])}
    async with redis.asyncio.Redis(**url) as zero, redis.asyncio.Redis(**url) as one:
        await zero.set(f"{prefix}/one/uid", b"v")
        await zero.get(f"{prefix}/two/uid")
        await one.ping()
        await one.exists(f"{prefix}/three/uid")
        meeting = rig.drivers.endpoint.meetings.of("llm/0")
        assert meeting is not None
        ports = [visitor.port for visitor in meeting.visitors]
        owned.update(zip(ports, (RANK, RANK + 1), strict=True))
        meanwhile = await rig.until(lambda message: _of_rank(message, rig, 0))
        assert "waits for two/uid, which nobody has set" in meanwhile
        asked = await rig.until(lambda message: message.meeting.ask and message.meeting, since)
        everybody = {"job": asked.job, "action": asked.action, "came": [0, 1, 2, 3], "ask": True}
        rig.agent.on_message(
            shim_pb2.CoordinatorMessage(meeting=shim_pb2.Meeting(epoch=1, **everybody))
        )
        late = (await rig.answer("RESUME", since)).failure
    assert "though every rank has come" in late.what
    assert f"rank 1 (pid {RANK + 1}) has not read one/uid" in late.what
    assert "one/uid is set; set or read by rank 0, awaited by none here" in late.details
    assert "two/uid is not set by anybody; set or read by none, awaited by rank 0 here" in (
        late.details
    )


def _of_rank(message: shim_pb2.ShimMessage, rig: Rig, rank: int) -> str:
    rig.agent._loop.call_soon(rig._news.set)
    return next((text for severity, of, text in told(rig) if of == rank and "waits" in text), "")


# -- when it lasts ---------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The time that a rebuild has is counted by it."""
    made = SimpleNamespace(now=1000.0)
    moved = SimpleNamespace(monotonic=lambda: made.now)
    with monkeypatch.context() as context:
        context.setattr(rebuilding, "time", moved)
        context.setattr(communicators, "time", moved)
        yield made


async def test_who_lacks_them_for_too_long_is_faulted_until_they_come(
    rig: Rig, page: Page, clock: SimpleNamespace
) -> None:
    await rig.to("PARK")
    page.stuck = {0}
    await rig.order("DUMP", cut="CUT_STEP", deadline_s=0.2)
    await rig.done("UNDO")
    clock.now += communicators.REBUILD_S - 1
    await look(rig)
    assert rig.worker.state == "running"
    clock.now += 2
    await look(rig)
    assert rig.worker.state == "faulted", "a policy that restores failed jobs acts on that"
    await look(rig)
    assert [text.partition("; ")[2] for _, _, text in told(rig)] == [
        "within 180 s that did not change: restore the job"
    ]
    await rig.done("UNDO", epoch=2)
    await look(rig)
    assert rig.worker.state == "faulted", "an undo that comes again mends nothing"
    page.stands[0] = COMMUNICATORS_UP
    await look(rig)
    assert (rig.worker.state, told(rig)) == ("running", [])


async def test_an_order_that_waits_has_its_own_time(
    rig: Rig, page: Page, clock: SimpleNamespace
) -> None:
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    page.stuck = {0}
    since = rig.give("RESUME", deadline_s=600)
    await until_written(rig)
    async with asyncio.timeout(5):
        while page.hold or rig.worker.rebuild is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    clock.now += communicators.REBUILD_S + 1
    await rebuilding.watch(rig.worker)
    assert rig.worker.state == "running"
    page.stands[0] = COMMUNICATORS_UP
    assert not (await rig.answer("RESUME", since)).HasField("failure")


async def test_of_a_worker_that_is_gone_nothing_is_awaited(rig: Rig, page: Page) -> None:
    await rig.to("PARK")
    page.stuck = {0}
    await rig.order("DUMP", cut="CUT_STEP", deadline_s=0.2)
    await rig.done("UNDO")
    rig.process.exit(1)
    async with asyncio.timeout(5):
        while rig.worker.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await look(rig)
    assert (rig.worker.rebuild, rig.worker.state) == (None, "exited")
