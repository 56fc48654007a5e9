"""The preflight of real processes with live communicators of the stand-in, by mode."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core import agreement
from coordinator.core.model import Finding, Severity
from tests.support.ports import free_port
from worker_shim.compatibility.judging import findings
from worker_shim.compatibility.node import NodeSight
from worker_shim.compatibility.tree import situation
from worker_shim.nccl import live
from worker_shim.process import proc
from worker_shim.process.control import ControlPage
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
if os.environ.get("ALLSTOP_CONTROL_PAGE") and "RANK" in os.environ:
    from worker_shim.hook import communicators, slot
    mine = slot.claim(*slot.open_page(os.environ["ALLSTOP_CONTROL_PAGE"]), stepping=True)
    assert communicators.find(mine) is not None
if os.environ.get("MAPPED"):
    import mmap
    with open(os.environ["MAPPED"], "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if os.environ.get("FORKS") and os.fork() == 0:
    time.sleep(300)
open(sys.argv[4], "w").close()
time.sleep(300)
"""
SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
SOCKETS = {
    "NCCL_NET": "socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
}  # fmt: skip
NEIGHBOURS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
REPOSITORY = str(Path(__file__).parents[3])

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
        own = {name: value for name, value in own.items() if value}
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
        for pid in reversed(list(proc.walk(child.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        child.wait(10)
    for left in Path("/dev/shm").glob("nccl-*"):
        left.unlink()


def found(seen: TreeView, driver: str = "") -> dict[str, Finding]:
    """As the preflight has it on a node with this driver."""
    node = NodeSight("x86_64", {"driver": (driver,)} if driver else {})
    return {finding.code: finding for finding in findings(situation(seen, node))}


def refused(seen: TreeView, driver: str = "") -> set[str]:
    """What keeps it from being saved."""
    of_node = found(seen, driver).values()
    return {each.code for each in of_node if each.severity is Severity.REFUSE}


@pytest.mark.parametrize("mode", ["", "none"])
def test_live_communicators_are_refused_where_nothing_rebuilds_them(look: Look, mode: str) -> None:
    (finding,) = (f for f in found(look(mode)).values() if f.severity is Severity.REFUSE)
    assert (finding.code, finding.rank) == ("nccl_alive", 3)
    assert "/dev/shm/nccl-" in finding.text
    assert "--nccl rebuild" in finding.text
    assert refused(look(mode, down=True)) == set()
    assert "nccl" not in found(look(mode)), "one finding is enough"


def test_a_group_that_is_watched_counts_unless_it_is_of_one(look: Look) -> None:
    assert refused(look("none", down=True, WATCHED="1")) == {"nccl_alive"}
    assert refused(look("none", down=True, WATCHED="1", WORLD_SIZE="1")) == set()
    assert live.evidence(look("rebuild", down=True, WATCHED="1")) == {}, "it outlives them"


def test_evidence_is_memory_and_threads(look: Look) -> None:
    seen = look("rebuild")
    (signs,) = live.evidence(seen).values()
    assert "thread NCCL Service 0" in signs
    assert any(sign.startswith("/dev/shm/nccl-") for sign in signs)
    assert live.evidence(look("rebuild", down=True)) == {}


def test_rebuild_needs_the_shim_and_its_settings(look: Look) -> None:
    assert refused(look("rebuild", **SETTINGS, **NEIGHBOURS)) == set()
    assert refused(look("rebuild", preload=False, **SETTINGS)) == {"nccl_shim"}
    assert refused(look("rebuild", **NEIGHBOURS)) == {"nvls", "nccl_cumem_host"}
    shared = {"NCCL_NVLS_ENABLE": "0", "NCCL_SHM_DISABLE": "1"}
    assert refused(look("rebuild", **shared, **NEIGHBOURS)) == set()
    assert refused(look("rebuild", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")) == set(), "one a node"


def test_only_a_step_finds_no_collective_in_flight(look: Look) -> None:
    """The coordinator refuses a freeze by this code."""
    for mode in ("rebuild", "keep"):
        seen = found(look(mode, **SETTINGS))
        assert seen["nccl"].severity is Severity.WARN
        assert agreement.NCCL in seen


def test_keep_passes_with_sockets_alone_and_a_driver_that_can(look: Look) -> None:
    seen = look("keep", **SOCKETS, **NEIGHBOURS)
    assert refused(seen, "610.57.04") == set()
    assert refused(seen, "595.84") == {"nccl_keep", "driver_595_nccl"}
    assert refused(seen, "580.126.20") == {"nccl_keep"}


@pytest.mark.parametrize(
    ("without", "code"),
    [
        ("NCCL_NET", "nccl_keep_net"),
        ("NCCL_IB_DISABLE", "nccl_keep_ib"),
        ("NCCL_P2P_DISABLE", "nccl_ipc_cumem"),
        ("NCCL_SHM_DISABLE", "nccl_shm_alive"),
        ("NCCL_NVLS_ENABLE", "nvls"),
    ],
)
def test_keep_is_refused_for_each_thing_beside_sockets(look: Look, without: str, code: str) -> None:
    settings = {**SOCKETS, **NEIGHBOURS, without: ""}
    seen = look("keep", **settings)
    assert refused(seen, "610.57.04") == {code}
    assert without in found(seen, "610.57.04")[code].text


def test_keep_by_legacy_ipc_is_refused_too(look: Look) -> None:
    settings = {**SOCKETS, **NEIGHBOURS, "NCCL_P2P_DISABLE": "0", "NCCL_CUMEM_ENABLE": "0"}
    assert refused(look("keep", **settings), "610.57.04") == {"nccl_ipc_legacy"}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a worker's environment says of its control page."""
    with ControlPage.create(tmp_path / "page", 4) as made:
        yield {"ALLSTOP_CONTROL_PAGE": str(made.path), "PYTHONPATH": REPOSITORY}


def test_communicators_of_a_process_that_is_no_rank_are_named(
    look: Look, page: dict[str, str]
) -> None:
    assert refused(look("rebuild", **SETTINGS, **page)) == set()
    seen = look("rebuild", **SETTINGS, **{**page, "RANK": ""})
    (helper,) = seen.processes
    finding = found(seen)["nccl_no_rank"]
    assert (finding.severity, finding.pid) == (Severity.REFUSE, helper.process.pid)
    assert "/dev/shm/nccl-" in finding.text


def test_what_a_child_has_of_its_rank_is_the_ranks(look: Look, page: dict[str, str]) -> None:
    seen = look("rebuild", FORKS="1", **SETTINGS, **page)
    assert len(live.evidence(seen)) == 2
    assert refused(seen) == set()


def test_a_page_that_is_none_says_nothing(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    (tmp_path / "short").write_bytes(b"allstop")
    for other in (path, tmp_path / "short", tmp_path / "none", tmp_path):
        settings = {**SETTINGS, "RANK": "", "ALLSTOP_CONTROL_PAGE": str(other)}
        assert refused(look("rebuild", **settings)) == set(), other


@pytest.mark.parametrize(
    ("built_for", "version", "skewed"),
    [
        ("23007", "2.30.7", False),
        ("23007", "2.31.2", True),
        ("23102", "2.30.7", True),
        ("0", "2.30.7", False),
        ("23007", "", False),
    ],
)
def test_a_shim_for_another_nccl_is_refused(
    look: Look, page: dict[str, str], tmp_path: Path, built_for: str, version: str, skewed: bool
) -> None:
    library = tmp_path / (f"libnccl.so.{version}" if version else "libnccl.so.2")
    if not version:
        library = tmp_path / "silent" / library.name
        library.parent.mkdir()
    library.write_bytes(bytes(4096))
    seen = look("rebuild", MAPPED=str(library), FAKE_NCCL_BUILT_FOR=built_for, **SETTINGS, **page)
    assert refused(seen) == ({"nccl_shim_skew"} if skewed else set())
    if skewed:
        assert version in found(seen)["nccl_shim_skew"].text
    assert ("nccl_unknown" in found(seen)) is not bool(version)


def test_the_preflight_has_it(look: Look) -> None:
    seen = look("none")
    codes = [each.code for each in inspect(proc.look(seen.processes[0].process.pid))]
    assert "nccl_alive" in codes
