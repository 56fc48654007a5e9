"""The leader's side: who is behind which carrier, who is lost, what goes out, questions."""

import asyncio
from typing import Any

import pytest
from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.codec import to_proto
from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, Fenced, LinkError
from coordinator.core.kept import KeptImages
from coordinator.core.model import Phase
from coordinator.link import telling
from coordinator.link.hub import Branch, Hub
from coordinator.link.mapping import unpacked
from tests.support.fake_node import PROGRAM, facts_of


class FakeDownlink:
    """Keeps what a carrier is sent."""

    def __init__(self) -> None:
        self.sent: list[carrier_pb2.LeaderMessage] = []
        self.ending: AllstopError | None = None

    def send(self, message: carrier_pb2.LeaderMessage) -> None:
        self.sent.append(message)

    def end(self, why: AllstopError) -> None:
        self.ending = why

    def kinds(self) -> list[tuple[str | None, list[int]]]:
        return [
            (delivery.message.WhichOneof("body"), list(delivery.attachments))
            for message in self.sent
            for delivery in message.deliveries
        ]

    def dismissed(self) -> list[int]:
        return [each.attachment for message in self.sent for each in message.dismissals]


def hub_with_log(**options: Any) -> tuple[Hub, list[events.Event]]:
    told: list[events.Event] = []
    return Hub(5, "c", told.append, **options), told


def joined(hub: Hub, name: str = "a", session: str = "") -> tuple[Branch, FakeDownlink]:
    down = FakeDownlink()
    return hub.join(name, session or f"session of {name}", down), down


def say(hub: Hub, branch: Branch, attachment: int, **body: Any) -> None:
    message = shim_pb2.ShimMessage(**body)
    said = carrier_pb2.Said(attachment=attachment, message=message)
    hub.take(branch, carrier_pb2.CarrierMessage(said=[said]))


def attach(hub: Hub, branch: Branch, attachment: int, node: str, session: str = "s1") -> None:
    hello = shim_pb2.Hello(facts=to_proto(facts_of(node)), session=session)
    say(hub, branch, attachment, hello=hello)


def park(node: str, worker: int = 0) -> commands.SendOrder:
    return commands.SendOrder(node, 5, "llm", worker, "a", Phase.PARK, 1.0, target=9)


def kinds(told: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in told]


async def test_a_turn_of_the_loop_is_one_message_for_each_carrier() -> None:
    hub, _ = hub_with_log()
    (one, down), (two, other) = joined(hub, "a"), joined(hub, "b")
    for attachment in (1, 2, 3):
        attach(hub, one, attachment, f"node-{attachment}")
    attach(hub, two, 1, "node-9")
    for node in ("node-1", "node-2", "node-3", "node-9"):
        assert hub.order(park(node))
    assert not hub.order(park("node-7"))
    assert not down.sent
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert down.kinds() == [("order", [1, 2, 3])]
    assert other.kinds() == [("order", [1])]
    assert [message.epoch for message in down.sent] == [5]


async def test_equal_orders_are_joined_and_no_shim_gets_them_out_of_order() -> None:
    hub, _ = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2")
    hub.order(park("node-1", 0))
    hub.order(park("node-1", 1))
    hub.admit(commands.AdmitWorker("node-1", "llm", 0, 3))
    hub.order(park("node-2", 2))  # nothing between for this one: joined
    hub.order(park("node-1", 3))  # behind the admission: not joined
    hub.order(park("node-2", 4))
    hub.flush()
    assert down.kinds() == [("order", [1, 1, 2]), ("admitted", [1]), ("order", [1, 2])]
    workers = [list(each.workers) for each in down.sent[0].deliveries]
    assert workers == [[0, 1, 2], [], [3, 4]]


async def test_nothing_that_was_queued_goes_after_the_right_to_lead_has_ended() -> None:
    ended: list[AllstopError] = []

    def check() -> None:
        if ended:
            raise ended[0]

    hub, _ = hub_with_log(check=check)
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    hub.order(park("node-1"))
    ended.append(Fenced("the lease is over"))
    hub.flush()
    assert not down.sent
    ended.clear()
    hub.flush()
    assert not down.sent, "what was refused once is not sent later"


async def test_a_node_is_lost_once_and_at_once() -> None:
    hub, told = hub_with_log()
    branch, _ = joined(hub)
    attach(hub, branch, 1, "node-1")
    lost = carrier_pb2.Said(attachment=1, lost="the stream broke")
    hub.take(branch, carrier_pb2.CarrierMessage(said=[lost, lost]))
    say(hub, branch, 1, goodbye=shim_pb2.Goodbye(reason="too late"))
    assert kinds(told) == ["NodeAttached", "NodeLost"]
    assert isinstance(told[1], events.NodeLost)
    assert told[1].reason == "the stream broke"
    assert not hub.order(park("node-1"))


