"""What `allstop doctor` says of a node's GPUs, by the real pynvml over a fake library."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from coordinator.core.errors import SetupError
from tests.fakes.nvml.build import DRIVER
from tests.support.nvml import NvmlNode
from worker_shim import examination
from worker_shim.compatibility.node import NodeEyes
from worker_shim.examination import GpuSight, Line, Places, Verdict, sight_of_node

pytestmark = [pytest.mark.cc]

VERSION = (
    f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Thu May  8 01:38:43 UTC 2025\n"
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlNode:
    """Two GPUs that are well, on a machine without anything of NVIDIA's in its own folders."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(examination, "NodeEyes", partial(NodeEyes, root=root))
    made = NvmlNode(tmp_path)
    made.has()
    return made


async def told(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch, look_s: float = 10.0
) -> dict[str, Line]:
    """The lines of GPUs."""
    sight = await sight_of_node(gpus=node.inventory(look_s=look_s))

    async def seen(_: str) -> GpuSight:
        return sight

    monkeypatch.setattr(examination, "sight_of_node", seen)
    places = Places(node.folder, node.folder, node.folder)
    return {line.what: line for line in await examination._gpus(places)}


async def test_gpus_that_are_well(node: NvmlNode, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await told(node, monkeypatch)
    assert f"driver {DRIVER}" in lines["GPUs"].found
    assert not [line for line in lines.values() if line.verdict is Verdict.FIX]


async def test_a_sick_gpu_and_mig_without_instances_are_lines(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has("ecc 3 3", "mig 1")
    lines = await told(node, monkeypatch)
    assert lines["GPU 1"].verdict is Verdict.FIX
    assert "uncorrected memory errors" in lines["GPU 1"].found
    assert "GPU 0" not in lines
    assert "GPU 1" in lines["MIG"].found


async def test_a_driver_whose_nvml_hangs_is_told_in_time(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = node.folder / "root/proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(VERSION)
    node.has("fault nvmlDeviceGetName hang")
    line = (await told(node, monkeypatch, look_s=1.0))["GPU inventory"]
    assert line.verdict is Verdict.FIX
    assert "did not answer within 1 s" in line.found


async def test_a_library_without_a_driver_is_nothing_to_fix(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without GPUs whose image has the driver's packages."""
    node.has("fault nvmlInitWithFlags 9")
    (line,) = (await told(node, monkeypatch)).values()
    assert line.verdict is Verdict.WARNING
    assert "no NVIDIA driver is loaded" in line.found


@pytest.mark.root
async def test_devices_without_a_driver_that_says_its_version(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that was given the device files alone."""
    node.has("fault nvmlInitWithFlags 9")
    device = node.folder / "root/dev/nvidia0"
    device.parent.mkdir()
    os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(195, 0))
    lines = await told(node, monkeypatch)
    assert lines["GPUs"].verdict is Verdict.WARNING
    assert lines["GPU inventory"].verdict is Verdict.FIX
    assert "version is not known" in lines["driver"].found


async def test_the_engine_is_the_one_that_was_asked_for(node: NvmlNode) -> None:
    assert (await sight_of_node("none", node.inventory())).engine == ""
    with pytest.raises(SetupError):
        await sight_of_node("program", node.inventory())
