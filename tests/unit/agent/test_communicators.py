"""Orders to a worker whose communicators are rebuilt: what is awaited, who is named.

The ranks are the test's: it says how each stands in the page.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio
from allstop.v1 import shim_pb2

from coordinator.core.model import Severity
from tests.unit.agent.communicating import Page, until_written
from tests.unit.agent.rig import Rig
from worker_shim.agent import rebuilding
from worker_shim.agent.worker import Worker
from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_FAILED,
    COMMUNICATORS_REBUILDING,
    COMMUNICATORS_UP,
)
from worker_shim.nccl.launching import KVS_FILE


@pytest.fixture
def page(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr(Worker, "nccl", "rebuild")
    made = Page()
    rig.hook.page = made
    yield made
    rig.drivers.endpoint.close()


def meetings(rig: Rig) -> list[shim_pb2.Meeting]:
    return [message.meeting for message in rig.sent if message.HasField("meeting")]


async def test_they_are_down_before_the_dump_and_not_before_all_are_parked(
    rig: Rig, page: Page
) -> None:
    await rig.launch()
    await rig.to("PARK")
    assert page.torn == 0
    await rig.done("DUMP", cut="CUT_STEP")
    assert set(page.stands.values()) == {COMMUNICATORS_DOWN}
    resumed = await rig.done("RESUME")
    assert {arrival.rank for arrival in resumed.arrivals} == {0, 1}
    assert rig.worker.rebuilding == ""
    assert [said.leave for said in meetings(rig)][-1]
    assert page.hold == 0


async def test_a_rank_that_cannot_destroy_them_is_named_and_the_undo_brings_them_back(
    rig: Rig, page: Page
) -> None:
    await rig.launch()
    await rig.to("PARK")
    page.stuck = {1}
    late = await rig.order("DUMP", cut="CUT_STEP", deadline_s=0.3)
    assert late.failure.rank == 1
    assert "did not destroy the NCCL communicators" in late.failure.what
    page.stuck = set()
    await rig.done("UNDO")
    assert (rig.worker.directory / KVS_FILE).exists(), "before the ranks were let go"
    assert rig.free()


async def test_who_does_not_come_is_named_and_the_worker_runs(rig: Rig, page: Page) -> None:
    await rig.launch()
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    page.stuck = {1}
    late = await rig.order("RESUME", deadline_s=0.5)
    assert (late.failure.kind, late.failure.rank) == ("DeadlinePassed", 1)
    assert "has not begun to rebuild" in late.failure.what
    assert rig.worker.state == "running"
    (found,) = rebuilding.findings(rig.worker)
    assert (found.severity, found.rank) == (Severity.REFUSE, 1)
    page.stands[1] = COMMUNICATORS_UP
    await rebuilding.watch(rig.worker)
    assert rebuilding.findings(rig.worker) == ()
    assert rig.drivers.endpoint.meetings.of("llm/0") is None


async def test_who_waits_for_ranks_of_others_says_for_whom(rig: Rig, page: Page) -> None:
    await rig.launch()
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    page.stuck = {0, 1}
    page.stands = dict.fromkeys(page.stands, COMMUNICATORS_REBUILDING)
    since = rig.give("RESUME", deadline_s=3.0)
    host, _, prefix = (await until_written(rig)).strip().partition("/")
    rig.drivers.endpoint.meetings.came(rig.drivers.endpoint.meetings.of("llm/0"), [0, 1])  # type: ignore[arg-type]
    async with redis.asyncio.Redis(host="127.0.0.1", port=int(host.split(":")[1])) as rank:
        assert await rank.get(f"{prefix}/restore/1/uid") is None
        asked = await rig.until(lambda message: message.meeting.ask and message.meeting, since)
        answer = shim_pb2.Meeting(
            epoch=1, job=asked.job, action=asked.action, came=[0, 1, 3], ask=True
        )
        rig.agent.on_message(shim_pb2.CoordinatorMessage(meeting=answer))
        late = await rig.answer("RESUME", since)
    assert "for rank 2 of other workers" in late.failure.what
    assert any("restore/1/uid is not set by anybody" in line for line in late.failure.details)


@pytest.mark.parametrize("what", ["failed", "ended"])
async def test_a_rank_that_fails_or_ends_is_named_at_once(rig: Rig, page: Page, what: str) -> None:
    await rig.launch()
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP")
    page.stuck = {1}
    since = rig.give("RESUME", deadline_s=30)
    await until_written(rig)
    if what == "failed":
        page.stands[1], page.results[1] = COMMUNICATORS_FAILED, 3
    else:
        await rig.until(lambda message: message.HasField("meeting"), since)
        await asyncio.sleep(0.05)
        del page.stands[1]
    late = await rig.answer("RESUME", since)
    assert late.failure.rank == 1
    assert late.took_ms < 10_000


async def test_the_file_is_the_ranks_alone_and_new_for_each_release(rig: Rig, page: Page) -> None:
    await rig.launch()
    said = []
    for action in ("a1", "a2"):
        await rig.to("PARK", action)
        await rig.done("DUMP", action, cut="CUT_STEP")
        await rig.done("RESUME", action)
        path = rig.worker.directory / KVS_FILE
        said.append(path.read_text())
        assert said[-1].startswith("127.0.0.1:")
        assert f"/{action}." in said[-1]
    assert len({text.rpartition(".")[2] for text in said}) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_timer_lets_them_meet_too(rig: Rig, page: Page) -> None:
    await rig.launch()
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP", hold_s=0.2)
    page.stuck = {0, 1}
    await asyncio.wait_for(rig.agent._lane("llm", 0).timer.ran_out.wait(), 5)
    assert "/a1." in await until_written(rig)
    async with asyncio.timeout(5):
        while page.hold:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert rig.worker.rebuilding == "a1"


async def test_a_timer_that_runs_out_while_they_meet_undoes_nothing(rig: Rig, page: Page) -> None:
    """The worker was let go: what is being stored of it stays good."""
    await rig.launch()
    await rig.to("PARK")
    await rig.done("DUMP", cut="CUT_STEP", hold_s=0.4)
    page.stuck = {1}
    since = rig.give("RESUME", deadline_s=20)
    await until_written(rig)
    await asyncio.wait_for(rig.agent._lane("llm", 0).timer.ran_out.wait(), 5)
    await rig.done("PERSIST")
    page.stands[1] = COMMUNICATORS_UP
    resumed: Any = await rig.answer("RESUME", since)
    assert not resumed.HasField("failure"), resumed.failure


async def test_after_a_new_welcome_it_is_all_told_again(rig: Rig, page: Page) -> None:
    await rig.launch()
    opened = rig.drivers.endpoint.meetings
    prefix = opened.open("llm", "llm/0", "a1")
    port = await rig.drivers.endpoint.start()
    async with redis.asyncio.Redis(host="127.0.0.1", port=port) as rank:
        await rank.set(f"{prefix}/uid", b"\0")
    before = len(rig.sent)
    welcome = shim_pb2.Welcome(epoch=2, coordinator="c")
    rig.agent.on_message(shim_pb2.CoordinatorMessage(welcome=welcome))
    await rig.until(lambda message: message.meeting.keys, before)
    kinds = [message.WhichOneof("body") for message in rig.sent[before:]]
    assert kinds[0] == "hello"
    told = meetings(rig)[-1]
    assert [(key.name, key.value) for key in told.keys] == [(b"uid", b"\0")]
    theirs = shim_pb2.Meeting(epoch=1, job="llm", action="a1")
    theirs.keys.add(name=b"old", value=b"v")
    rig.agent.on_message(shim_pb2.CoordinatorMessage(meeting=theirs))
    meeting = opened.of("llm/0")
    assert meeting is not None
    assert meeting.table.get(b"old") is None, "of a leader of the past"
