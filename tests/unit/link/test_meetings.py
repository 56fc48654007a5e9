"""The leader's side of meetings: who is told what, and how much of it is kept."""

from __future__ import annotations

import asyncio

import pytest
from allstop.v1 import shim_pb2

from coordinator.codec import to_proto
from coordinator.core.errors import BadRequest
from coordinator.core.meeting import (
    KEYS_MAX,
    MEETING_BYTES_MAX,
    NAME_BYTES_MAX,
    Key,
    Table,
    batches,
)
from coordinator.core.model import WorkerState
from coordinator.link import meetings
from coordinator.link.hub import Branch, Hub
from coordinator.link.limits import MEETING_KEYS_MAX, check_said
from coordinator.link.meetings import JOINED_MAX, PUSH_S, Meetings
from tests.support.fake_node import facts_of
from tests.unit.link.test_hub import FakeDownlink, hub_with_log, joined, park, say


def attach(hub: Hub, branch: Branch, attachment: int, node: str, job: str = "llm") -> None:
    state = to_proto(WorkerState(job, 0, 1, "running", 1, 1000, 1))
    hello = shim_pb2.Hello(facts=to_proto(facts_of(node)), session="s", workers=[state])
    say(hub, branch, attachment, hello=hello)


def meeting(*keys: Key, job: str = "llm", action: str = "a", **more: object) -> shim_pb2.Meeting:
    made = shim_pb2.Meeting(job=job, action=action, **more)  # type: ignore[arg-type]
    for key in keys:
        made.keys.add(name=key.name, value=key.value, deleted=key.deleted)
    return made


def heard(down: FakeDownlink) -> list[tuple[list[int], list[bytes]]]:
    """To whom which keys went, in order."""
    return [
        (list(delivery.attachments), [key.name for key in delivery.message.meeting.keys])
        for message in down.sent
        for delivery in message.deliveries
        if delivery.message.HasField("meeting")
    ]


async def pushed() -> None:
    await asyncio.sleep(PUSH_S * 3)


async def test_what_is_set_goes_to_all_that_have_joined_as_one_message_for_each_carrier() -> None:
    hub, told = hub_with_log()
    (one, down), (two, other) = joined(hub, "a"), joined(hub, "b")
    for attachment, branch in ((1, one), (2, one), (3, two), (4, two)):
        attach(hub, branch, attachment, f"node-{attachment}")
    for attachment, branch in ((1, one), (2, one), (3, two)):
        say(hub, branch, attachment, meeting=meeting())
    say(hub, one, 1, meeting=meeting(Key(b"k1", b"\0\r\n")))
    say(hub, two, 3, meeting=meeting(Key(b"k2", b"v")))
    await pushed()
    assert heard(down) == [([1, 2], [b"k1", b"k2"])]
    assert heard(other) == [([3], [b"k1", b"k2"])]
    assert down.sent[0].deliveries[-1].message.meeting.epoch == 5
    say(hub, two, 4, meeting=meeting())
    await pushed()
    assert heard(other)[1:] == [([4], [b"k1", b"k2"])], "who comes later is told what it missed"
    assert {type(event).__name__ for event in told} == {"NodeAttached"}, "the core does not care"


async def test_deleted_keys_and_jobs_of_others_are_not_told() -> None:
    hub, _ = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2", job="other")
    say(hub, branch, 1, meeting=meeting(Key(b"k1", b"v"), Key(b"k2", b"v")))
    say(hub, branch, 1, meeting=meeting(Key(b"k1", deleted=True)))
    await pushed()
    say(hub, branch, 2, meeting=meeting(job="llm"))
    await pushed()
    assert down.dismissed() == [2]
    assert "node-2" not in hub.nodes
    attach(hub, branch, 3, "node-3", job="third")
    hub.order(park("node-3"))  # from now on it has, or is to have, a worker of llm
    say(hub, branch, 3, meeting=meeting())
    await pushed()
    assert heard(down)[-1] == ([3], [b"k2"])


async def test_it_is_said_who_has_come() -> None:
    hub, _ = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2")
    say(hub, branch, 1, meeting=meeting(came=[0, 1]))
    say(hub, branch, 2, meeting=meeting(came=[3], ask=True))
    await pushed()
    (answer,) = [d.message.meeting for m in down.sent for d in m.deliveries]
    assert (list(answer.came), answer.ask) == ([0, 1, 3], True)


