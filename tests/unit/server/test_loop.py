"""The loop between events and effects: order, wake-ups, defects, and a right that has ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.core import commands, events
from coordinator.core.errors import BugError, Fenced, IllegalEvent
from coordinator.core.model import AttemptState, Cut, JobRecord, Phase
from coordinator.server.inbox import Inbox
from coordinator.server.loop import ControlLoop
from coordinator.server.reign import Reign
from coordinator.store.memory import MemoryStore


class Scripted:
    """A core that answers as told, and notes what came."""

    def __init__(self, answer: Callable[[events.Event], list[commands.Command]]) -> None:
        self.answer = answer
        self.came: list[str] = []
        self.wakeups: list[float | None] = []
        self.done = asyncio.Event()

    def handle(self, event: events.Event, now: float) -> list[commands.Command]:
        self.came.append(type(event).__name__)
        decided = self.answer(event)
        if not decided:
            self.done.set()
        return decided

    def next_wakeup(self) -> float | None:
        return self.wakeups.pop(0) if self.wakeups else None


class Effects:
    """Everything that the loop does."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.admit = self.defer = self.task = self.refuse_notice = self.ask_checkpoint = (
            self.done.append
        )
        self.ask_restore = self.ask_drain = self.stay = self.done.append
        self.order = self.fence = self.write = self.announce = self.refuse = self.done.append


def order(node: str) -> commands.SendOrder:
    return commands.SendOrder(node, 1, "llm", 0, "a", Phase.HOLD, 1.0)


REQUEST = events.CheckpointRequested("llm", "llm-1", Cut.STEP, False, 0, 0)


async def run(
    core: Scripted, *told: events.Event, check: Callable[[], None] = lambda: None
) -> Effects:
    """Run the loop over these events until the core has nothing more to say."""
    inbox, effects = Inbox(), Effects()
    loop = ControlLoop(core, inbox, effects, effects, effects, check=check)  # type: ignore[arg-type]
    for event in told:
        inbox.tell(event)
    running = asyncio.create_task(loop.run())
    waiting = asyncio.create_task(core.done.wait())
    await asyncio.wait([running, waiting], timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for task in (running, waiting):
        task.cancel()
    (ended, _) = await asyncio.gather(running, waiting, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        raise ended  # type: ignore[misc]
    return effects


async def test_effects_start_in_the_order_of_the_decisions() -> None:
    announce = commands.Announce("a", "HOLDING", "why", 0.0)
    refuse = commands.Refuse("b", None)  # type: ignore[arg-type]
    decided: dict[type, list[commands.Command]] = {
        events.NodeLost: [order("node-1"), announce, order("node-2")],
        events.NodeLeft: [refuse],
    }
    core = Scripted(lambda event: decided.get(type(event), []))
    effects = await run(
        core, events.NodeLost("n", "s", ""), events.NodeLeft("n", "s", ""), events.TimePassed()
    )
    assert effects.done == [order("node-1"), announce, order("node-2"), refuse]


async def test_the_clock_alone_is_news_when_a_wakeup_has_come() -> None:
    core = Scripted(lambda event: [])
    core.wakeups = [0.0, 0.0]  # long past
    await run(core)
    assert core.came[0] == "TimePassed"


async def test_an_event_that_cannot_be_harms_nothing_else() -> None:
    def answer(event: events.Event) -> list[commands.Command]:
        if isinstance(event, events.CheckpointRequested):
            raise IllegalEvent("no row for this")
        return [order("node-1")] if isinstance(event, events.NodeLost) else []

    effects = await run(
        Scripted(answer), REQUEST, events.NodeLost("n", "s", ""), events.TimePassed()
    )
    refused, sent = effects.done
    assert isinstance(refused, commands.Refuse)
    assert (refused.action, refused.failure.kind) == ("llm-1", "IllegalEvent")
    assert sent == order("node-1")


async def test_nothing_is_sent_once_the_right_to_lead_has_ended() -> None:
    def check() -> None:
        raise Fenced("the lease has run out")

    with pytest.raises(Fenced, match="run out"):
        await run(Scripted(lambda event: [order("node-1")]), REQUEST, check=check)


async def test_a_defect_of_the_core_ends_the_reign_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    reign = await Reign(epoch=store.fence.epoch, coordinator="c", store=store).begin()

    def broken(event: events.Event, now: float) -> list[commands.Command]:
        raise AssertionError("two attempts have one job")

    monkeypatch.setattr(reign.control, "handle", broken)
    reign.tell(REQUEST)
    async with asyncio.timeout(10):
        why = await reign.ended()
    assert isinstance(why, BugError)
    assert "two attempts have one job" in str(why)
    await reign.close()


async def test_a_closed_reign_leaves_no_task_and_takes_no_event() -> None:
    before = asyncio.all_tasks()
    store = MemoryStore()
    await store.put_job(JobRecord("llm", 1, 1, 1))
    reign = await Reign(epoch=store.fence.epoch, coordinator="c", store=store).begin()
    await reign.close()
    reign.tell(REQUEST)
    assert asyncio.all_tasks() == before
    assert isinstance(await reign.ended(), Exception)
    assert AttemptState.ADMITTING not in {each.state for each in (await store.load()).attempts}
