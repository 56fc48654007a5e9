"""The features of a tree on real processes: open and mapped files, forks, threads, environment."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker_shim.compatibility import libraries
from worker_shim.compatibility import tree as compatibility
from worker_shim.compatibility.features import Feature, NodeFeature, Seen, TreeFeature
from worker_shim.compatibility.judging import findings
from worker_shim.compatibility.node import NodeSight, without_gpus
from worker_shim.compatibility.situation import Situation
from worker_shim.process import proc
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.preflight import inspect
from worker_shim.process.view import TreeView, view

READY_S = 20
BEGIN = """
import ctypes, os, sys, threading, time
dev = sys.argv[2]
def opened(name):
    return os.open(dev + name, os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def mapped(path, times=1):
    fd = os.open(path, os.O_RDONLY)
    for _ in range(times):
        at = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
        assert at != ctypes.c_void_p(-1).value
    os.close(fd)
done = sys.argv[1] + ".done"
def thread(name):
    def run():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        named.set()
        time.sleep(300)
    named = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    named.wait()
"""
END = """
open(sys.argv[1], "w").close()
time.sleep(300)
"""
GPU = "kept = [opened('nvidiactl'), opened('nvidia0')]\n"
NCCL = GPU + "thread('pt_nccl_watchdg')\n"
DEVICES = (
    "nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-fs0", "nvidia-caps/nvidia-cap66",
    "nvidia-caps-imex-channels/channel0", "infiniband/uverbs0",
)  # fmt: skip
MISCELLANEOUS = ("/dev/loop-control", "/dev/fuse", "/dev/net/tun")
Look = Callable[..., Situation]


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """Files that stand where device files would, a page each; what their paths begin with."""
    for name in DEVICES:
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(4096))
    return f"{tmp_path}/dev/"


@pytest.fixture
def start(tmp_path: Path, devices: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Run a program to the end of its preparation."""
    started: list[subprocess.Popen[bytes]] = []

    def run(program: str, **settings: str) -> subprocess.Popen[bytes]:
        ready = tmp_path / f"ready{len(started)}"
        child = subprocess.Popen(
            [sys.executable, "-c", BEGIN + program + END, str(ready), devices],
            env={"PATH": os.environ["PATH"], "RANK": "3", **settings},
            cwd=tmp_path,
        )
        started.append(child)
        until = time.monotonic() + READY_S
        while not ready.exists():
            assert child.poll() is None, "it ended"
            assert time.monotonic() < until, "it is not ready"
            time.sleep(0.001)
        return child

    yield run
    for child in started:
        for pid in reversed(list(proc.walk(child.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        child.wait(READY_S)


@pytest.fixture
def look(start: Callable[..., subprocess.Popen[bytes]], devices: str) -> Look:
    """The situation of a program that runs."""

    def run(program: str, node: NodeSight | None = None, **settings: str) -> Situation:
        seen = view(proc.look(start(program, **settings).pid))
        return judged(seen, node or NodeSight("x86_64"), devices)

    return run


def judged(tree: TreeView, node: NodeSight, devices: str) -> Situation:
    """As on a machine whose devices are here."""
    places = (f"{devices}nvidia", f"{devices}infiniband/")
    return compatibility.situation(tree, node, *places)


def said(situation: Situation, feature: Feature) -> str:
    """What the only process that shows it shows."""
    (seen,) = situation.features[feature]
    return seen.what


SHOWN = {
    TreeFeature.GPU: ("kept = opened('nvidia0')", {}, "has descriptor 3 on {dev}nvidia0"),
    TreeFeature.GPU_DIRECT_STORAGE: (GPU + "opened('nvidia-fs0')", {}, "{dev}nvidia-fs0"),
    TreeFeature.MIG_DEVICE: (
        GPU + "opened('nvidia-caps/nvidia-cap66')", {}, "{dev}nvidia-caps/nvidia-cap66",
    ),
    TreeFeature.IMEX_CHANNEL: (
        GPU + "opened('nvidia-caps-imex-channels/channel0')", {}, "channel0",
    ),
    TreeFeature.INFINIBAND: (
        "mapped(dev + 'infiniband/uverbs0')", {}, "maps {dev}infiniband/uverbs0",
    ),
    TreeFeature.MANAGED_MEMORY: (
        GPU + "mapped(dev + 'nvidia-uvm', 2)", {}, "maps 2 areas of {dev}nvidia-uvm",
    ),
    TreeFeature.CUDA_JOB: (GPU, {"CUDA_CHECKPOINT_JOB_FILE": "/j"}, "is of the CUDA job /j"),
    TreeFeature.NCCL: (NCCL, {"WORLD_SIZE": "1"}, "has a thread pt_nccl_watchdg"),
    TreeFeature.NCCL_PEERS: (GPU + "thread('NCCL Progress 0')", {}, "has a thread NCCL Progress 0"),
    TreeFeature.NCCL_RAS: (NCCL, {}, "NCCL_RAS_ENABLE is not set"),
    TreeFeature.NCCL_STATIC: (NCCL, {}, "has NCCL and no libnccl.so"),
    TreeFeature.NCCL_HEARTBEAT: (NCCL, {}, "480 s"),
    TreeFeature.NCCL_RETHROW: (NCCL, {}, "TORCH_NCCL_RETHROW_CUDA_ERRORS is not set"),
}  # fmt: skip

NOT_SHOWN = {
    TreeFeature.GPU: [("kept = opened('infiniband/uverbs0')", {})],
    TreeFeature.MIG_DEVICE: [(GPU + "opened('nvidia-caps-imex-channels/channel0')", {})],
    TreeFeature.IMEX_CHANNEL: [(GPU + "opened('nvidia-caps/nvidia-cap66')", {})],
    TreeFeature.MANAGED_MEMORY: [
        (GPU + "mapped(dev + 'nvidia-uvm'), mapped(dev + 'nvidia0', 2)", {}),
        (GPU, {"TF_FORCE_UNIFIED_MEMORY": "0"}),
    ],
    TreeFeature.CUDA_JOB: [(GPU, {}), ("", {"CUDA_CHECKPOINT_JOB_FILE": "/j"})],
    TreeFeature.NCCL: [(GPU + "thread('pt_autograd_0')", {}), ("thread('pt_nccl_watchdg')", {})],
    TreeFeature.NCCL_PEERS: [(NCCL, {"WORLD_SIZE": "1"})],
    TreeFeature.NCCL_RAS: [(NCCL, {"NCCL_RAS_ENABLE": "0"})],
    TreeFeature.NCCL_HEARTBEAT: [
        (NCCL, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600"}),
        (NCCL, {"TORCH_NCCL_ENABLE_MONITORING": "0"}),
        (GPU + "thread('NCCL Progress 0')", {}),
    ],
    TreeFeature.NCCL_RETHROW: [(NCCL, {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"})],
}


@pytest.mark.parametrize("feature", SHOWN)
def test_a_feature_is_seen(look: Look, devices: str, feature: TreeFeature) -> None:
    program, settings, words = SHOWN[feature]
    situation = look(program, **settings)
    assert words.format(dev=devices) in said(situation, feature)
    (seen,) = situation.features[feature]
    assert seen.pid > 0
    assert seen.rank == 3
    assert seen.name.startswith("python")


@pytest.mark.parametrize("feature", NOT_SHOWN)
def test_what_only_looks_like_it_is_not_taken_for_it(look: Look, feature: TreeFeature) -> None:
    for program, settings in NOT_SHOWN[feature]:
        assert feature not in look(program, **settings).features, (program, settings)


def test_managed_memory_can_be_asked_for_by_environment(look: Look) -> None:
    assert TreeFeature.MANAGED_MEMORY in look(GPU, TF_FORCE_UNIFIED_MEMORY="1").features


def test_a_mig_instance_can_be_asked_for_by_name(look: Look) -> None:
    what = said(look(GPU, CUDA_VISIBLE_DEVICES="MIG-1b2c"), TreeFeature.MIG_DEVICE)
    assert "CUDA_VISIBLE_DEVICES=MIG-1b2c" in what
    assert TreeFeature.MIG_DEVICE not in look(GPU, CUDA_VISIBLE_DEVICES="GPU-1b2c").features


def test_an_mps_daemon_is_found_where_the_process_would_find_it(look: Look, tmp_path: Path) -> None:
    pipes = tmp_path / "mps"
    pipes.mkdir()
    assert TreeFeature.MPS_CLIENT not in look(GPU, CUDA_MPS_PIPE_DIRECTORY=str(pipes)).features
    (pipes / "control").touch()
    what = said(look(GPU, CUDA_MPS_PIPE_DIRECTORY=str(pipes)), TreeFeature.MPS_CLIENT)
    assert what == f"finds an MPS daemon at {pipes}"


FORK = """
child = os.fork()
if not child:
    {child}
    time.sleep(300)
"""


def test_a_forked_process_that_holds_the_device_is_named_with_what_it_holds(look: Look) -> None:
    again = "os.fork() and time.sleep(300)"
    situation = look(GPU + FORK.format(child=again) + "time.sleep(0.1)\n")
    owner, *none = situation.features[TreeFeature.GPU]
    assert not none
    heirs = situation.features[TreeFeature.INHERITED_DEVICE]
    assert 1 <= len(heirs) <= 2
    for heir in heirs:
        assert heir.pid != owner.pid
        assert heir.what == f"descriptors 3, 4 of pid {owner.pid}"
    (found,) = [f for f in findings(situation) if f.code == "inherited_device"]
    assert all(str(heir.pid) in found.text for heir in heirs)
    assert "descriptors 3, 4" in found.text


@pytest.mark.parametrize(
    "child",
    [
        "kept.append(opened('nvidia0'))",  # it has begun to use it itself
        "os.closerange(3, 9); kept = [opened('nvidiactl'), opened('nvidia0')]",  # same numbers
        "os.closerange(3, 9)",
        "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(300)'])",
    ],
)
def test_a_child_with_its_own_devices_or_none_is_no_heir(look: Look, child: str) -> None:
    mark = f"{child}; open(done, 'w').close()" if "exec" not in child else child
    until = "" if "exec" in child else "while not os.path.exists(done): time.sleep(0.001)\n"
    situation = look(GPU + FORK.format(child=mark) + until)
    assert TreeFeature.INHERITED_DEVICE not in situation.features


def test_a_second_rank_of_the_node_makes_neighbours(look: Look) -> None:
    own = "os.closerange(3, 9); again = [opened('nvidiactl'), opened('nvidia1')]"
    mark = f"{own}; thread('pt_nccl_watchdg'); open(done, 'w').close()"
    until = "while not os.path.exists(done): time.sleep(0.001)\n"
    both = NCCL + FORK.format(child=mark) + until
    of_neighbours = {
        TreeFeature.NCCL_CUMEM, TreeFeature.NCCL_P2P,
        TreeFeature.NCCL_CUMEM_HOST, TreeFeature.NCCL_NVLS,
    }  # fmt: skip
    assert not of_neighbours & set(look(NCCL).features)
    situation = look(both, WORLD_SIZE="2")
    assert of_neighbours <= set(situation.features)
    assert len(situation.features[TreeFeature.NCCL_NVLS]) == 2
    for variable, value, feature in (
        ("NCCL_CUMEM_ENABLE", "0", TreeFeature.NCCL_CUMEM),
        ("NCCL_P2P_DISABLE", "1", TreeFeature.NCCL_P2P),
        ("NCCL_CUMEM_HOST_ENABLE", "0", TreeFeature.NCCL_CUMEM_HOST),
        ("NCCL_SHM_DISABLE", "1", TreeFeature.NCCL_CUMEM_HOST),
        ("NCCL_NVLS_ENABLE", "0", TreeFeature.NCCL_NVLS),
    ):
        off = set(look(both, WORLD_SIZE="2", **{variable: value}).features)
        assert of_neighbours - off == {feature}, variable


def test_nccls_shared_memory_is_evidence(look: Look) -> None:
    segment = Path(f"/dev/shm/nccl-test{os.getpid()}")
    segment.write_bytes(bytes(4096))
    try:
        what = said(look(GPU + f"mapped({str(segment)!r})"), TreeFeature.NCCL)
    finally:
        segment.unlink()
    assert what == f"maps {segment}"


def test_the_checkpoint_shim_of_nccl_is_seen_by_its_name(look: Look, tmp_path: Path) -> None:
    shim = tmp_path / "libnccl-checkpoint-shim.so"
    shim.write_bytes(bytes(4096))
    assert TreeFeature.NCCL_REBUILD not in look(NCCL).features
    situation = look(NCCL + f"mapped({str(shim)!r})")
    assert said(situation, TreeFeature.NCCL_REBUILD) == "has libnccl-checkpoint-shim.so"
    kept = look(NCCL + f"mapped({str(shim)!r})", ALLSTOP_NCCL_MODE="keep")
    assert TreeFeature.NCCL_REBUILD not in kept.features, "nobody will call it"


def test_nccls_version_is_in_the_name_or_in_the_file(
    look: Look, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    named = tmp_path / "libnccl.so.2.27.3"
    named.write_bytes(bytes(4096))
    (tmp_path / "a").mkdir()
    told = tmp_path / "a" / "libnccl.so.2"
    told.write_bytes(bytes(5000) + b"NCCL version %d\0NCCL version 2.30.7+cuda13.0\0" + bytes(99))
    (tmp_path / "b").mkdir()
    silent = tmp_path / "b" / "libnccl.so.2"
    silent.write_bytes(bytes(4096))
    for path, version in ((named, "2.27.3"), (told, "2.30.7"), (silent, "unknown")):
        situation = look(GPU + f"mapped({str(path)!r})")
        assert situation.versions["nccl"] == (version,), path
    (process,) = view(proc.look(start(GPU + f"mapped({str(told)!r})").pid)).processes
    sentence = b"NCCL version 2.31.12+cuda13.0\0"
    for shift in range(len(sentence)):  # a new build there, cut anywhere by the way it is read
        told.write_bytes(bytes(libraries.CHUNK_BYTES - shift) + sentence + bytes(shift))
        assert libraries.nccl_versions(process) == ("2.31.12",), shift


def test_torchs_version_is_that_of_its_installation(look: Look) -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    situation = look(GPU + f"mapped({str(library)!r})")
    version = importlib.metadata.version("torch")
    assert situation.versions["torch"] == (version,)
    assert version in said(situation, TreeFeature.TORCH)


@pytest.mark.root
def test_shared_memory_of_a_user_is_told_from_roots(look: Look) -> None:
    mine = "fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR, 0o600)\n"
    assert TreeFeature.USER_SHM not in look(mine).features
    child = "if not os.fork(): os.setuid(1234); os.write(w, b'x'); time.sleep(300)\n"
    user = "r, w = os.pipe()\n" + child + "os.read(r, 1)\n"
    situation = look(mine + user)
    assert "on /dev/shm/" in said(situation, TreeFeature.USER_SHM)
    assert TreeFeature.USER_SHM not in look(user).features


def test_a_stopped_process_is_told(
    start: Callable[..., subprocess.Popen[bytes]], devices: str
) -> None:
    child = start(GPU)
    child.send_signal(19)
    until = time.monotonic() + READY_S
    while (stat := proc.read_stat(child.pid)) is None or stat.state != "T":
        assert time.monotonic() < until
        time.sleep(0.001)
    seen = view(proc.look(child.pid))
    situation = judged(seen, NodeSight("x86_64"), devices)
    assert said(situation, TreeFeature.STOPPED) == "is stopped (SIGSTOP, Ctrl-Z)"


def test_a_frozen_cgroup_is_told(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = next(
        line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"
    )
    events = tmp_path / "cgroups" / group.lstrip("/") / "cgroup.events"
    events.parent.mkdir(parents=True)
    monkeypatch.setattr(compatibility, "CGROUPS", tmp_path / "cgroups")
    events.write_text("populated 1\nfrozen 0\n")
    assert TreeFeature.FROZEN_CGROUP not in look(GPU).features
    events.write_text("populated 1\nfrozen 1\n")
    assert said(look(GPU), TreeFeature.FROZEN_CGROUP) == group


def test_what_is_seen_reaches_the_preflights_findings(look: Look) -> None:
    """A GPU is refused where nothing can save it, and only there."""
    found = {f.code: f for f in findings(look(GPU, without_gpus()))}
    assert "nvidia" in found["gpu"].text
    assert found["gpu"].rank == 3
    able = NodeSight("x86_64", {"driver": ("580.65.06",)})
    assert "gpu" not in {f.code for f in findings(look(GPU, able))}
    old = NodeSight("x86_64", {"driver": ("550.54.14",)}, {NodeFeature.MIG: (Seen("GPU 0"),)})
    codes = {f.code for f in findings(look(GPU, old))}
    assert {"driver_too_old", "mig"} <= codes
    assert not list(findings(look("", old)))
    rdma = {f.code for f in findings(look("kept = opened('infiniband/uverbs0')", old))}
    assert rdma == {"infiniband"}


@pytest.mark.root
def test_the_drivers_preflight_asks_for_its_node(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    child = start(
        "fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR, 0o600)\n"
        "r, w = os.pipe()\n"
        "if not os.fork(): os.setuid(1234); os.write(w, b'x'); time.sleep(300)\n"
        "os.read(r, 1)\n"
    )
    logind = NodeSight("x86_64", {}, {NodeFeature.REMOVE_IPC: (Seen("its default"),)})
    tree = proc.look(child.pid)
    found = LinuxProcessDriver(lambda: logind).preflight(tree)
    assert [f.code for f in found] == ["remove_ipc"]
    assert LinuxProcessDriver().preflight(tree) == ()


@pytest.mark.root
def test_a_device_of_nvidias_is_judged_by_the_table_alone(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    """A real character device under such a name: with a driver it is no reason to refuse."""
    like = next((path for path in map(Path, MISCELLANEOUS) if path.exists()), None)
    if like is None:
        pytest.skip("this machine has no device to lend")
    device = Path(f"/dev/nvidia-allstop-{os.getpid()}")
    os.mknod(device, stat.S_IFCHR | 0o600, like.stat().st_rdev)
    try:
        child = start(f"kept = os.open({str(device)!r}, os.O_RDWR)")
        tree = proc.look(child.pid)
        able = NodeSight("x86_64", {"driver": ("590.44.01",)})
        assert inspect(tree, lambda: able) == ()
        (refused,) = inspect(tree)
        assert (refused.code, refused.pid) == ("gpu", child.pid)
        assert str(device) in refused.text
    finally:
        device.unlink()
