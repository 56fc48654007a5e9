"""One worker through every order with real drivers: saved on one host, restored on others."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from allstop.v1 import shim_pb2

from lab import Host, Lab
from tests.support.fake_coordinator import FakeCoordinator, Peer

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.timeout(120)]

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 600


def start_shim(
    host: Host, coordinator: FakeCoordinator, root: Path, criu: str, *argv: str
) -> subprocess.Popen[bytes]:
    shim = str(PROGRAMS / "shim.py")
    line = [sys.executable, shim, host.name, coordinator.address, str(root), criu, *argv]
    with open(root.parent / f"{host.name}.log", "ab") as log:
        return host.popen(line, stderr=log, stdout=log)


def done(result: shim_pb2.OrderResult) -> shim_pb2.OrderResult:
    assert not result.HasField("failure"), result.failure
    return result


async def ready(peer: Peer) -> None:
    """Wait until the rank has finished a step."""
    await peer.until(lambda m: any(r.boundary > 0 for w in m.report.workers for r in w.ranks), 20.0)


async def checkpoint(peer: Peer, action: str) -> shim_pb2.OrderResult:
    held = done(await peer.order("HOLD", action, cut="CUT_STEP"))
    target = max(rank.boundary for rank in held.ranks) + 1
    parked = done(await peer.order("PARK", action, target=target))
    assert [(rank.boundary, rank.parked) for rank in parked.ranks] == [(target, True)]
    done(await peer.order("DUMP", action, cut="CUT_STEP"))
    resumed = done(await peer.order("RESUME", action))
    assert resumed.held_ms > 0
    return done(await peer.order("PERSIST", action))


async def restore(peer: Peer, action: str, saved: shim_pb2.OrderResult, incarnation: int) -> None:
    done(await peer.order("FETCH", action, record=saved))
    done(await peer.order("CLEAR", action, record=saved))
    back = done(
        await peer.order("RESTORE", action, record=saved, incarnation=incarnation, workers=1)
    )
    assert back.root_pid == saved.record.root_pid
    done(await peer.order("RELEASE", action))


async def test_saved_here_restored_there_and_here_again(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0", "n1"])
    result = tmp_path / "result"
    loop = [sys.executable, str(PROGRAMS / "loop.py"), str(STEPS), str(result)]
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        first = start_shim(lab.hosts["n0"], coordinator, tmp_path / "n0", criu_path, *loop)
        spare = start_shim(lab.hosts["n1"], coordinator, tmp_path / "n0", criu_path)
        busy, free = await coordinator.peer("n0"), await coordinator.peer("n1")
        await ready(busy)
        saved = await checkpoint(busy, "llm-a1")
        assert saved.record.image_bytes > 8 << 20
        assert saved.record.manifest
        assert saved.record.manifest_digest

        await restore(busy, "llm-r1", saved, incarnation=2)  # in place, the old one killed
        running = await busy.state("running")
        assert running.incarnation == 2

        lab.hosts["n0"].power_off()
        await asyncio.to_thread(first.wait, 10)
        await restore(free, "llm-r2", saved, incarnation=3)
        ended = await free.until(lambda m: m.HasField("exited") and m.exited, 30.0)
        assert (ended.exit_code, ended.incarnation) == (0, 3)
        spare.terminate()
        assert await asyncio.to_thread(spare.wait, 20) == 0
    whole = hashlib.sha256("".join(str(n) for n in range(1, STEPS + 1)).encode())
    assert result.read_text() == whole.hexdigest()
    assert not list((tmp_path / "n0/staging").glob("*/*/*/images"))
