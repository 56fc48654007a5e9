"""The queue before the core: order, batches, and when it is behind."""

import asyncio

from coordinator.core.events import Event, NodeLost, TimePassed
from coordinator.server.inbox import Inbox


def lost(number: int) -> Event:
    return NodeLost(f"node-{number}", "s", "gone")


async def test_events_come_in_order_and_in_batches() -> None:
    inbox = Inbox()
    for number in range(5):
        inbox.tell(lost(number))
    assert await inbox.take(3, None) == [lost(0), lost(1), lost(2)]
    assert await inbox.take(3, None) == [lost(3), lost(4)]
    assert await inbox.take(3, 0.0) == []


async def test_it_is_behind_from_its_limit_on_and_takes_more_all_the_same() -> None:
    inbox = Inbox(limit=2)
    inbox.tell(lost(0))
    assert not inbox.behind
    inbox.tell(lost(1))
    assert inbox.behind
    inbox.tell(lost(2))
    assert len(inbox) == 3
    assert await inbox.take(2, None) == [lost(0), lost(1)]
    assert not inbox.behind


async def test_taking_waits_for_the_first_event() -> None:
    inbox = Inbox()
    taking = asyncio.create_task(inbox.take(1, 10.0))
    await asyncio.sleep(0)
    inbox.tell(TimePassed())
    assert await taking == [TimePassed()]
