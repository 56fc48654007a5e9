"""A node's features: files below a root of their own, and a real program called nvidia-smi."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.model import Gpu
from worker_shim.compatibility import node
from worker_shim.compatibility.features import NodeFeature
from worker_shim.compatibility.node import NodeEyes, NodeSight, without_gpus
from worker_shim.process.runner import CommandRunner

F = NodeFeature
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x@y)\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.158.01  Thu May  8 01:38:43 UTC 2025\n"
)
SMI = """#!/bin/sh
case "$1" in
conf-compute) {confidential} ;;
*) {each} ;;
esac
"""
GPU = Gpu(0, "GPU-0", "NVIDIA H100", 1, 1, "00000000:17:00.0", architecture="9.0", minor=0)


def put(root: Path, path: str, text: str = "") -> Path:
    """A file of the node."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with a driver and one GPU, and nothing else."""
    made = tmp_path / "root"
    put(made, "proc/driver/nvidia/version", VERSION)
    put(made, "proc/driver/nvidia/gpus/0000:17:00.0/information", "Device Minor: \t 0\n")
    return made


async def seen(
    root: Path, monkeypatch: pytest.MonkeyPatch, confidential: str, each: str
) -> NodeSight:
    """What is seen where nvidia-smi does this."""
    program = put(root.parent, "bin/nvidia-smi", SMI.format(confidential=confidential, each=each))
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    eyes = NodeEyes(CommandRunner(), root)
    await eyes.ask()
    return eyes.look()


@pytest.mark.parametrize(
    ("confidential", "each", "features", "compute"),
    [
        ("echo CC status: OFF", "echo 9.0, Enabled", set(), ("9.0",)),
        ("echo CC status: ON", "echo 9.0, Enabled", {F.CONFIDENTIAL}, ("9.0",)),
        ("exit 9", "echo 9.0, Enabled", {F.CONFIDENTIAL_UNKNOWN}, ("9.0",)),
        ("echo No devices", "exit 6", {F.CONFIDENTIAL_UNKNOWN}, ()),
        (
            "echo CC status: OFF",
            "echo 9.0, Enabled; echo 8.0, Disabled",
            {F.PERSISTENCE_OFF},
            ("9.0", "8.0"),
        ),
    ],
)
async def test_nvidia_smi_is_asked_for_modes(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    confidential: str,
    each: str,
    features: set[F],
    compute: tuple[str, ...],
) -> None:
    sight = await seen(root, monkeypatch, confidential, each)
    assert set(sight.features) == features
    assert sight.versions["compute"] == compute
    assert sight.versions["driver"] == ("580.65.06",)


async def test_an_nvidia_smi_that_hangs_leaves_it_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "SMI_S", 0.2)
    began = time.monotonic()
    sight = await seen(root, monkeypatch, "sleep 300", "sleep 300")
    assert time.monotonic() - began < 10
    assert set(sight.features) == {F.CONFIDENTIAL_UNKNOWN}


async def test_without_the_program_or_before_it_was_asked_it_is_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eyes = NodeEyes(root=root)
    assert set(eyes.look().features) == {F.CONFIDENTIAL_UNKNOWN}
    monkeypatch.setenv("PATH", "/none")
    await eyes.ask()
    assert set(eyes.look().features) == {F.CONFIDENTIAL_UNKNOWN}


async def test_a_running_persistence_daemon_is_enough(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "run/nvidia-persistenced/socket")
    sight = await seen(root, monkeypatch, "echo CC status: OFF", "echo 9.0, Disabled")
    assert not sight.features


async def test_a_node_without_a_driver_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = f"touch {tmp_path}/asked"
    sight = await seen(tmp_path / "bare", monkeypatch, asked, asked)
    assert "asked" not in os.listdir(tmp_path)
    assert not sight.features
    assert sight.versions["driver"] == ()


def test_both_kinds_of_kernel_module_say_their_version(root: Path) -> None:
    assert NodeEyes(root=root).look().versions["driver"] == ("580.65.06",)
    put(root, "proc/driver/nvidia/version", CLOSED)
    assert NodeEyes(root=root).look().versions["driver"] == ("570.158.01",)
    assert NodeEyes(root=root).look((GPU,), "595.84").versions["driver"] == ("595.84",)


def test_what_nvml_has_told_counts(root: Path, tmp_path: Path) -> None:
    sight = NodeEyes(root=root).look((GPU,), cuda="13.0", engine="program")
    assert sight.versions["compute"] == ("9.0",)
    assert sight.versions["cuda"] == ("13.0",)
    assert F.ENGINE_IS_PROGRAM in sight.features
    assert F.MIG not in sight.features
    mig = Gpu(2, "GPU-2", "NVIDIA H100", 1, 1, "00000000:18:00.0", mig=True)
    assert NodeEyes(root=root).look((GPU, mig)).features[F.MIG][0].what == "GPU 2"
    nothing = NodeEyes(root=tmp_path / "bare").look((GPU,), engine="", trouble="NVML is ill")
    assert set(nothing.features) == {F.DRIVER_UNKNOWN, F.NO_ENGINE}
    assert nothing.features[F.NO_ENGINE][0].what == "NVML is ill"
    assert set(NodeEyes(root=root).look(engine="library").features) == {F.CONFIDENTIAL_UNKNOWN}
    assert set(without_gpus().features) == {F.NO_ENGINE}


