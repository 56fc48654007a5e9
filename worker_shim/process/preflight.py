"""What in a worker's tree cannot be dumped or restored: every finding names process and way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.core.model import Finding, Severity
from worker_shim.compatibility.judging import findings
from worker_shim.compatibility.node import NodeSight, without_gpus
from worker_shim.compatibility.tree import concerns, situation
from worker_shim.process import descriptors, mappings, pipes, sockets, watches
from worker_shim.process.port import Tree
from worker_shim.process.view import Namespaces, ProcessView, TreeView, view

FINDINGS_MAX = 100  # a report is for people and for a message; more of the same helps nobody

_NAMESPACES_OF_ONE_TREE = ("pid", "mnt", "net", "ipc", "uts", "user")


def inspect(tree: Tree, node: Callable[[], NodeSight] = without_gpus) -> tuple[Finding, ...]:
    """Look at every process of the tree; refusals first.

    `node` says what its drivers are and can: what a worker with a GPU is held against.
    """
    seen = view(tree)
    checks: tuple[Callable[[TreeView], Iterator[Finding]], ...] = (
        descriptors.check,
        mappings.check,
        pipes.check,
        sockets.check,
        watches.check,
        _namespaces,
        _traced,
    )
    found = [finding for check in checks for finding in check(seen)]
    if concerns(seen):
        found += findings(situation(seen, node()))
    unique = list(dict.fromkeys(found))
    unique.sort(key=lambda finding: finding.severity is not Severity.REFUSE)
    return tuple(unique[:FINDINGS_MAX])


def _namespaces(tree: TreeView) -> Iterator[Finding]:
    """CRIU runs beside the shim: what lives in namespaces of its own is out of its sight."""
    ours = Namespaces.of("self")
    for process in tree.processes:
        nested = [
            kind
            for kind in _NAMESPACES_OF_ONE_TREE
            if process.namespaces.get(kind, ours.get(kind)) != ours.get(kind)
        ]
        if nested:
            yield process.finding(
                Severity.REFUSE,
                "namespace",
                f"runs in another {' and '.join(nested)} namespace than its shim",
                "run the shim inside the same container as the worker",
            )


def _traced(tree: TreeView) -> Iterator[Finding]:
    for process in tree.processes:
        tracer = _tracer(process)
        if tracer:
            yield process.finding(
                Severity.REFUSE,
                "traced",
                f"is traced by pid {tracer}, and a process has one tracer at a time",
                "end the debugger, strace or profiler",
            )


def _tracer(process: ProcessView) -> int:
    for line in process.read("status").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0
