"""The environment that makes a worker's NCCL fit to be saved: it is read once, when NCCL starts."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.nccl.modes import AUTO, KEEP, NONE, SHIM_LIBRARY

KVS_FILE = "kvs"
KVS_PATH_VARIABLE = "NCCL_CHECKPOINT_KVS_PATH"
HEARTBEAT_VARIABLE = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
RETHROW_VARIABLE = "TORCH_NCCL_RETHROW_CUDA_ERRORS"
PRELOAD_VARIABLE = "LD_PRELOAD"
KVS_TIMEOUT_VARIABLE = "NCCL_CHECKPOINT_KVS_TIMEOUT"
LONGER_SERVES = (HEARTBEAT_VARIABLE, KVS_TIMEOUT_VARIABLE)
HEARTBEAT_S = 3600  # more than a hold takes, unless the coordinator's policy has longer phases

USUAL_PLACES = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/opt/nccl/lib",
    "/usr/local/nccl/lib",
)

# name, value, why
BOTH = (
    ("NCCL_NVLS_ENABLE", "0", "a multicast group of NVLink makes the driver hang in a checkpoint"),
    ("NCCL_CUMEM_HOST_ENABLE", "0", "with host memory of the driver a rebuild may hang"),
    ("NCCL_RAS_ENABLE", "0", "its thread keeps sockets to other ranks that nobody closes"),
    (HEARTBEAT_VARIABLE, str(HEARTBEAT_S), "torch ends a rank that stands still for longer"),
    (RETHROW_VARIABLE, "0", "an error met while devices are locked is no end"),
)
OF_REBUILD = (
    ("NCCL_IB_DISABLE", "1", "NCCL keeps network cards open when it is torn down: so it uses TCP"),
    (KVS_TIMEOUT_VARIABLE, "600", "so long the ranks look for each other when rebuilding"),
)
OF_KEEP = (
    ("NCCL_NET", "Socket", "only TCP connections can be saved"),
    ("NCCL_IB_DISABLE", "1", "what is in a network card cannot be saved"),
    ("NCCL_P2P_DISABLE", "1", "memory shared between devices cannot be restored"),
    ("NCCL_SHM_DISABLE", "1", "memory shared with the driver cannot be restored"),
)


@dataclass(frozen=True)
class Launch:
    """What to add to a worker's environment, and notes for people on each of it."""

    additions: Mapping[str, str]
    notes: tuple[str, ...] = ()


def environment(
    base: Mapping[str, str],
    directory: Path,
    *,
    mode: str,
    library: Path | None,
    gpus: bool | None = None,
) -> Launch:
    """Choose the mode and what it needs; a worker without GPUs and without a mode gets nothing.

    What the user has set stays, with a warning. Raises DriverError when the mode needs NCCL's
    checkpoint shim and it is not found. `gpus` None: look whether there are any here.
    """
    if mode == AUTO and not (gpus_here(base) if gpus is None else gpus):
        return Launch({})
    shim = _shim(base, library) if mode in (AUTO, REBUILD) else None
    notes: list[str] = []
    if mode == AUTO:
        mode = REBUILD if shim is not None else NONE
        notes.append(f"NCCL mode {mode}: {_why(shim)}")
    if mode == REBUILD and shim is None:
        raise DriverError(
            f"NCCL's checkpoint shim {SHIM_LIBRARY} is not found",
            advice="build contrib/nccl_checkpoint of the NCCL in use and give --nccl-shim FILE",
        )
    additions = {MODE_VARIABLE: mode}
    for name, value, why in _settings(mode):
        theirs = base.get(name)
        if theirs is None:
            additions[name] = value
            notes.append(f"{name}={value}: {why}")
        elif not _serves(name, theirs, value):
            notes.append(f"{name}={theirs} is set already and stays, not {value}: {why}")
    if shim is not None and mode == REBUILD:
        _load(shim, base, directory, additions, notes)
    return Launch(additions, tuple(notes))


def _serves(name: str, theirs: str, value: str) -> bool:
    """Whether the user's own value is as good: the same to NCCL, or a longer time."""
    if name in LONGER_SERVES:
        return theirs.isdecimal() and int(theirs) >= int(value)
    return theirs.lower() == value.lower()


def gpus_here(base: Mapping[str, str]) -> bool:
    """Whether a worker with this environment may see a GPU of this node."""
    visible = base.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in ("", "-1")
    return not hidden and bool(glob.glob("/dev/nvidia[0-9]*"))


def _why(shim: Path | None) -> str:
    if shim is not None:
        return f"{shim} rebuilds communicators after a checkpoint"
    return f"{SHIM_LIBRARY} is not found, so ranks with live NCCL communicators cannot be saved"


def _settings(mode: str) -> tuple[tuple[str, str, str], ...]:
    if mode == REBUILD:
        return (*BOTH, *OF_REBUILD)
    return (*BOTH, *OF_KEEP) if mode == KEEP else ()


def _load(
    shim: Path,
    base: Mapping[str, str],
    directory: Path,
    additions: dict[str, str],
    notes: list[str],
) -> None:
    """Preload the library, and name the file by which its store is found."""
    theirs = [each for each in base.get(PRELOAD_VARIABLE, "").replace(":", " ").split() if each]
    if str(shim) not in theirs:
        additions[PRELOAD_VARIABLE] = " ".join([str(shim), *theirs])
        notes.append(
            f"{PRELOAD_VARIABLE} begins with {shim}: it destroys and rebuilds what NCCL has"
        )
    path = str(directory / KVS_FILE)
    if base.get(KVS_PATH_VARIABLE, path) != path:
        notes.append(f"{KVS_PATH_VARIABLE}={base[KVS_PATH_VARIABLE]} is replaced by {path}")
    else:
        notes.append(f"{KVS_PATH_VARIABLE}={path}: there the ranks read where they meet")
    additions[KVS_PATH_VARIABLE] = path


def _shim(base: Mapping[str, str], library: Path | None) -> Path | None:
    """The library: the one given, or the first of its name in usual places."""
    if library is not None:
        return library.absolute() if library.is_file() else None
    return next((path for path in _candidates(base) if path.is_file()), None)


def _candidates(base: Mapping[str, str]) -> Iterator[Path]:
    for each in base.get(PRELOAD_VARIABLE, "").replace(":", " ").split():
        if os.path.basename(each) == SHIM_LIBRARY:
            yield Path(each)
    for each in base.get("LD_LIBRARY_PATH", "").split(":"):
        if each:
            yield Path(each) / SHIM_LIBRARY
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if base.get(name):
            yield Path(base[name]) / "lib" / SHIM_LIBRARY
    for place in USUAL_PLACES:
        yield Path(place) / SHIM_LIBRARY
