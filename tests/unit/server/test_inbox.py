"""The queue before the core: order, bounded posting, and losses that never wait."""

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


async def test_posting_waits_for_room_and_telling_does_not() -> None:
    inbox = Inbox(limit=2)
    await inbox.post(lost(0))
    await inbox.post(lost(1))
    posting = asyncio.create_task(inbox.post(lost(3)))
    await asyncio.sleep(0)
    assert not posting.done()
    inbox.tell(lost(2))
    assert len(inbox) == 3
    assert await inbox.take(2, None) == [lost(0), lost(1)]
    await posting
    assert await inbox.take(9, None) == [lost(2), lost(3)]


async def test_taking_waits_for_the_first_event() -> None:
    inbox = Inbox()
    taking = asyncio.create_task(inbox.take(1, 10.0))
    await asyncio.sleep(0)
    inbox.tell(TimePassed())
    assert await taking == [TimePassed()]
