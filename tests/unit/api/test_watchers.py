"""Watchers: what they are told, and that a slow one harms only itself."""

import pytest
from allstop.v1 import shim_pb2

from coordinator.api.identity import attempt_id, restore_id
from coordinator.api.watchers import Watcher, Watchers
from coordinator.core import commands
from coordinator.core.errors import Busy, LinkError
from coordinator.core.model import Failure


def news(
    state: str, *, last: bool = False, reason: str = "", action: str = "a"
) -> commands.Announce:
    return commands.Announce(
        action, state, reason, 1.5, awaited=((1, "node-1", (2, 3), 0.25),), expected=2, last=last
    )


async def heard(watcher: Watcher) -> list[str]:
    return [f"{event.state} {event.reason}".strip() async for event in watcher.events()]


async def test_a_watcher_hears_every_state_up_to_the_last() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    for state in ("HOLDING", "PARKING"):
        watchers.announce(news(state))
    watchers.announce(news("HOLDING", action="another"))
    watchers.announce(news("COMMITTED", last=True))
    watchers.announce(news("HOLDING"))
    assert await heard(watcher) == ["HOLDING", "PARKING", "COMMITTED"]


async def test_unread_news_of_one_state_are_one() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    for count in range(1000):
        watchers.announce(news("PARKING", reason=f"{count} of 1000"))
    watchers.announce(news("ABORTED", last=True))
    assert await heard(watcher) == ["PARKING 999 of 1000", "ABORTED"]


async def test_the_message_has_everything() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    watchers.announce(
        commands.Announce(
            "a", "ABORTED", "because", 1.5, ((1, "n", (2, 3), 0.25),), 2, True, Failure("Busy", "x")
        )
    )
    (event,) = [event async for event in watcher.events()]
    assert (event.elapsed_ms, event.expected, event.last) == (1500, 2, True)
    assert (event.awaited[0].ranks[:], event.awaited[0].age_ms) == ([2, 3], 250)
    assert event.failure.kind == "Busy"


async def test_a_slow_watcher_is_dropped_and_told_why() -> None:
    watchers = Watchers(limit=3)
    slow, quick = watchers.open("a"), watchers.open("a")
    reading = quick.events()
    for index in range(9):
        watchers.announce(news(f"STATE-{index}"))
        assert (await anext(reading)).state == f"STATE-{index}"
    with pytest.raises(LinkError, match="dropped"):
        await heard(slow)


async def test_the_last_word_reaches_even_a_full_watcher() -> None:
    watchers = Watchers(limit=2)
    watcher = watchers.open("a")
    for state in ("HOLDING", "PARKING"):
        watchers.announce(news(state))
    watchers.announce(news("COMMITTED", last=True))
    assert await heard(watcher) == ["HOLDING", "PARKING", "COMMITTED"]


async def test_a_refusal_is_raised_as_what_it_is() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    watchers.refuse(commands.Refuse("a", Failure("Busy", "attempt b has the job", job="llm")))
    with pytest.raises(Busy, match="attempt b"):
        await heard(watcher)


async def test_bytes_are_summed_over_workers_and_told_now_and_then() -> None:
    now = [0.0]
    watchers = Watchers(clock=lambda: now[0])
    watcher = watchers.open("a")
    watchers.announce(news("PERSISTING"))

    def progress(worker: int, done: int) -> None:
        watchers.progressed(
            shim_pb2.Progress(action="a", worker=worker, done_bytes=done, total_bytes=100)
        )

    reading = watcher.events()
    assert (await anext(reading)).total_bytes == 0
    now[0] = 1.0
    progress(0, 10)
    event = await anext(reading)
    assert (event.done_bytes, event.total_bytes) == (10, 100)
    progress(1, 20)  # too soon to be told
    now[0] = 2.0
    progress(1, 30)
    event = await anext(reading)
    assert (event.done_bytes, event.total_bytes) == (40, 200)
    watchers.announce(news("COMMITTING"))
    assert (await anext(reading)).total_bytes == 0
    watchers.progressed(shim_pb2.Progress(action="nobody's"))


async def test_the_end_of_the_leadership_ends_watching() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    watchers.announce(news("PARKING"))
    watchers.end(LinkError("another leads"))
    with pytest.raises(LinkError, match="another leads"):
        watchers.open("llm-1")  # nobody would ever tell it anything
    with pytest.raises(LinkError, match="another leads"):
        await heard(watcher)


async def test_a_closed_watcher_is_told_nothing_more() -> None:
    watchers = Watchers()
    watcher = watchers.open("a")
    watchers.close(watcher)
    watchers.close(watcher)
    watchers.announce(news("PARKING"))
    watcher.end(LinkError("nothing was told"))
    with pytest.raises(LinkError, match="nothing was told"):
        await heard(watcher)


def test_ids_are_readable_sorted_and_unique() -> None:
    made = [attempt_id("llm", 1_795_958_695 + second) for second in range(3)]
    assert made[0].startswith("llm-20261129-132455-")
    assert made == sorted(made)
    assert len({attempt_id("llm", 0) for _ in range(100)}) == 100
    assert restore_id("llm", 0).startswith("llm-19700101-000000-r-")