async def test_goodbye_is_no_loss() -> None:
    hub, told = hub_with_log()
    branch, _ = joined(hub)
    attach(hub, branch, 1, "node-1")
    say(hub, branch, 1, goodbye=shim_pb2.Goodbye(reason="done"))
    hub.part(branch, LinkError("gone"))
    assert kinds(told) == ["NodeAttached", "NodeLeft"]


async def test_a_node_that_comes_through_another_carrier_is_lost_at_the_first() -> None:
    hub, told = hub_with_log()
    (one, down), (two, _) = joined(hub, "a"), joined(hub, "b")
    attach(hub, one, 4, "node-1")
    attach(hub, two, 1, "node-1")
    assert kinds(told) == ["NodeAttached", "NodeLost", "NodeAttached"]
    hub.flush()
    assert down.dismissed() == [4]
    assert isinstance(unpacked(down.sent[0].dismissals[0].error), Fenced)
    lost = carrier_pb2.Said(attachment=4, lost="its end comes late")
    hub.take(one, carrier_pb2.CarrierMessage(said=[lost]))  # must not take the new one away
    say(hub, one, 4, report=shim_pb2.Report())
    assert len(told) == 3
    assert hub.order(park("node-1"))


async def test_a_hello_that_a_later_one_has_overtaken_is_not_heard() -> None:
    """The shim dialled a, then b; what came through b was faster."""
    hub, told = hub_with_log()
    (one, down), (two, _) = joined(hub, "a"), joined(hub, "b")
    first, second = (
        shim_pb2.Hello(facts=to_proto(facts_of("node-1")), session="s", number=number)
        for number in (1, 2)
    )
    say(hub, two, 1, hello=second)
    say(hub, one, 1, hello=first)
    assert kinds(told) == ["NodeAttached"]
    hub.flush()
    assert down.dismissed() == [1]
    hub.part(two, LinkError("gone"))
    say(hub, one, 2, hello=first)
    assert hub.nodes == ()
    say(hub, one, 3, hello=shim_pb2.Hello(facts=first.facts, session="another", number=1))
    assert hub.nodes == ("node-1",)


async def test_with_a_carrier_all_its_nodes_are_lost_and_the_reason_names_it() -> None:
    hub, told = hub_with_log()
    (one, down), (two, _) = joined(hub, "a"), joined(hub, "b")
    attach(hub, one, 1, "node-1")
    attach(hub, one, 2, "node-2")
    attach(hub, two, 1, "node-3")
    del told[:]
    hub.part(one, LinkError("the cable was cut"))
    hub.part(one, LinkError("again"))
    assert kinds(told) == ["NodeLost", "NodeLost"]
    assert all("carrier a" in event.reason and "cable" in event.reason for event in told)  # type: ignore[attr-defined]
    assert hub.nodes == ("node-3",)
    assert down.ending is not None
    attach(hub, one, 3, "node-1")  # of a link that is over
    assert hub.nodes == ("node-3",)


async def test_a_carrier_that_dials_again_loses_its_older_link_first() -> None:
    hub, told = hub_with_log()
    one, _ = joined(hub, "a", "s")
    attach(hub, one, 1, "node-1")
    two, _ = joined(hub, "a", "s")
    attach(hub, two, 2, "node-1")
    assert kinds(told) == ["NodeAttached", "NodeLost", "NodeAttached"]
    assert hub.carriers == ("a",)


async def test_words_that_make_no_sense_end_the_shims_stream_with_the_reason() -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2")
    say(hub, branch, 1, report=shim_pb2.Report(facts=to_proto(facts_of("node-9"))))
    say(hub, branch, 2, result=shim_pb2.OrderResult())
    hub.flush()
    assert down.dismissed() == [1, 2]
    assert "node-9" in unpacked(down.sent[0].dismissals[0].error).what
    assert kinds(told)[2:] == ["NodeLost", "NodeLost"]


async def test_a_defect_ends_the_stream_it_is_about_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    attach(hub, branch, 2, "node-2")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(telling, "exit_event", broken)
    say(hub, branch, 1, exited=shim_pb2.WorkerExited(job="llm"))
    hub.flush()
    assert down.dismissed() == [1]
    assert kinds(told)[2:] == ["NodeLost"]
    assert hub.nodes == ("node-2",)


async def test_a_carrier_that_cannot_be_reached_by_a_defect_of_ours_is_lost() -> None:
    hub, told = hub_with_log()
    (one, down), (two, other) = joined(hub, "a"), joined(hub, "b")
    attach(hub, one, 1, "node-1")
    attach(hub, two, 1, "node-2")

    def broken(message: object) -> None:
        raise ZeroDivisionError

    down.send = broken  # type: ignore[method-assign]
    hub.order(park("node-1"))
    hub.order(park("node-2"))
    hub.flush()
    assert kinds(told)[2:] == ["NodeLost"]
    assert other.kinds() == [("order", [1])]
    assert down.ending is not None


