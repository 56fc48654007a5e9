"""The features of a tree on real processes: open and mapped files, forks, threads, environment."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from tests.integration.compatibility.kit import FORK, GPU, NCCL, READY_S, Look, Start, judged, said
from worker_shim.compatibility import tree as compatibility
from worker_shim.compatibility.features import NodeFeature, Seen, TreeFeature
from worker_shim.compatibility.judging import findings
from worker_shim.compatibility.node import NodeSight, without_gpus
from worker_shim.process import proc
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.preflight import inspect
from worker_shim.process.view import view

MISCELLANEOUS = ("/dev/loop-control", "/dev/fuse", "/dev/net/tun")
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
    TreeFeature.NCCL: (NCCL, {"WORLD_SIZE": "1"}, "thread pt_nccl_watchdg"),
    TreeFeature.NCCL_PEERS: (GPU + "thread('NCCL Progress 0')", {}, "thread NCCL Progress 0"),
    TreeFeature.NCCL_RAS: (NCCL, {}, "NCCL_RAS_ENABLE is not set"),
    TreeFeature.NCCL_STATIC: (NCCL, {}, "has NCCL and no libnccl.so"),
    TreeFeature.NCCL_NET: (NCCL, {"NCCL_NET": "IB"}, "NCCL_NET=IB"),
    TreeFeature.NCCL_IB: (NCCL, {"NCCL_IB_DISABLE": "0"}, "NCCL_IB_DISABLE=0"),
    TreeFeature.NCCL_LIVE: (
        GPU + "thread('NCCL Progress 0')", {"WORLD_SIZE": "1"}, "thread NCCL Progress 0",
    ),
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
    TreeFeature.NCCL: [(GPU + "thread('pt_autograd_0')", {})],
    TreeFeature.NCCL_LIVE: [(NCCL, {"WORLD_SIZE": "1"})],
    TreeFeature.NCCL_NET: [(NCCL, {"NCCL_NET": "Socket"}), (NCCL, {"NCCL_NET": "socket"})],
    TreeFeature.NCCL_IB: [(NCCL, {"NCCL_IB_DISABLE": "1"}), (NCCL, {"WORLD_SIZE": "1"})],
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


def test_an_mps_daemon_counts_where_it_listens(look: Look, tmp_path: Path) -> None:
    """What a killed one has left is none; its place may hold a pipe or a socket."""
    pipes = tmp_path / "mps"
    pipes.mkdir()
    control = pipes / "control"

    def seen() -> bool:
        situation = look(GPU, CUDA_MPS_PIPE_DIRECTORY=str(pipes))
        if TreeFeature.MPS_CLIENT not in situation.features:
            return False
        assert said(situation, TreeFeature.MPS_CLIENT) == f"finds an MPS daemon at {pipes}"
        return True

    assert not seen()
    control.touch()
    assert not seen(), "a plain file"
    control.unlink()
    os.mkfifo(control)
    assert not seen(), "a pipe that nobody reads"
    reader = os.open(control, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert seen()
    finally:
        os.close(reader)
    control.unlink()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(control))
        assert not seen(), "bound, and nobody accepts"
        daemon.listen(0)
        assert seen()
        assert seen(), "asked twice, its queue is full"
    assert not seen(), "the daemon has ended"


@pytest.mark.parametrize(
    ("minors", "capability", "is_instance"),
    [
        (None, 66, True),
        (None, 1, False),
        (None, 2, False),
        (frozenset({66}), 66, True),
        (frozenset({67}), 66, False),
        (frozenset(), 66, False),
        (frozenset({1}), 1, True),
    ],
)
def test_a_capability_is_an_instances_by_the_drivers_list(
    look: Look, minors: frozenset[int] | None, capability: int, is_instance: bool
) -> None:
    """NVML may open those of MIG's configuration in any rank."""
    node = NodeSight("x86_64", mig_minors=minors)
    situation = look(GPU + f"opened('nvidia-caps/nvidia-cap{capability}')", node)
    assert (TreeFeature.MIG_DEVICE in situation.features) is is_instance


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


TELL = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(300)"


@pytest.mark.parametrize(
    "child",
    [
        "kept.append(opened('nvidia0'))",  # it has begun to use it itself
        "os.closerange(3, 9); kept = [opened('nvidiactl'), opened('nvidia0')]",  # same numbers
        "os.closerange(3, 9)",
        "os.execv(sys.executable, [sys.executable, '-c', TELL, done])",
    ],
)
def test_a_child_with_its_own_devices_or_none_is_no_heir(look: Look, child: str) -> None:
    mark = child if "exec" in child else f"{child}; open(done, 'w').close()"
    until = "while not os.path.exists(done): time.sleep(0.001)\n"
    situation = look(GPU + f"TELL = {TELL!r}\n" + FORK.format(child=mark) + until)
    assert TreeFeature.INHERITED_DEVICE not in situation.features


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


def test_a_stopped_process_is_told(start: Start, devices: str) -> None:
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
    start: Start,
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
    start: Start,
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
