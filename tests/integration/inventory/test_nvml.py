"""The inventory over the real pynvml and a fake library below it, and what goes wrong there."""

from __future__ import annotations

import asyncio
import os
import time
from importlib import metadata
from pathlib import Path

import pytest

from coordinator.core.model import GpuHeld, ProgramFile
from tests.fakes.nvml.build import DRIVER, GIB
from tests.support.nvml import A, B, NvmlNode
from worker_shim.inventory import inventory as module
from worker_shim.inventory.inventory import GpuInventory, Inventory
from worker_shim.inventory.recording import gpu_facts

pytestmark = [pytest.mark.cc]


@pytest.fixture
def node(tmp_path: Path) -> NvmlNode:
    """Two GPUs that are well."""
    made = NvmlNode(tmp_path)
    made.has()
    return made


async def seen(node: NvmlNode, *without: str) -> Inventory:
    return await node.inventory(*without).look()


async def test_what_gpus_are(node: NvmlNode) -> None:
    found = await seen(node)
    assert (found.driver, found.cuda_version, found.trouble) == (DRIVER, "13.0", "")
    one, two = found.gpus
    assert (one.index, one.uuid, one.model, one.minor) == (0, A, "NVIDIA H200", 0)
    assert (one.memory_bytes, one.memory_free_bytes) == (141 * GIB, 140 * GIB)
    assert (one.pci_address, two.pci_address) == ("00000000:17:00.0", "00000000:18:00.0")
    assert (one.architecture, one.links, one.mig, one.sick) == ("9.0", (B,), False, "")
    assert (one.persistence, one.remarks, two.links) == (True, (), (A,))
    assert found.looked == ("ecc", "remapped_rows")


@pytest.mark.parametrize(
    ("lines", "sick", "remarks"),
    [
        (["ecc 2 5"], "2 uncorrected memory errors since the driver", ("5 uncorrected memory",)),
        (["ecc 0 5"], "", ("5 uncorrected memory errors in its life",)),
        (["remap 0 1 0 1"], "could not be remapped", ("1 rows of its memory are remapped",)),
        (["remap 0 0 1 0"], "", ("remapped at the next reset",)),
        (["retired 1"], "", ("retired at the next reset",)),
        (["fault nvmlDeviceGetMemoryInfo 15 1"], "NVML: GPU is lost", ()),
        (["fault nvmlDeviceGetHandleByIndex_v2 15 1"], "NVML: GPU is lost", ()),
    ],
)
async def test_how_gpus_are(
    node: NvmlNode, lines: list[str], sick: str, remarks: tuple[str, ...]
) -> None:
    node.has(*lines)
    well, ill = (await seen(node)).gpus
    assert well.sick == ""
    assert (sick in ill.sick) if sick else ill.sick == ""
    assert len(ill.remarks) == len(remarks)
    assert all(part in told for part, told in zip(remarks, ill.remarks, strict=True))


async def test_mig_on_or_to_come(node: NvmlNode) -> None:
    node.has("mig 1")
    assert [gpu.mig for gpu in (await seen(node)).gpus] == [False, True]


async def test_an_older_driver_without_functions_tells_less(node: NvmlNode) -> None:
    lacking = (
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlSystemGetCudaDriverVersion",
    )
    found = await seen(node, *lacking)
    assert (found.trouble, found.looked, found.cuda_version) == ("", ("ecc",), "")
    assert [(gpu.uuid, gpu.links, gpu.minor) for gpu in found.gpus] == [(A, (), -1), (B, (), -1)]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fault nvmlInitWithFlags 18", "NVML/RM version mismatch"),
        ("fault nvmlDeviceGetCount_v2 999", "NVML: "),
        ("fault nvmlDeviceGetUUID crash", "SIGSEGV"),
    ],
)
async def test_what_fails_is_told_and_the_last_look_stays(
    node: NvmlNode, fault: str, why: str
) -> None:
    looker = node.inventory()
    before = await looker.look()
    node.has(fault)
    after = await looker.look()
    assert why in after.trouble
    assert after.gpus == before.gpus
    node.has()
    assert (await looker.look()).trouble == ""