async def test_after_close_nothing_is_told_and_nobody_joins() -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "node-1")
    hub.order(park("node-1"))
    hub.close(LinkError("the leadership is over"))
    await asyncio.sleep(0)
    attach(hub, branch, 2, "node-2")
    hub.order(park("node-1"))
    await asyncio.sleep(0)
    assert kinds(told) == ["NodeAttached"]
    assert hub.nodes == ()
    assert not down.sent
    assert down.ending is not None
    with pytest.raises(LinkError, match="over"):
        joined(hub, "b")


async def test_questions_take_what_comes_in_time() -> None:
    hub, _ = hub_with_log()
    branch, down = joined(hub)
    for attachment in range(3):
        attach(hub, branch, attachment, f"node-{attachment}")
    asking = asyncio.create_task(hub.ask([PROGRAM], deadline_s=0.2))
    await asyncio.sleep(0)  # it asks
    await asyncio.sleep(0)  # what it asked is sent
    assert down.kinds() == [("question", [0, 1, 2])]
    question = down.sent[0].deliveries[0].message.question
    assert question.files[0].path == PROGRAM.path
    answer = shim_pb2.Answer(question=question.question, facts=to_proto(facts_of("liar")))
    say(hub, branch, 0, answer=answer)
    lost = carrier_pb2.Said(attachment=1, lost="gone while asked")  # and node-2 says nothing
    hub.take(branch, carrier_pb2.CarrierMessage(said=[lost]))
    answers = await asking
    assert [facts.node for facts in answers] == ["node-0"]
    say(hub, branch, 2, answer=answer)  # late: dropped


async def test_asking_nobody_answers_at_once() -> None:
    hub, _ = hub_with_log()
    assert await hub.ask([PROGRAM], deadline_s=60) == ()


async def test_messages_are_counted_and_signs_of_life_are_not() -> None:
    hub, _ = hub_with_log()
    branch, _ = joined(hub)
    attach(hub, branch, 1, "node-1")
    hub.take(branch, carrier_pb2.CarrierMessage())
    assert hub.messages_handled == 1


async def test_a_carrier_of_the_leaders_own_process_is_not_heard_over_the_network() -> None:
    """A process that was started anew looks for its past life at what is its own address."""
    hub, told = hub_with_log()
    near = hub.join("a", "s", FakeDownlink(), near=True)
    attach(hub, near, 1, "node-1")
    with pytest.raises(LinkError, match="in the leader's own process"):
        hub.join("a", "s", FakeDownlink())
    assert hub.nodes == ("node-1",)
    assert [type(event).__name__ for event in told] == ["NodeAttached"]


# -- tasks about image stores ----------------------------------------------------------------------


def done(task: str, **more: Any) -> shim_pb2.StoreTaskResult:
    return shim_pb2.StoreTaskResult(epoch=5, task=task, **more)


async def test_a_task_goes_out_and_its_answer_is_the_cores() -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "n0")
    assert hub.task(commands.SendTask("n0", 5, "t1", "llm", 2.0, dead=("a1",)))
    assert not hub.task(commands.SendTask("n9", 5, "t2", "llm", 2.0))
    hub.flush()
    assert down.kinds() == [("task", [1])]
    sent = down.sent[0].deliveries[0].message.task
    assert (sent.WhichOneof("what"), list(sent.collect.dead)) == ("collect", ["a1"])
    say(hub, branch, 1, done=done("t1", objects=3))
    assert told[-1] == events.TaskAnswered(5, "n0", "t1", objects=3)


async def test_a_task_that_is_too_large_is_answered_at_once() -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "n0")
    keep = tuple(KeptImages(f"llm/a1/{number}", "d" * 200) for number in range(70_000))
    hub.task(commands.SendTask("n0", 5, "t1", "llm", 2.0, ("a1",), keep))
    assert isinstance(told[-1], events.TaskAnswered)
    assert "has too many snapshots" in told[-1].failure.advice  # type: ignore[union-attr]
    hub.flush()
    assert down.kinds() == []


@pytest.mark.parametrize("how", ["answered", "lost", "cancelled"])
async def test_a_verification_waits_for_its_node(how: str) -> None:
    hub, told = hub_with_log()
    branch, down = joined(hub)
    attach(hub, branch, 1, "n0")
    moved: list[tuple[int, int]] = []
    images = KeptImages("llm/a1/0", "d")
    asking = asyncio.create_task(
        hub.verifications.ask(
            "n0", "v1", "llm", images, (), progress=lambda *at: moved.append(at), deadline_s=5.0
        )
    )
    await asyncio.sleep(0)
    say(hub, branch, 1, doing=shim_pb2.StoreTaskProgress(task="v1", done_bytes=1, total_bytes=2))
    if how == "answered":
        say(hub, branch, 1, done=done("v1"))
        assert await asking == done("v1")
    elif how == "lost":
        hub.take(
            branch, carrier_pb2.CarrierMessage(said=[carrier_pb2.Said(attachment=1, lost="x")])
        )
        assert await asking is None
    else:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        hub.flush()
        last = down.sent[-1].deliveries[-1].message.task
        assert last.HasField("cancel")
    assert moved == [(1, 2)]
    assert not any(isinstance(event, events.TaskAnswered) for event in told)
