"""Orders and answers, one message per phase."""

import pytest
from allstop.v1 import records_pb2, shim_pb2

from coordinator.codec import to_proto
from coordinator.core import commands, events
from coordinator.core.errors import BadRequest
from coordinator.core.model import AddressMove, Cut, Endpoint, GpuMove, Phase
from coordinator.link import telling, wire
from tests.support.fake_node import facts_of
from tests.support.fake_shim import FakeShim

ANSWERS = {
    Phase.HOLD: events.Held,
    Phase.PARK: events.Parked,
    Phase.GPU_LOCK: events.GpuLocked,
    Phase.GPU_SAVE: events.GpuSaved,
    Phase.DUMP: events.Dumped,
    Phase.RESUME: events.Resumed,
    Phase.PERSIST: events.Persisted,
    Phase.STOP: events.Stopped,
    Phase.UNDO: events.Undone,
    Phase.FETCH: events.Fetched,
    Phase.CLEAR: events.Cleared,
    Phase.RESTORE: events.Restored,
    Phase.GPU_RESTORE: events.GpuRestored,
    Phase.GPU_UNLOCK: events.GpuUnlocked,
    Phase.RELEASE: events.Released,
}
ORDERED = [phase for phase in Phase if phase in ANSWERS]


async def record_of_a_worker() -> object:
    shim = FakeShim("127.0.0.1:1", "node-1", job="llm", worker=1, workers=2)
    order = shim_pb2.Order(job="llm", worker=1)
    record = shim.record_of(order)
    await shim.leave(goodbye=False)
    return record


def order_of(phase: Phase, **fields: object) -> commands.SendOrder:
    return commands.SendOrder(
        node="node-1",
        epoch=7,
        job="llm",
        worker=1,
        action="llm-1",
        phase=phase,
        deadline_s=1.5,
        hold_s=0.25,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("phase", ORDERED)
async def test_every_order_is_whole(phase: Phase) -> None:
    record = await record_of_a_worker()
    order = order_of(
        phase,
        cut=Cut.FREEZE,
        target=42,
        world_size=4,
        stand_still_s=600.5,
        workers=2,
        incarnation=3,
        reason="because",
        kill=True,
        keep=True,
        record=record,
        addresses=(AddressMove("10.0.0.1", "10.0.0.2"),),
        connections=(Endpoint("10.0.0.2", 1, "10.0.0.3", 2),),
        devices=(GpuMove("GPU-1", "GPU-2"),),
    )
    sent = wire.order_message(order).order
    assert (sent.epoch, sent.job, sent.worker, sent.action) == (7, "llm", 1, "llm-1")
    assert records_pb2.Phase.Name(sent.phase) == f"PHASE_{phase}"
    assert (sent.deadline_ms, sent.hold_ms) == (1500, 250)
    expected = {
        Phase.HOLD: lambda: (
            (sent.hold.cut, sent.hold.world_size, sent.hold.stand_still_ms)
            == (records_pb2.CUT_FREEZE, 4, 600_500)
        ),
        Phase.PARK: lambda: sent.park.target == 42,
        Phase.DUMP: lambda: sent.dump.cut == records_pb2.CUT_FREEZE,
        Phase.GPU_LOCK: lambda: sent.gpu_lock.cut == records_pb2.CUT_FREEZE,
        Phase.GPU_RESTORE: lambda: sent.gpu_restore.devices[0].new == "GPU-2",
        Phase.UNDO: lambda: (
            (sent.undo.reason, sent.undo.kill, sent.undo.keep) == ("because", True, True)
        ),
        Phase.FETCH: lambda: sent.fetch.record == to_proto(record),
        Phase.CLEAR: lambda: (
            (sent.clear.record, len(sent.clear.connections)) == (to_proto(record), 1)
        ),
        Phase.RESTORE: lambda: (
            sent.restore.record == to_proto(record)
            and sent.restore.addresses[0].new == "10.0.0.2"
            and (sent.restore.incarnation, sent.restore.workers) == (3, 2)
        ),
    }
    detail = sent.WhichOneof("detail")
    if phase in (Phase.GPU_SAVE, Phase.GPU_UNLOCK):
        assert detail is None
    else:
        assert detail == phase.value.lower()
    assert expected.get(phase, lambda: True)()


def test_an_admission_is_whole() -> None:
    sent = wire.admitted_message(7, commands.AdmitWorker("node-1", "llm", 1, 3)).admitted
    assert (sent.epoch, sent.job, sent.worker, sent.incarnation) == (7, "llm", 1, 3)


def test_a_word_to_stay_is_whole() -> None:
    sent = telling.stay_message(7, commands.StayOn("node-1", "llm", 1.5)).stay
    assert (sent.epoch, sent.job, sent.for_ms) == (7, "llm", 1500)


def test_an_order_that_lacks_its_record_is_a_named_error() -> None:
    with pytest.raises(BadRequest, match="record"):
        wire.order_message(order_of(Phase.RESTORE))


@pytest.mark.parametrize("phase", ORDERED)
async def test_every_answer_has_its_event(phase: Phase) -> None:
    result = shim_pb2.OrderResult(epoch=7, job="llm", worker=1, action="llm-1", held_ms=9)
    result.phase = records_pb2.Phase.Value(f"PHASE_{phase}")
    result.root_pid = 1000
    result.record.CopyFrom(to_proto(await record_of_a_worker()))
    result.ranks.add(rank=1, boundary=41)
    event = wire.result_event("node-1", result)
    assert type(event) is ANSWERS[phase]
    assert (event.epoch, event.node, event.job, event.worker, event.action) == (
        7,
        "node-1",
        "llm",
        1,
        "llm-1",
    )
    if isinstance(event, events.Held | events.Parked):
        assert event.ranks[0].boundary == 41
    if isinstance(event, events.Resumed | events.Undone):
        assert event.held_ms == 9


def test_a_failure_wins_over_everything_else() -> None:
    result = shim_pb2.OrderResult(job="llm", worker=1, phase=records_pb2.PHASE_DUMP)
    result.failure.kind = "DriverError"
    result.failure.what = "criu failed"
    result.failure.details.append("Can't dump")
    event = wire.result_event("node-1", result)
    assert isinstance(event, events.OrderFailed)
    assert (event.phase, event.failure.details) == (Phase.DUMP, ("Can't dump",))


def test_a_dump_without_its_record_is_a_failure_of_that_worker() -> None:
    result = shim_pb2.OrderResult(job="llm", worker=1, phase=records_pb2.PHASE_DUMP)
    event = wire.result_event("node-1", result)
    assert isinstance(event, events.OrderFailed)
    assert (event.failure.node, event.failure.worker) == ("node-1", 1)
    assert not event.failure.definite


def test_an_answer_to_no_order_is_refused() -> None:
    with pytest.raises(BadRequest, match="does not exist"):
        wire.result_event("node-1", shim_pb2.OrderResult(phase=records_pb2.PHASE_COMMIT))


def test_nobody_reports_for_another_node() -> None:
    report = shim_pb2.Report(facts=to_proto(facts_of("node-2")))
    with pytest.raises(BadRequest, match="node-2"):
        wire.report_event("node-1", "s", report)
