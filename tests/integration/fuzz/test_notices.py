"""Whatever others say of nodes: it is understood, or refused by name; nothing else is raised."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coordinator.bridges import nvsentinel
from coordinator.core.errors import BadRequest, DriverError
from coordinator.page.shapes import all_wanted
from worker_shim.preemption import aws, azure
from worker_shim.preemption.watching import read_object

WORDS = (
    "kind", "spec", "node", "nodeName", "address", "deadline_s", "time", "why", "DrainRequest",
    "preempted_node_ids", "deadline_ms", "nodes", "NodeID", "NodeManagerAddress", "aa", "action",
    "terminate", "noticeTime", "2026-05-28T20:28:40Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "Events", "EventId", "EventType", "Resources", "vm", "Preempt",
    "EventStatus", "NotBefore", "Mon, 19 Sep 2016 18:29:47 GMT", "metadata", "name", "status",
    "conditions", "type", "DrainComplete", "podsToDrain", "phase", "podIP",
)  # fmt: skip
TEXT = st.sampled_from(WORDS) | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=24,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=8)


@given(VALUES)
def test_bodies_of_the_hook(body: Any) -> None:
    with contextlib.suppress(BadRequest):
        for wanted in all_wanted(body, 1_780_000_000.0):
            assert wanted.node or wanted.address


@given(OBJECTS, st.text(max_size=40))
def test_notices_of_clouds(fields: dict[str, Any], text: str) -> None:
    event = {"EventId": "e", "EventType": "Preempt", "Resources": ["vm"], **fields}
    for said in (json.dumps(fields), json.dumps({"action": "stop", **fields}), text):
        for read in (aws.interruption, aws.recommendation):
            with contextlib.suppress(DriverError):
                read(said)
        with contextlib.suppress(DriverError):
            list(azure.events_of(read_object(said, "it"), "vm"))
    with contextlib.suppress(DriverError):
        for each in azure.events_of({"Events": [event]}, "vm"):
            azure.going(each)


@given(OBJECTS)
def test_objects_of_kubernetes(item: dict[str, Any]) -> None:
    pod = {**item, "status": item}
    assert nvsentinel._ours("n", [item, pod], []) == []
    nvsentinel._named(item)
    nvsentinel._key(item)
    assert isinstance(nvsentinel._name(item.get("metadata")), str)
    nvsentinel._condition({"status": item, "metadata": item})
