"""Pipes whose other end is held by a process outside the tree."""

from __future__ import annotations

import os
from collections.abc import Iterator

from coordinator.core.model import Finding, Severity
from worker_shim.process.view import Descriptor, ProcessView, TreeView, descriptor_targets

PROCESSES_MAX = 100_000


def check(tree: TreeView) -> Iterator[Finding]:
    """A pipe with one end in the tree is fine when nobody holds the other one any more."""
    lonely = _one_sided(tree)
    if not lonely:
        return
    holders = _outside_holders(tree, frozenset(lonely))
    for inode, (process, descriptor) in lonely.items():
        if inode not in holders:
            continue
        yield process.finding(
            Severity.REFUSE,
            "pipe",
            f"has descriptor {descriptor.number} on a pipe to {holders[inode]}, outside the tree",
            "send its output to a file, or start the other program inside the worker",
        )


def _one_sided(tree: TreeView) -> dict[int, tuple[ProcessView, Descriptor]]:
    """Pipes of which the tree holds only readers or only writers, with one who holds it."""
    ends: dict[int, set[str]] = {}
    holder: dict[int, tuple[ProcessView, Descriptor]] = {}
    for process, descriptor in tree.all_descriptors():
        inode = descriptor.inode("pipe")
        if not inode:
            continue
        holder.setdefault(inode, (process, descriptor))
        held = ends.setdefault(inode, set())
        if descriptor.reads:
            held.add("read")
        if descriptor.writes:
            held.add("write")
    return {inode: holder[inode] for inode, held in ends.items() if len(held) == 1}


def _outside_holders(tree: TreeView, inodes: frozenset[int]) -> dict[int, str]:
    """Who else on this node holds these pipes; looked for only when there is a reason to."""
    holders: dict[int, str] = {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    for pid in pids[:PROCESSES_MAX]:
        if pid in tree.pids:
            continue
        for _, target in descriptor_targets(pid):
            if not target.startswith("pipe:["):
                continue
            inode = int(target[6:-1])
            if inode in inodes:
                holders.setdefault(inode, f"pid {pid} ({_name(pid)})")
    return holders


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return comm.read().strip()
    except OSError:
        return "gone"
