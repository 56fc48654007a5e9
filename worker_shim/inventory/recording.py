"""What a snapshot keeps of the GPUs and libraries that a worker ran on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coordinator.core.model import GpuHeld, ProgramFile
from coordinator.telemetry.version import own_version
from worker_shim.inventory.inventory import Inventory

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
# packages whose code is Python for the most part, so that no file of theirs need be mapped; their
# versions are those installed beside what is
_MODELS = frozenset(
    (
        *("accelerate", "bitsandbytes", "deepspeed", "diffusers", "flash_attn", "lightning"),
        *("megatron_core", "peft", "pytorch_lightning", "ray", "sglang", "torchtitan"),
        *("transformer_engine", "transformers", "triton", "trl", "vllm", "xformers"),
    )
)
_ENGINES = {"library": "cuda-bindings"}  # the program prints no version
_SITE = re.compile(r".*-packages(?=/)")
_WHEEL = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")
_SONAME = re.compile(r"\.so\.(?P<version>\d+(?:\.\d+)+)$")


def gpu_facts(
    seen: Inventory | None,
    gpu_pids: Sequence[int],
    programs: Iterable[ProgramFile],
    *,
    engine: str = "",
) -> dict[str, Any]:
    """Fields of a `WorkerRecord` by name: `replace(record, **gpu_facts(...))`.

    `seen`: of a look before their memory was saved, after which it is off the GPUs; None: nobody
    looks. `gpu_pids`: processes with GPU state; without any, only versions are kept. `programs`:
    files that the tree has mapped. `engine`: what saved the device memory.
    """
    versions = versions_of(file.path for file in programs)
    if not gpu_pids:
        return {"versions": versions}
    facts = {"versions": (*engine_versions(engine), *versions), "gpu_engine": engine}
    if seen is None:
        return facts
    return {
        **facts,
        "gpus": seen.gpus,
        "gpus_unseen": seen.unseen,
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


def engine_versions(engine: str) -> tuple[str, ...]:
    """`cuda-bindings 13.0.3`, where the engine has a version to tell."""
    package = _ENGINES.get(engine, "")
    try:
        return (f"{package} {metadata.version(package)}",) if package else ()
    except metadata.PackageNotFoundError:
        return ()


def versions_of(mapped: Iterable[str]) -> tuple[str, ...]:
    """`torch 2.13.0`, `nccl 2.30.7` … of mapped libraries, by their wheels or their own names.

    And of packages that work with models, as they are installed beside those.
    """
    found: dict[str, str] = {}
    wheels: dict[str, dict[str, str]] = {}
    for path in sorted(mapped):
        beside = _wheels_beside(path, wheels)
        for file, wheel, name in _LIBRARIES:
            if Path(path).name.startswith(file) and name not in found:
                version = _by_wheel(beside, wheel) or _by_name(path)
                if version:
                    found[name] = version
    for installed in wheels.values():
        for wheel, version in installed.items():
            name = wheel.lower().replace("-", "_")
            if name in _MODELS:
                found.setdefault(name.replace("_", "-"), version)
    told = [f"{name} {version}" for name, version in sorted(found.items())]
    return (*told[: VERSIONS_MAX - 1], f"allstop {own_version()}")


def _by_wheel(installed: Mapping[str, str], wheel: str) -> str:
    """The version of the package whose name begins so."""
    return next((v for name, v in installed.items() if f"{name}-".startswith(wheel)), "")


def _wheels_beside(path: str, wheels: dict[str, dict[str, str]]) -> dict[str, str]:
    """Versions by name of `NAME-VERSION.dist-info` in the directory of packages of a file.

    Each directory is read once, and kept in `wheels`.
    """
    match = _SITE.match(path)
    if match is None or (match[0] not in wheels and len(wheels) >= SITES_MAX):
        return {}
    site = match[0]
    if site not in wheels:
        try:
            names = [_WHEEL.fullmatch(name) for name in sorted(os.listdir(site))]
        except OSError:
            names = []
        wheels[site] = {found["name"]: found["version"] for found in names if found is not None}
    return wheels[site]


def _by_name(path: str) -> str:
    """From the name of the file itself, as distributions have it: libnccl.so.2.30.7."""
    try:
        real = Path(path).resolve(strict=True).name
    except OSError:
        real = Path(path).name
    match = _SONAME.search(real)
    return match["version"] if match is not None else ""