async def test_a_meeting_ends_with_its_last_member() -> None:
    hub, _ = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2")
    say(hub, branch, 1, meeting=meeting(Key(b"k", b"v")))
    say(hub, branch, 2, meeting=meeting())
    say(hub, branch, 1, meeting=meeting(leave=True))
    await pushed()
    before = len(heard(down))
    say(hub, branch, 1, meeting=meeting())
    await pushed()
    assert heard(down)[before:] == [([1], [b"k"])], "node-2 was still there"
    for attachment in (1, 2):
        say(hub, branch, attachment, meeting=meeting(leave=True))
    say(hub, branch, 1, meeting=meeting())
    await pushed()
    assert len(heard(down)) == before + 1, "nothing is left of it"
    assert hub._meetings._size_bytes == 0


async def test_as_many_jobs_meet_at_once_as_there_are() -> None:
    told: list[tuple[list[int], str]] = []
    many = Meetings[int](5, lambda to, message: told.append((list(to), message.meeting.job)))
    for job in range(1000):
        for node in (2 * job, 2 * job + 1):
            many.hear(node, meeting(job=f"job-{job}"))
    for job in range(1000):
        many.hear(2 * job, meeting(Key(b"uid", b"v"), job=f"job-{job}"))
    many.push()
    assert told == [([2 * job, 2 * job + 1], f"job-{job}") for job in range(1000)]
    for node in range(2000):
        many.forget(node)
    assert (many._meetings, many._joined, many._size_bytes) == ({}, {}, 0)


async def test_a_shim_in_too_many_meetings_leaves_its_own_and_nobody_elses() -> None:
    told: list[list[int]] = []
    many = Meetings[int](5, lambda to, message: told.append(list(to)))
    many.hear(1, meeting(action="ours"))
    for number in range(JOINED_MAX + 5):
        many.hear(2, meeting(action=f"a{number}"))
    assert len(many._meetings) == JOINED_MAX + 1
    many.hear(2, meeting(action="ours"))
    many.hear(1, meeting(Key(b"uid", b"v"), action="ours"))
    many.push()
    assert told == [[1, 2]]
    many.close()


async def test_all_meetings_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "TABLES_BYTES_MAX", 10)
    many = Meetings[int](5, lambda to, message: None)
    many.hear(1, meeting(Key(b"k1", b"1234"), action="a"))
    many.hear(2, meeting(Key(b"k2", b"1234"), action="b"))
    assert not many._meetings[("llm", "b")].table
    many.hear(1, meeting(Key(b"k1", deleted=True), action="a"))
    many.hear(2, meeting(Key(b"k2", b"1234"), action="b"))
    assert len(many._meetings[("llm", "b")].table) == 1
    many.close()


def test_a_table_is_bounded() -> None:
    table = Table()
    assert all(table.apply(Key(b"%d" % number)) for number in range(KEYS_MAX))
    assert not table.apply(Key(b"one more"))
    assert table.apply(Key(b"1", b"another value"))
    assert table.apply(Key(b"2", deleted=True))
    assert table.apply(Key(b"one more"))
    assert not Table().apply(Key(b"n" * (NAME_BYTES_MAX + 1)))
    parts = batches((Key(b"%d" % n, b"v" * 100) for n in range(95)), count_max=50, bytes_max=4096)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == 95
    assert max(sizes) < 50
    assert MEETING_BYTES_MAX >= KEYS_MAX * 128, "NCCL's values have 128 bytes"


@pytest.mark.parametrize(
    "said",
    [
        meeting(Key(b"")),
        meeting(Key(b"k", b"v" * (1 << 17))),
        meeting(*[Key(b"k")] * (MEETING_KEYS_MAX + 1)),
        meeting(came=[-1]),
        meeting(job="../etc"),
        meeting(action="a" * 129),
    ],
)
def test_what_no_shim_says_ends_its_stream(said: shim_pb2.Meeting) -> None:
    with pytest.raises(BadRequest):
        check_said(shim_pb2.ShimMessage(meeting=said))
    check_said(shim_pb2.ShimMessage(meeting=meeting(Key(b"k", b"v"), came=[0])))
