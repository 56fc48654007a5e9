"""Workers through every order with real drivers: saved on some hosts, restored on others."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.model import AddressMove
from lab import Lab
from tests.integration.agent.kit import (
    LOOP,
    checkpoint,
    contents,
    done,
    exit_of,
    reached,
    restore,
    start_shim,
)
from tests.support.fake_coordinator import FakeCoordinator

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.timeout(120)]

STEPS = 600
DIGITS = str(Path(__file__).parents[3] / "examples" / "digits_ddp.py")


def looped(steps: int) -> str:
    return hashlib.sha256("".join(str(n) for n in range(1, steps + 1)).encode()).hexdigest()


def staged(root: Path) -> list[Path]:
    """What lies there for an order, not for a later restore alone."""
    return [place for place in root.glob("*/staging/*/*/*") if not (place / "kept").exists()]


async def test_saved_here_restored_here_and_there(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0", "n1"])
    result = tmp_path / "result"
    loop = ["0", "1", sys.executable, LOOP, str(STEPS), str(result)]
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        first = start_shim(lab.hosts["n0"], coordinator, tmp_path, criu_path, *loop)
        spare = start_shim(lab.hosts["n1"], coordinator, tmp_path, criu_path)
        busy, free = await coordinator.peer("n0"), await coordinator.peer("n1")
        await reached(busy, 5)
        saved = await checkpoint([busy], "llm-a1")
        assert saved[0].record.image_bytes > 8 << 20
        stored = contents(tmp_path / "store")

        (back,) = await restore([busy], "llm-r1", saved, 2)  # in place, the old one killed
        log = "/run/allstop/llm/0/log"
        (file,) = back.files  # what the killed one had printed since
        assert (file.node, file.path, file.what) == ("n0", log, "cut")
        assert file.aside == f"{log}.after-llm-a1"
        tail = lab.hosts["n0"].run(["cat", file.aside]).stdout
        assert len(tail) == file.size_bytes
        assert tail.startswith("step ")
        assert (await busy.state("running")).incarnation == 2

        lab.hosts["n0"].power_off()
        await exit_of(first)
        (back,) = await restore([free], "llm-r2", saved, 3)
        assert not back.files, "there was nothing on that node"
        ended = await free.until(lambda m: m.HasField("exited") and m.exited, 30.0)
        assert (ended.exit_code, ended.incarnation) == (0, 3)
        spare.terminate()
        assert await exit_of(spare) == 0
    assert result.read_text() == looped(STEPS)
    assert staged(tmp_path) == []
    assert contents(tmp_path / "store") == stored  # nobody wrote through a link into it


async def test_frozen_undone_and_run_on_to_the_workers_own_exit_code(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0"])
    result = tmp_path / "result"
    loop = ["0", "1", sys.executable, LOOP, "300", str(result)]
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        shim = start_shim(lab.hosts["n0"], coordinator, tmp_path, criu_path, *loop)
        peer = await coordinator.peer("n0")
        await reached(peer, 5)
        done(await peer.order("DUMP", "llm-a1", cut="CUT_FREEZE"))
        assert (await peer.state("stopped")).ranks[0].boundary > 0
        done(await peer.order("UNDO", "llm-a1"))
        assert staged(tmp_path) == []
        # the dead-man timer, for real: nobody says a word after this
        done(await peer.order("DUMP", "llm-a2", cut="CUT_FREEZE", hold_s=0.5))
        let_go = await peer.until(lambda m: m.result.action == "llm-a2" and m.result.held_ms, 10.0)
        assert let_go >= 100
        assert await exit_of(shim) == 0
        assert (await peer.until(lambda m: m.HasField("goodbye") and m.goodbye, 5.0)).reason
    assert result.read_text() == looped(300)


async def test_sigterm_ends_the_worker_and_says_goodbye(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0"])
    loop = ["0", "1", sys.executable, LOOP, "100000", str(tmp_path / "result")]
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        shim = start_shim(lab.hosts["n0"], coordinator, tmp_path, criu_path, *loop)
        peer = await coordinator.peer("n0")
        await reached(peer, 2)
        shim.terminate()
        assert await exit_of(shim) == 128 + 15
        goodbye = await peer.until(lambda m: m.HasField("goodbye") and m.goodbye, 5.0)
        assert "SIGTERM" in goodbye.reason
        kinds = [message.WhichOneof("body") for message in peer.seen]
        (told,) = [message.notice for message in peer.seen if message.HasField("notice")]
        assert (told.kind, told.why) == (shim_pb2.NOTICE_KIND_END, goodbye.reason)
        ends = [kinds.index(each) for each in ("exited", "goodbye") if each in kinds]
        assert kinds.index("notice") < min(ends), "it says so before anything ends"
    left = lab.hosts["n0"].run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    assert LOOP not in left


async def test_a_missing_binary_leaves_nothing(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0"])
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        shim = start_shim(lab.hosts["n0"], coordinator, tmp_path, criu_path, "0", "1", "/no/such")
        assert await exit_of(shim) == 1
        assert coordinator.streams == 0
    assert "/no/such" in (tmp_path / "n0.log").read_text()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_torchrun_loses_a_node_and_goes_on_at_another_address(
    make_lab: Callable[..., Lab], tmp_path: Path, criu_path: str
) -> None:
    lab = make_lab(["n0", "n1", "n2"])
    result, undisturbed = tmp_path / "result.json", tmp_path / "undisturbed.json"

    def torchrun(node: int, into: Path) -> list[str]:
        line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        line += ["--nproc-per-node", "2", "--node-rank", str(node)]
        line += ["--master-addr", lab.hosts["n0"].address, "--master-port", "29500"]
        return [
            *line,
            DIGITS,
            "--epochs",
            "16",
            "--hidden",
            "64",
            "--workers",
            "0",
            "--result",
            str(into),
        ]

    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        shims = [
            start_shim(
                lab.hosts[f"n{n}"], coordinator, tmp_path, criu_path,
                str(n), "2", *torchrun(n, result),
            )
            for n in range(2)
        ]  # fmt: skip
        spare = start_shim(lab.hosts["n2"], coordinator, tmp_path, criu_path)
        peers = [await coordinator.peer(f"n{n}") for n in range(2)]
        for peer in peers:
            await reached(peer, 10, 150.0)
        saved = await checkpoint(peers, "llm-a1")
        stored = contents(tmp_path / "store")
        await reached(peers[0], saved[0].record.ranks[0].boundary + 5)
        lab.hosts["n1"].power_off()
        moves = (AddressMove(lab.hosts["n1"].address, lab.hosts["n2"].address),)
        await restore([peers[0], await coordinator.peer("n2")], "llm-r1", saved, 2, moves)
        assert contents(tmp_path / "store") == stored  # with addresses rewritten in the images
        assert await exit_of(shims[0], 200.0) == 0
        spare.terminate()
        assert await exit_of(spare) == 0
    answer = json.loads(result.read_text())
    plain: list[Any] = [
        lab.add_host(f"m{n}").popen(torchrun(n, undisturbed)) for n in range(1, 2)
    ] + [lab.hosts["n0"].popen(torchrun(0, undisturbed))]
    assert [await exit_of(each, 200.0) for each in plain] == [0, 0]
    assert answer == json.loads(undisturbed.read_text())
