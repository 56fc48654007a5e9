"""What a snapshot keeps of the GPUs and libraries that a worker ran on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.core.model import GpuHeld, ProgramFile
from coordinator.telemetry.version import own_version
from worker_shim.inventory.inventory import GpuInventory, Inventory

NOW = float("inf")
SITES_MAX = 16  # directories of packages that are looked into
VERSIONS_MAX = 32

# libraries whose versions are kept: how their file and their wheel begin, and what they are called
_LIBRARIES = (
    ("libtorch.so", "torch-", "torch"),
    ("libtorch_cpu.so", "torch-", "torch"),
    ("libnccl.so", "nvidia_nccl_", "nccl"),
    ("libcudart.so", "nvidia_cuda_runtime", "cuda-runtime"),
    ("libcublas.so", "nvidia_cublas", "cublas"),
    ("libcudnn.so", "nvidia_cudnn_", "cudnn"),
    ("libcufft.so", "nvidia_cufft", "cufft"),
    ("libnvshmem_host.so", "nvidia_nvshmem_", "nvshmem"),
)
_WHEEL = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")
_SONAME = re.compile(r"\.so\.(?P<version>\d+(?:\.\d+)+)$")


def gpu_facts(
    inventory: GpuInventory | None,
    gpu_pids: Sequence[int],
    programs: Iterable[ProgramFile],
    *,
    before_s: float = NOW,
) -> dict[str, Any]:
    """Fields of a `WorkerRecord` by name: `replace(record, **gpu_facts(...))`.

    `gpu_pids`: processes with GPU state; without any, only versions are kept. `programs`: files
    that the tree has mapped. `before_s`: on the monotonic clock, when the worker was held; what was
    seen later tells nothing of its memory, which is off the GPUs once it is saved.
    """
    facts: dict[str, Any] = {"versions": versions_of(file.path for file in programs)}
    if inventory is None or not gpu_pids:
        return facts
    seen = inventory.before(before_s)
    return {
        **facts,
        "gpus": seen.gpus,
        "gpu_driver": seen.driver,
        "cuda_version": seen.cuda_version,
        "gpu_held": held_by(seen, frozenset(gpu_pids)),
    }


def held_by(seen: Inventory, gpu_pids: frozenset[int]) -> tuple[GpuHeld, ...]:
    """Device memory that these processes held on each GPU; empty where that is not known.

    The driver may count pids of another namespace than ours. So they are believed only where every
    process is among those it names.
    """
    named = {pid for pids in seen.held.values() for pid in pids}
    if not gpu_pids or not gpu_pids <= named:
        return ()
    found: list[GpuHeld] = []
    for gpu in seen.gpus:
        sizes = [size for pid, size in _on(seen.held, gpu.uuid) if pid in gpu_pids]
        if any(size < 0 for size in sizes):  # the driver does not tell
            return ()
        if sizes:
            found.append(GpuHeld(gpu.uuid, sum(sizes)))
    return tuple(found)


def _on(held: Mapping[str, Mapping[int, int]], uuid: str) -> Iterable[tuple[int, int]]:
    return held.get(uuid, {}).items()


def versions_of(mapped: Iterable[str]) -> tuple[str, ...]:
    """`torch 2.13.0`, `nccl 2.30.7` … of mapped libraries, by their wheels or their own names."""
    found: dict[str, str] = {}
    wheels: dict[Path, list[str]] = {}
    for path in sorted(mapped):
        for file, wheel, name in _LIBRARIES:
            if Path(path).name.startswith(file) and name not in found:
                version = _by_wheel(path, wheel, wheels) or _by_name(path)
                if version:
                    found[name] = version
    told = [f"{name} {version}" for name, version in sorted(found.items())]
    return (*told[: VERSIONS_MAX - 1], f"allstop {own_version()}")


def _by_wheel(path: str, wheel: str, wheels: dict[Path, list[str]]) -> str:
    """From `NAME-VERSION.dist-info` beside the package that the library is part of."""
    site = next((each for each in Path(path).parents if each.name.endswith("-packages")), None)
    if site is None or (site not in wheels and len(wheels) >= SITES_MAX):
        return ""
    if site not in wheels:
        try:
            wheels[site] = [each.name for each in site.iterdir() if each.suffix == ".dist-info"]
        except OSError:
            wheels[site] = []
    for name in wheels[site]:
        match = _WHEEL.fullmatch(name)
        if match is not None and f"{match['name']}-".startswith(wheel):
            return match["version"]
    return ""


def _by_name(path: str) -> str:
    """From the name of the file itself, as distributions have it: libnccl.so.2.30.7."""
    try:
        real = Path(path).resolve(strict=True).name
    except OSError:
        real = Path(path).name
    match = _SONAME.search(real)
    return match["version"] if match is not None else ""