@pytest.mark.alone  # an answer is timed
async def test_a_hang_is_ended_with_all_that_it_started(node: NvmlNode) -> None:
    node.has("fault nvmlDeviceGetName hang")
    looker = node.inventory(look_s=1.0)
    began = time.monotonic()
    early = await looker.look(wait_s=0.1)  # whoever asks does not wait for it
    assert time.monotonic() - began < 0.9
    assert early.ended_s == 0.0
    assert "did not answer within 1 s" in (await looker.look()).trouble
    assert helpers(node) == []


async def test_the_shims_end_ends_a_look(node: NvmlNode) -> None:
    node.has("fault nvmlDeviceGetName hang")
    looker = node.inventory(look_s=60.0)
    await looker.look(wait_s=0.5)
    assert len(helpers(node)) == 1
    await looker.close()
    until = time.monotonic() + 10
    while helpers(node):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


def helpers(node: NvmlNode) -> list[int]:
    """Helpers of this node that live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(node.log).encode() in words:
            found.append(int(entry.name))
    return found


async def test_a_node_without_a_driver_starts_nothing(tmp_path: Path) -> None:
    node = NvmlNode(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    looker = GpuInventory(node.commands, drivers=node.drivers, env=env)
    if looker.driver_there:
        pytest.skip("this machine has a driver")
    assert (await looker.look()).gpus == ()
    looker.look_now_and_then()
    assert node.commands.argvs == []
    node.drivers.mkdir()  # a driver without its library: that is said
    assert "NVML: " in (await looker.look()).trouble


async def test_gpus_that_are_kept_from_a_container(node: NvmlNode) -> None:
    for number in range(3):
        (node.drivers / "gpus" / f"0000:{number:02x}:00.0").mkdir(parents=True)
    found = await seen(node)
    assert (found.unseen, found.trouble) == ("the kernel's driver has 3 GPUs and 2 can be seen", "")
    assert len(found.gpus) == 2
    assert gpu_facts(found, (41,), ())["gpus_unseen"] == found.unseen
    (node.drivers / "gpus" / "0000:02:00.0").rmdir()
    assert (await seen(node)).unseen == ""


@pytest.mark.parametrize("question", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
async def test_a_gpu_without_a_name_is_told_as_one_that_no_map_has(
    node: NvmlNode, question: str
) -> None:
    node.has(f"fault {question} 15 1")
    found = await seen(node)
    assert (found.unseen, found.trouble) == ("GPU 1 did not tell its UUID", "")
    assert [gpu.uuid for gpu in found.gpus] == [A, ""]


async def test_xids_of_the_kernels_log(node: NvmlNode) -> None:
    now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    long_ago = now - int(2 * 86400 * 1e6)

    def line(at: int, text: str) -> str:
        return f"4,1,{at},-;NVRM: {text}\n"

    fatal = "Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus."
    programs = "Xid (PCI:0000:17:00): 31, pid=2, name=y, MMU Fault"
    node.log.write_text(line(now, fatal) + line(now, programs))
    found = await seen(node)
    assert [gpu.sick for gpu in found.gpus] == ["", "the kernel's log has Xid 79 of it"]
    assert "kernel_log" in found.looked
    node.log.write_text(line(now, fatal) + line(now, "loading NVIDIA UNIX x86_64 Kernel Module"))
    assert [gpu.sick for gpu in (await seen(node)).gpus] == ["", ""]
    node.log.write_text(line(max(long_ago, 0), fatal))
    assert ([gpu.sick for gpu in (await seen(node)).gpus] == ["", ""]) == (long_ago > 0)


async def test_many_who_ask_at_once_get_one_look(node: NvmlNode) -> None:
    looker = node.inventory()
    looks = await asyncio.gather(*(looker.look() for _ in range(5)))
    assert len(node.commands.argvs) == 1
    assert len(set(map(id, looks))) == 1


async def test_what_is_fresh_is_not_looked_at_again(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = node.inventory()
    looker.look_now_and_then()  # nothing was looked at yet, and that is for the start
    await looker.fresh()
    await looker.fresh()
    looker.look_now_and_then()
    assert len(node.commands.argvs) == 1
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    node.has(free=1 * GIB)
    assert [gpu.memory_free_bytes for gpu in (await looker.fresh()).gpus] == [GIB, GIB]
    looker.look_now_and_then()
    await looker.look()  # the same one
    assert len(node.commands.argvs) == 3


@pytest.mark.alone  # a time-out is waited for
async def test_a_look_that_began_after_a_moment(node: NvmlNode) -> None:
    looker = node.inventory(look_s=2.0)
    node.has(f"process 41 {2 * GIB}")
    await looker.look(wait_s=0.01)  # it goes on
    assert len(node.commands.argvs) == 1
    assert looker.current.began_s == 0
    moment_s = time.monotonic()
    later = await looker.since(moment_s, wait_s=30.0)
    assert later is not None
    assert later.began_s >= moment_s
    assert len(node.commands.argvs) == 2
    assert later.held == {B: {41: 2 * GIB}}
    assert await looker.since(moment_s, wait_s=30.0) is later
    node.has("fault nvmlDeviceGetName hang")
    assert await looker.since(time.monotonic(), wait_s=0.2) is None
    assert "did not answer" in (await looker.look()).trouble
    began_s = time.monotonic()
    assert await looker.since(began_s, wait_s=30.0) is None, "what fails is not waited for again"
    assert time.monotonic() - began_s < 1.0


async def test_what_a_record_keeps(node: NvmlNode) -> None:
    node.has(f"process 41 {2 * GIB}", f"process 42 {3 * GIB}", free=100 * GIB)
    looker = node.inventory()
    held_at = (await looker.look()).ended_s
    node.has()
    await looker.look()  # the ranks are saved: nothing of theirs is on a GPU
    seen = looker.before(held_at)
    facts = gpu_facts(seen, (41, 42), (), engine="library")
    assert facts["gpu_held"] == (GpuHeld(B, 5 * GIB),)
    assert [gpu.memory_free_bytes for gpu in facts["gpus"]] == [100 * GIB] * 2
    assert (facts["gpu_driver"], facts["cuda_version"]) == (DRIVER, "13.0")
    assert (facts["gpu_engine"], facts["gpus_unseen"]) == ("library", "")
    assert facts["versions"][0] == f"cuda-bindings {metadata.version('cuda-bindings')}"
    assert len(gpu_facts(seen, (41, 42), (), engine="program")["versions"]) == 1  # it prints none
    stranger = gpu_facts(seen, (41, 43), ())
    assert stranger["gpu_held"] == ()  # the driver counts pids of another namespace, perhaps
    assert gpu_facts(seen, (), (), engine="library").keys() == {"versions"}
    assert "gpus" not in gpu_facts(None, (41, 42), ())


def test_versions_are_those_of_the_wheels(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    files = ("torch/lib/libtorch_cpu.so", "nvidia/nccl/lib/libnccl.so.2")
    for file in (*files, "nvidia/cuda_runtime/lib/libcudart.so.13"):
        (site / file).parent.mkdir(parents=True)
        (site / file).touch()
    installed = ("torch-2.13.0+cu130", "nvidia_nccl_cu13-2.30.7", "nvidia_cuda_runtime-13.0.96")
    of_models = ("Transformers-5.1.0", "megatron_core-0.17.0", "flash-attn-2.9", "requests-2.32")
    for name in (*installed, *of_models):
        (site / f"{name}.dist-info").mkdir()
    system = tmp_path / "usr" / "lib"
    system.mkdir(parents=True)
    (system / "libcudnn.so.9.12.0").touch()
    (system / "libcudnn.so.9").symlink_to("libcudnn.so.9.12.0")
    mapped = [*site.rglob("*.so*"), system / "libcudnn.so.9", Path("/gone/libcublas.so.13")]
    facts = gpu_facts(None, (), [ProgramFile(str(path), 1) for path in mapped])
    assert facts["versions"][:-1] == (
        "cuda-runtime 13.0.96", "cudnn 9.12.0", "flash-attn 2.9", "megatron-core 0.17.0",
        "nccl 2.30.7", "torch 2.13.0+cu130", "transformers 5.1.0",
    )  # fmt: skip
    assert facts["versions"][-1].startswith("allstop ")