def test_mig_instances_are_seen_without_nvml(root: Path) -> None:
    put(root, "proc/driver/nvidia/capabilities/gpu0/mig/config")
    assert F.MIG not in NodeEyes(root=root).look().features
    put(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access")
    assert NodeEyes(root=root).look().features[F.MIG][0].what == "gpu0 has instances"


def test_minors_of_mig_are_those_of_instances(root: Path) -> None:
    place = "proc/driver/nvidia/capabilities"
    assert NodeEyes(root=root).look().mig_minors is None
    put(root, f"{place}/gpu0/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n")
    assert NodeEyes(root=root).look().mig_minors == frozenset()
    put(root, f"{place}/gpu0/mig/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\n")
    put(root, f"{place}/gpu0/mig/gi1/ci0/access", "DeviceFileMinor: 13\nDeviceFileMode: 292\n")
    assert NodeEyes(root=root).look().mig_minors == {12, 13}


def test_the_daemon_of_mps_is_a_process_or_listens(root: Path) -> None:
    put(root, "proc/41/comm", "nvidia-persiste\n")
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    os.mkfifo(root / "tmp/nvidia-mps/control")
    assert F.MPS_DAEMON not in NodeEyes(root=root).look().features
    reader = os.open(root / "tmp/nvidia-mps/control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        seen = NodeEyes(root=root).look().features[F.MPS_DAEMON]
    finally:
        os.close(reader)
    assert seen[0].what == "a daemon listens at /tmp/nvidia-mps", "in a PID namespace of its own"
    put(root, "proc/42/comm", "nvidia-cuda-mps\n")
    assert NodeEyes(root=root).look().features[F.MPS_DAEMON][0].what == "pid 42 is its daemon"


@pytest.mark.parametrize(
    ("model", "virtual"),
    [
        ("NVIDIA A100-40C", True),
        ("GRID V100D-8Q", True),
        ("NVIDIA A100X-1-10CME", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA RTX A6000", False),
        ("Tesla T4", False),
    ],
)
def test_a_virtual_gpu_is_known_by_its_model(root: Path, model: str, virtual: bool) -> None:
    of_driver = NodeEyes(root=root)
    assert F.VGPU not in of_driver.look().features
    of_nvml = of_driver.look((replace(GPU, model=model),)).features
    said = f"Model: \t\t {model}\nDevice Minor: \t 0\n"
    put(root, "proc/driver/nvidia/gpus/0000:17:00.0/information", said)
    assert (F.VGPU in of_nvml, F.VGPU in of_driver.look().features) == (virtual, virtual)


@pytest.mark.root
def test_devices_without_a_driver_are_not_passed_over(tmp_path: Path) -> None:
    """As in a container that was given /dev/nvidia0 and not /proc/driver."""
    bare = tmp_path / "bare"
    (bare / "dev").mkdir(parents=True)
    assert F.DRIVER_UNKNOWN not in NodeEyes(root=bare).look().features
    os.mknod(bare / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    assert F.DRIVER_UNKNOWN in NodeEyes(root=bare).look().features
    assert F.DRIVER_UNKNOWN not in NodeEyes(root=bare).look((), "580.65.06").features


@pytest.mark.root
def test_device_files_are_held_against_the_drivers_gpus(root: Path) -> None:
    put(root, "proc/driver/nvidia/gpus/0000:18:00.0/information", "Device Minor: \t 1\n")
    put(root, "dev/nvidia-uvm")
    assert not {F.GPUS_HIDDEN, F.DEVICE_ALIAS} & set(NodeEyes(root=root).look().features)
    os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    hidden = NodeEyes(root=root).look().features
    assert hidden[F.GPUS_HIDDEN][0].what == "the driver has 2 GPUs and /dev shows 1"
    assert F.DEVICE_ALIAS not in hidden
    os.mknod(root / "dev/nvidia1", stat.S_IFCHR | 0o666, os.makedev(195, 1))
    assert not {F.GPUS_HIDDEN, F.DEVICE_ALIAS} & set(NodeEyes(root=root).look().features)
    (root / "dev/nvidia0").unlink()
    os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 2))
    alias = NodeEyes(root=root).look().features
    assert alias[F.DEVICE_ALIAS][0].what == "/dev/nvidia0 is minor 2"
    assert F.GPUS_HIDDEN in alias


def test_logind_is_read_as_it_reads_itself(root: Path) -> None:
    def place() -> str:
        found = NodeEyes(root=root).look().features.get(F.REMOVE_IPC)
        return found[0].what if found else ""

    put(root, "etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes\n")
    assert place() == "", "it does not run"
    (root / "run/systemd/seats").mkdir(parents=True)
    assert place() == "/etc/systemd/logind.conf"
    put(root, "etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n")
    assert place() == "systemd-logind's default"
    put(root, "usr/lib/systemd/logind.conf.d/10-x.conf", "[Login]\nRemoveIPC=no\n")
    assert place() == ""
    put(root, "etc/systemd/logind.conf.d/20-y.conf", "[Login]\nRemoveIPC=1\n")
    assert place() == "/etc/systemd/logind.conf.d/20-y.conf"
    put(root, "etc/systemd/logind.conf.d/30-z.conf", "broken\n[Login\nRemoveIPC=no")
    assert place() == "/etc/systemd/logind.conf.d/20-y.conf"
