"""One trace for each checkpoint and restore, received by real OTLP, and drawn in the terminal."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.core.errors import DeadlinePassed
from coordinator.telemetry.spans import span_id, trace_id
from lab import Lab
from lab.deployment import allstop
from tests.integration.badluck.kit import NODES, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

GRPC_PORT, HTTP_PORT = 4317, 4318
EVERYBODY = ("HOLD", "PARK", "DUMP", "RESUME", "PERSIST")  # phases of all workers
SERVICES = {"allstop-coordinator", "allstop-shim"}


@dataclass
class Traced:
    """A pair whose processes export to a collector on the control host."""

    pair: Pair
    spans: Path

    async def of(self, action: str, *phases: str) -> list[dict[str, Any]]:
        """The spans of one action, once the root and both workers' spans of these are there."""
        wanted = {span_id(action)} | {span_id(action, each, w) for each in phases for w in (0, 1)}

        async def there() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in self.spans.read_text().splitlines()]
            found = [span for span in lines if span["traceId"] == f"{trace_id(action):032x}"]
            missing = wanted - {int(span["spanId"], 16) for span in found}
            return [] if missing else found

        return list(await until(f"the spans of {action}", there, 30.0))


@pytest.fixture(params=["grpc", "http/protobuf"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def traced(tmp_path: Path, criu_path: str, protocol: str) -> AsyncIterator[Traced]:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(tmp_path / "lab", [*NODES]))
        pair = Pair(lab, tmp_path, criu_path)
        spans = tmp_path / "spans"
        stack.enter_context(collector(lab, spans))
        port = GRPC_PORT if protocol == "grpc" else HTTP_PORT
        pair.deployment.env = {
            **pair.deployment.env,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{lab.control.address}:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        await pair.start()
        yield Traced(pair, spans)
        await pair.stop()


@contextmanager
def collector(lab: Lab, spans: Path) -> Iterator[None]:
    """A collector on the control host."""
    host = lab.control
    places = [f"{host.address}:{port}" for port in (GRPC_PORT, HTTP_PORT)]
    line = [sys.executable, "-m", "lab.otlp", *places, str(spans)]
    with host.popen(line, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            assert sink.stdout.readline() == "serving\n"
            yield
        finally:
            sink.terminate()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Name to value, numbers as numbers."""
    found = {}
    for each in span.get("attributes", []):
        ((kind, value),) = each["value"].items()
        found[each["key"]] = int(value) if kind == "intValue" else value
    return found


def service(span: dict[str, Any]) -> str:
    return str(
        next(e["value"]["stringValue"] for e in span["resource"] if e["key"] == "service.name")
    )


def below(spans: list[dict[str, Any]], parent: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The children of a span, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        if span["parentSpanId"] == parent["spanId"]:
            found.setdefault(span["name"], []).append(span)
    return found


async def drawn(pair: Pair, action: str, *options: str) -> str:
    """What `allstop trace` prints."""
    line = [*allstop("trace"), action, *options, "--coordinator", pair.deployment.socket]
    ended = await asyncio.to_thread(
        subprocess.run, line, capture_output=True, text=True, timeout=60, check=True
    )
    return str(ended.stdout)


async def test_a_checkpoint_is_one_trace(traced: Traced) -> None:
    taken = await traced.pair.snapshot()
    spans = await traced.of(taken.snapshot, *EVERYBODY)
    assert {service(span) for span in spans} == SERVICES
    (root,) = [span for span in spans if not span["parentSpanId"]]
    assert (root["name"], root["spanId"]) == ("checkpoint", f"{span_id(taken.snapshot):016x}")
    about = attributes(root)
    assert about["allstop.job"] == "pair"
    assert about["allstop.step"] == taken.step
    assert about["allstop.epoch"] == taken.epoch
    assert about["allstop.outcome"] == "COMMITTED"
    assert [each["name"] for each in root["events"]] == ["held", "parked", "cut", "committed"]
    phases = below(spans, root)
    assert {"ADMIT", "HOLD", "PARK", "DUMP", "RESUME", "PERSIST", "COMMIT"} == phases.keys()
    for phase in EVERYBODY:
        (span,) = phases[phase]
        workers = below(spans, span)
        assert workers.keys() == {"worker 0", "worker 1"}, phase
        for number in (0, 1):
            (worker,) = workers[f"worker {number}"]
            assert attributes(worker)["allstop.node"] == f"n{number}"
            assert int(worker["startTimeUnixNano"]) >= int(span["startTimeUnixNano"]) - 5_000_000
            parts = below(spans, worker)
            if phase in ("HOLD", "PARK", "DUMP"):
                assert {f"rank {2 * number}", f"rank {2 * number + 1}"} <= parts.keys()
            if phase == "DUMP":
                assert {"stop", "files", "lock", "criu", "look"} <= parts.keys()
    (criu,) = below(spans, below(spans, phases["DUMP"][0])["worker 0"][0])["criu"]
    took_ms = (int(criu["endTimeUnixNano"]) - int(criu["startTimeUnixNano"])) / 1e6
    assert took_ms >= taken.workers[0].dump_ms - 1


async def test_a_straggler_is_seen(traced: Traced) -> None:
    """Rank 2 is late: its own span is the long one, there and in the terminal."""
    pair = traced.pair
    await pair.stall(2)
    attempt = pair.checkpoint(deadline_s=4.0)
    failure = await attempt.failed()
    assert isinstance(failure, DeadlinePassed)
    pair.untell(2)
    action = attempt.events[0].action
    spans = await traced.of(action, "HOLD", "UNDO")
    (root,) = [span for span in spans if not span["parentSpanId"]]
    assert root["status"]["code"] == "STATUS_CODE_ERROR"
    assert "rank 2" in root["status"]["message"]
    assert attributes(root)["allstop.outcome"] == "ABORTED"
    names = [each["name"] for each in root["events"]]
    assert names == ["held", "aborted"]
    shown = await drawn(pair, action)
    assert "ABORTED" in shown
    rows = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert rows.index("HOLD") < rows.index("PARK")
    page = traced.spans.with_name("page.html")
    await drawn(pair, action, "--html", str(page))
    text = page.read_text()
    assert action in text
    assert "http" not in text.replace("http-equiv", "")
    await pair.went_on(failure)


async def test_a_restore_is_one_trace(traced: Traced) -> None:
    taken = await traced.pair.snapshot()
    last = await traced.pair.restore(taken.snapshot)
    assert last.restore is not None
    spans = await traced.of(last.restore.restore, "FETCH", "CLEAR", "RESTORE", "RELEASE")
    (root,) = [span for span in spans if not span["parentSpanId"]]
    about = attributes(root)
    assert root["name"] == "restore"
    assert about["allstop.snapshot"] == taken.snapshot
    assert about["allstop.outcome"] == "RUNNING"
    phases = below(spans, root)
    assert {"FETCH", "CLEAR", "RESTORE", "RELEASE"} <= phases.keys()
    (restoring,) = phases["RESTORE"]
    assert below(spans, restoring).keys() == {"worker 0", "worker 1"}
