"""What Prometheus and the page get from a real checkpoint, while it runs and afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.host import Host
from tests.integration.badluck.kit import JOB, NODES, Pair, until
from tests.integration.telemetry.kit import PAGE, SHIM, get, scraped

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

FOLLOW = (
    "import sys, urllib.request as u\n"
    "for line in u.urlopen(sys.argv[1], timeout=60):\n"
    "    sys.stdout.write(line.decode()); sys.stdout.flush()"
)


@dataclass
class Viewer:
    """Somebody who has the page open."""

    host: Host
    states: list[dict[str, Any]] = field(default_factory=list)

    async def look(self) -> None:
        """Keep every state that comes, until cancelled."""
        line = [sys.executable, "-c", FOLLOW, f"{PAGE}/api/events"]
        with self.host.popen(line, stdout=subprocess.PIPE, text=True) as process:
            try:
                while text := await asyncio.to_thread(process.stdout.readline):
                    if text.startswith("data: "):
                        self.states.append(json.loads(text.removeprefix("data: ")))
            finally:
                process.kill()

    def live(self) -> list[dict[str, Any]]:
        """What it saw of the running action, one after another."""
        return [state["live"][JOB] for state in self.states if JOB in state["live"]]


async def test_metrics_of_coordinator_and_shims(pair: Pair) -> None:
    taken = await pair.snapshot()

    async def released() -> dict[tuple[str, ...], float]:
        found = await asyncio.to_thread(scraped, pair.lab.control, f"{PAGE}/metrics")
        return found if found["allstop_parked_ranks", JOB] == 0 else {}

    found = await until("every shim's word that its ranks run", released)
    assert found["allstop_leader",] == 1
    assert found["allstop_epoch",] == taken.epoch
    assert found["allstop_connected_shims",] == found["allstop_carried_shims",] == 2
    assert found["allstop_attempts_total", JOB, "committed", "", ""] >= 1
    assert found["allstop_snapshot_step", JOB] == taken.step
    assert found["allstop_snapshot_size_bytes", JOB] == taken.image_bytes
    assert found["allstop_ranks", JOB] == 4
    assert 0 <= found["allstop_snapshot_age_seconds", JOB] < 60
    assert found["allstop_phase_duration_seconds_count", "checkpoint", "DUMP"] >= 1
    assert found["allstop_etcd_request_duration_seconds_count", "write", "ok"] >= 3
    assert ("allstop_hold_left_seconds", JOB) not in found
    for number, node in enumerate(NODES):
        host = pair.host(node)
        seen = await asyncio.to_thread(scraped, host, f"http://{SHIM}/metrics")
        assert seen["allstop_shim_connected",] == 1
        assert seen["allstop_shim_epoch",] == taken.epoch
        assert seen["allstop_shim_worker_state", JOB, "running", str(number)] == 1
        assert seen["allstop_shim_order_duration_seconds_count", "done", "DUMP"] >= 1
        assert seen["allstop_shim_held_seconds_count", JOB] >= 1
        assert seen["allstop_shim_dumped_bytes_total", JOB] > 0


async def test_what_is_held_is_seen(pair: Pair) -> None:
    """While rank 2 is late: who is parked, and how long the shims still wait."""
    await pair.stall(2)
    attempt = pair.checkpoint()
    await attempt.reached("PARKING")
    try:

        async def held() -> dict[tuple[str, ...], float]:
            found = await asyncio.to_thread(scraped, pair.lab.control, f"{PAGE}/metrics")
            return found if ("allstop_hold_left_seconds", JOB) in found else {}

        found = await until("the hold", held)
        assert 0 < found["allstop_hold_left_seconds", JOB] < 600
        assert found["allstop_job_state", JOB, "checkpointing"] == 1
        shim = await asyncio.to_thread(scraped, pair.host("n1"), f"http://{SHIM}/metrics")
        assert shim["allstop_shim_hold_left_seconds", JOB, "1"] > 0
    finally:
        pair.untell(2)
    assert (await attempt.ended()).snapshot is not None


async def test_the_page_follows_a_checkpoint(pair: Pair) -> None:
    viewer = Viewer(pair.lab.control)
    looking = asyncio.create_task(viewer.look())
    try:
        await until("the page", lambda: _has(viewer.states))
        await pair.stall(2)
        attempt = pair.checkpoint()

        async def awaited() -> bool:
            return any(
                live["state"] == "PARKING" and any(2 in each["ranks"] for each in live["awaited"])
                for live in viewer.live()
            )

        await until("rank 2 on the page", awaited)
        pair.untell(2)
        last = await attempt.ended()
        assert last.snapshot is not None

        async def over() -> bool:
            return bool(viewer.live()) and viewer.live()[-1]["last"]

        await until("its end on the page", over)
    finally:
        looking.cancel()
        pair.untell(2)
    rows = [row["state"] for row in viewer.live()[-1]["rows"]]
    assert rows[-1] == "COMMITTED"
    assert [each for each in rows if each in ("PARKING", "DUMPING", "PERSISTING")] == [
        "PARKING",
        "DUMPING",
        "PERSISTING",
    ]
    newest = viewer.states[-1]
    assert {each["node"] for each in newest["nodes"]} == set(NODES)
    control = pair.lab.control
    shown = json.loads(
        await asyncio.to_thread(get, control, f"{PAGE}/api/show/{last.snapshot.snapshot}")
    )
    assert {each["name"] for each in shown["trace"]["spans"]} >= {"PARK", "worker 1", "rank 2"}
    plan = json.loads(await asyncio.to_thread(get, control, f"{PAGE}/api/plan/{JOB}"))
    assert [each["to_node"] for each in plan["plan"]["placements"]] == list(NODES)
    page = await asyncio.to_thread(get, control, f"{PAGE}/trace/{last.snapshot.snapshot}")
    assert "rank 2" in page


async def _has(states: list[dict[str, Any]]) -> bool:
    return bool(states) and bool(states[-1]["jobs"])
