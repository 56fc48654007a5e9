"""Seeing from outside whether a process has live NCCL communicators."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from worker_shim.process import proc
from worker_shim.process.view import ProcessView, TreeView

SHARED_MEMORY = "/dev/shm/nccl-"
INFINIBAND = "/dev/infiniband/"
THREADS = "NCCL "  # "NCCL Service 0", "NCCL Progress 0", … where NCCL_SET_THREAD_NAME is set
GROUP_THREADS = "pt_nccl_"  # PyTorch's, of a process group; they outlive communicators
RAS_THREAD = "NCCL RAS"  # of the process, not of a communicator
ABSTRACT_SOCKET = "@/tmp/nccl-socket-"
SHIMS = ("libnccl-checkpoint", "libnccl_checkpoint")  # contrib/nccl_checkpoint


def evidence(tree: TreeView) -> dict[int, tuple[str, ...]]:
    """What of each process speaks for live communicators, by pid; those without are left out."""
    sockets = _abstract_sockets()
    found = {
        process.process.pid: tuple(dict.fromkeys(_of(process, sockets)))
        for process in tree.processes
    }
    return {pid: seen for pid, seen in found.items() if seen}


def groups(process: ProcessView) -> tuple[str, ...]:
    """Threads of PyTorch that watch a process group of NCCL: communicators may be live, or will."""
    threads = proc.thread_names(process.process.pid)
    names = (name for name in threads if name.startswith(GROUP_THREADS))
    return tuple(f"thread {name}" for name in dict.fromkeys(names))


def has_library(process: ProcessView) -> bool:
    """Whether NCCL is mapped, as a library of its own."""
    return any(os.path.basename(area.path).startswith("libnccl.so") for area in process.mappings)


def shim(process: ProcessView) -> str:
    """The name of NCCL's checkpoint shim as it is mapped; empty when it is not."""
    names = (os.path.basename(area.path) for area in process.mappings)
    return next((name for name in names if name.startswith(SHIMS)), "")


def _of(process: ProcessView, sockets: Mapping[int, str]) -> Iterator[str]:
    for descriptor in process.descriptors:
        if descriptor.target.startswith(SHARED_MEMORY):
            yield _path(descriptor.target)
        elif descriptor.target.startswith(INFINIBAND) and has_library(process):
            yield descriptor.target
        elif descriptor.inode("socket") in sockets:
            yield f"socket {sockets[descriptor.inode('socket')]}"
    for area in process.mappings:
        if area.path.startswith(SHARED_MEMORY):
            yield _path(area.path)
    for name in proc.thread_names(process.process.pid):
        if name.startswith(THREADS) and name != RAS_THREAD:
            yield f"thread {name}"


def _path(target: str) -> str:
    return target.removesuffix(" (deleted)")


def _abstract_sockets() -> dict[int, str]:
    """NCCL's sockets of this network namespace, by inode."""
    found = {}
    for line in _read("/proc/self/net/unix").splitlines()[1:]:
        words = line.split()
        if len(words) == 8 and words[7].startswith(ABSTRACT_SOCKET):
            found[int(words[6])] = words[7]
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
