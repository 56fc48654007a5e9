"""What has ended as a tree of spans: ids that everybody can make, phases, workers, ranks."""

from __future__ import annotations

import re

from coordinator.core.model import Phase
from coordinator.telemetry.spans import span_id, trace_id, trace_of, traceparent
from tests.unit.telemetry.records import ABORTED, ACTION, COMMITTED, TIMELINE


def test_ids_are_the_same_wherever_they_are_made() -> None:
    assert trace_id(ACTION) == trace_id(str(ACTION)) != trace_id(ACTION + "0")
    ids = {span_id(ACTION), *(span_id(ACTION, phase) for phase in Phase)}
    ids |= {span_id(ACTION, Phase.PARK, worker) for worker in range(1000)}
    assert len(ids) == 1 + len(Phase) + 1000
    assert 0 not in ids


def test_an_order_carries_the_span_of_its_phase() -> None:
    told = traceparent(ACTION, Phase.PARK)
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", told)
    assert found is not None
    assert int(found[1], 16) == trace_id(ACTION)
    assert int(found[2], 16) == span_id(ACTION, Phase.PARK)


def test_every_span_but_the_root_has_its_parent_before_it() -> None:
    trace = trace_of(COMMITTED, TIMELINE)
    seen = {trace.root.identity}
    for span in trace.spans[1:]:
        assert span.parent in seen, span
        assert span.identity not in seen, span
        seen.add(span.identity)
        assert span.failed == ""
    assert trace.root.took_ms == 9905
    assert [each.name for each in trace.children(trace.root)] == [
        "HOLD", "PARK", "DUMP", "RESUME", "PERSIST", "COMMIT",
    ]  # fmt: skip


def test_the_moments_of_a_checkpoint_that_committed() -> None:
    moments = {each.name: each.at_ms for each in trace_of(COMMITTED, None).root.moments}
    assert moments == {"held": 205, "parked": 275, "cut": 1875, "committed": 9905}


def test_what_failed_says_where_and_does_not_claim_what_was_not_reached() -> None:
    trace = trace_of(ABORTED, TIMELINE)
    assert [each.name for each in trace.root.moments] == ["held", "aborted"]
    assert trace.root.moments[-1].at_ms == 4205  # when UNDO began
    assert trace.root.failed == "rank 2 is late"
    failed = {each.name for each in trace.children(trace.root) if each.failed}
    assert failed == {"PARK"}


def test_ranks_are_below_their_worker_and_parts_follow_each_other() -> None:
    trace = trace_of(COMMITTED, TIMELINE)
    phases = {each.name: each for each in trace.children(trace.root)}
    slow, quick = trace.children(phases["PARK"])
    assert (slow.name, quick.name) == ("worker 1", "worker 0")
    ranks = {each.name: each.took_ms for each in trace.children(slow)}
    assert ranks == {"wait": 1, "rank 2": 40, "rank 3": 66}
    stop, criu = trace.children(trace.children(phases["DUMP"])[0])
    assert (criu.began_ms, criu.took_ms) == (stop.ended_ms, 1500)
