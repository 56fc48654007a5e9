"""Trouble of GPUs is told when it comes and to each leader anew, and stands in records."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from allstop.v1 import records_pb2, shim_pb2

from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import Rig
from worker_shim.agent.agent import Agent
from worker_shim.agent.health import HealthTelling
from worker_shim.cuda.fake import Held
from worker_shim.health.troubles import FRESH_S, Troubles
from worker_shim.health.watch import HealthWatch


class Stream:
    """As much of an agent as telling wants."""

    def __init__(self) -> None:
        self.hellos, self.attached = 1, True
        self.sent: list[Any] = []

    def send(self, message: shim_pb2.ShimMessage) -> bool:
        if self.attached:
            troubles = message.troubles.troubles
            self.sent.append([(each.code, each.count, each.fresh) for each in troubles])
        return self.attached


def made() -> tuple[Stream, Troubles, HealthTelling]:
    stream, troubles = Stream(), Troubles()
    return stream, troubles, HealthTelling(cast(Agent, stream), troubles)


def test_who_never_had_trouble_says_nothing() -> None:
    stream, _, telling = made()
    telling.tell()
    stream.hellos += 1
    telling.tell()
    assert stream.sent == []


def test_news_is_told_once_and_to_each_leader_anew() -> None:
    stream, troubles, telling = made()
    troubles.xid("GPU-a", 0, 79, "nvml")
    telling.tell()
    telling.tell()
    assert stream.sent == [[(79, 1, True)]]
    stream.hellos += 1
    telling.tell()
    assert stream.sent == [[(79, 1, True)]] * 2
    troubles.xid("GPU-a", 0, 79, "nvml")
    telling.tell()
    assert stream.sent[2:] == [[(79, 2, True)]]


def test_a_later_leader_hears_of_what_is_no_news_any_more() -> None:
    stream, troubles, telling = made()
    now = 0.0
    troubles.clock = lambda: now
    troubles.xid("GPU-a", 0, 79, "nvml")
    telling.tell()
    now, stream.hellos = FRESH_S + 1, 2
    telling.tell()
    assert stream.sent == [[(79, 1, True)], [(79, 1, False)]]


def test_what_was_not_heard_is_told_when_somebody_listens() -> None:
    stream, troubles, telling = made()
    stream.attached = False
    troubles.xid("GPU-a", 0, 79, "nvml")
    telling.tell()
    assert troubles.now()[0].fresh
    stream.attached = True
    telling.tell()
    assert stream.sent == [[(79, 1, True)]]


def test_that_it_is_over_is_told_too() -> None:
    from worker_shim.health.troubles import Counters

    stream, troubles, telling = made()
    troubles.looked(Counters("GPU-a", 0, remap_failed=True), "nvml")
    telling.tell()
    troubles.looked(Counters("GPU-a", 0, remap_failed=False), "nvml")
    stream.hellos += 1
    telling.tell()
    assert stream.sent[1:] == [[]]


async def test_a_record_has_what_the_gpus_have_had_when_all_is_stored(rig: Rig) -> None:
    health = HealthWatch(lambda: False)
    rig.cuda.held = {ROOT: Held("GPU-0"), RANK: Held("GPU-1")}
    rig.drivers = replace(rig.drivers, health=health)
    rig.worker.drivers = rig.drivers
    await rig.to("PARK", "a1")
    await rig.done("GPU_LOCK", "a1", cut="CUT_STEP")
    await rig.done("GPU_SAVE", "a1")
    dumped = await rig.done("DUMP", cut="CUT_STEP")
    assert not dumped.record.troubles
    await rig.done("RESUME")
    health.troubles.xid("GPU-0", 0, 48, "nvml")
    persisted = await rig.done("PERSIST")
    (trouble,) = persisted.record.troubles
    assert (trouble.uuid, trouble.kind, trouble.code, trouble.fresh) == (
        "GPU-0", records_pb2.TROUBLE_KIND_XID, 48, False,
    )  # fmt: skip


async def test_a_record_of_a_worker_without_gpus_has_none(rig: Rig) -> None:
    asked: list[float] = []

    async def settled() -> tuple[()]:
        asked.append(0.0)
        return ()

    rig.worker.drivers = replace(rig.drivers, health=cast(Any, SimpleNamespace(settled=settled)))
    await rig.to("PARK", "a1")
    await rig.done("DUMP", cut="CUT_STEP")
    await rig.done("RESUME")
    persisted = await rig.done("PERSIST")
    assert not persisted.record.troubles
    assert not asked
