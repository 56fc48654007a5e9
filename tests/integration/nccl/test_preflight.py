"""The preflight of real processes with live communicators of the stand-in, by mode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.model import Severity
from tests.support.ports import free_port
from worker_shim.nccl import checking, launching, live
from worker_shim.nccl.modes import driver_version
from worker_shim.process import proc
from worker_shim.process.preflight import inspect
from worker_shim.process.view import TreeView, view

pytestmark = [pytest.mark.root, pytest.mark.cc]

PROGRAM = """
import ctypes, sys, time
nccl = ctypes.CDLL(sys.argv[1] or None)
assert nccl.fakeNcclInit(0, 1, b"127.0.0.1", int(sys.argv[2])) == 0
if sys.argv[3]:
    assert nccl.ncclCheckpointPrepare() == 0
def watch():
    ctypes.CDLL(None).prctl(15, b"pt_nccl_watchdg", 0, 0, 0)
    time.sleep(300)
import os, threading
if os.environ.get("WATCHED"):
    threading.Thread(target=watch, daemon=True).start()
    task = "/proc/self/task"
    while not any("pt_nccl" in open(f"{task}/{t}/comm").read() for t in os.listdir(task)):
        time.sleep(0.01)
open(sys.argv[4], "w").close()
time.sleep(300)
"""
SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
OF_KEEP = {name: value for name, value, _ in launching.OF_KEEP}

Look = Callable[..., TreeView]


@pytest.fixture
def look(nccl_shim: Path, tmp_path: Path) -> Iterator[Look]:
    """A rank in a mode, seen once it has its communicator."""
    started: list[subprocess.Popen[bytes]] = []
    # Under the name of NCCL itself, as the checks look for it.
    bare = Path(shutil.copy(nccl_shim, tmp_path / "libnccl.so.2"))

    def run(mode: str, *, preload: bool = True, down: bool = False, **env: str) -> TreeView:
        ready = tmp_path / f"ready{len(started)}"
        own = {"PATH": os.environ["PATH"], "RANK": "3", "ALLSTOP_NCCL_MODE": mode, **env}
        if preload:
            own["LD_PRELOAD"] = str(nccl_shim)
        library = "" if preload else str(bare)
        words = [library, str(free_port()), "down" if down else "", str(ready)]
        started.append(
            subprocess.Popen([sys.executable, "-c", PROGRAM, *words], env=own, cwd=tmp_path)
        )
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert started[-1].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return view(proc.look(started[-1].pid))

    yield run
    for child in started:
        child.terminate()
        child.wait(10)
    for left in Path("/dev/shm").glob("nccl-*"):
        left.unlink()


def refused(seen: TreeView) -> list[str]:
    return [f.code for f in checking.check(seen) if f.severity is Severity.REFUSE]


@pytest.mark.parametrize("mode", ["", "none"])
def test_live_communicators_are_refused_where_nothing_rebuilds_them(look: Look, mode: str) -> None:
    (finding,) = checking.check(look(mode))
    assert (finding.severity, finding.code, finding.rank) == (Severity.REFUSE, "nccl", 3)
    assert "/dev/shm/nccl-" in finding.text
    assert "--nccl rebuild" in finding.text
    assert refused(look(mode, down=True)) == []


def test_a_group_that_is_watched_counts_unless_it_is_of_one(look: Look) -> None:
    assert refused(look("none", down=True, WATCHED="1")) == ["nccl"]
    assert refused(look("none", down=True, WATCHED="1", WORLD_SIZE="1")) == []
    assert live.evidence(look("rebuild", down=True, WATCHED="1")) == {}, "it outlives them"


def test_evidence_is_memory_and_threads(look: Look) -> None:
    seen = look("rebuild")
    (signs,) = live.evidence(seen).values()
    assert "thread NCCL Service 0" in signs
    assert any(sign.startswith("/dev/shm/nccl-") for sign in signs)
    assert live.evidence(look("rebuild", down=True)) == {}


def test_rebuild_needs_the_shim_and_its_settings(look: Look) -> None:
    assert refused(look("rebuild", **SETTINGS)) == []
    assert refused(look("rebuild", preload=False, **SETTINGS)) == ["nccl_shim"]
    assert refused(look("rebuild")) == ["nccl_setting", "nccl_setting"]
    shared = {"NCCL_NVLS_ENABLE": "0", "NCCL_SHM_DISABLE": "1"}
    assert refused(look("rebuild", **shared)) == []


def test_keep_needs_sockets_alone_and_a_driver_that_can(look: Look) -> None:
    seen = look("keep", NCCL_NET="Socket", NCCL_P2P_DISABLE="1", NCCL_NVLS_ENABLE="0")
    assert refused(seen) == ["nccl_keep", "nccl_setting", "nccl_setting"]
    texts = " ".join(finding.text for finding in checking.check(seen))
    assert "NCCL_IB_DISABLE=1" in texts
    assert "NCCL_SHM_DISABLE=1" in texts


def test_keep_passes_with_a_driver_that_can(
    look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  610.57.04  Mon Nov 2\n")
    monkeypatch.setattr(checking, "driver_version", lambda: driver_version(version))
    seen = look("keep", **OF_KEEP, NCCL_NVLS_ENABLE="0")
    assert refused(seen) == []
    (finding,) = checking.check(seen)
    assert (finding.severity, finding.code) == (Severity.WARN, "nccl"), "which forbids a freeze"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.71.05  Mon Nov 2\n")
    assert refused(seen) == ["nccl_keep"]


def test_the_preflight_has_it(look: Look) -> None:
    seen = look("none")
    findings = inspect(proc.look(seen.processes[0].process.pid))
    assert "nccl" in [finding.code for finding in findings]
