"""Memory that CRIU cannot dump or restore, or not as it was.

That of GPUs and InfiniBand is for `worker_shim.compatibility`.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.core.model import Finding, Severity
from worker_shim.process.view import ProcessView, TreeView

GHOST_BYTES_MAX = 512 << 20  # the --ghost-limit that the dump is run with
GHOST_BYTES_NOTABLE = 64 << 20
DELETED = " (deleted)"


def check(tree: TreeView) -> Iterator[Finding]:
    """Look at the named mappings of every process; each kind is told once per process."""
    for process in tree.processes:
        yield from _shared_memory(process)
        yield from _huge_pages(process)
        yield from _deleted(process)


def _shared_memory(process: ProcessView) -> Iterator[Finding]:
    if any(area.path.startswith("/SYSV") for area in process.mappings):
        yield process.finding(
            Severity.REFUSE,
            "sysv_shm",
            "maps a System V shared memory segment, which CRIU dumps only with a whole IPC"
            " namespace",
            "use POSIX shared memory (/dev/shm), as PyTorch does by default",
        )


def _huge_pages(process: ProcessView) -> Iterator[Finding]:
    for area in process.mappings:
        if area.path.startswith(("/anon_hugepage", "/dev/hugepages")):
            yield process.finding(
                Severity.WARN,
                "huge_pages",
                f"maps {area.size_bytes >> 20} MiB of reserved huge pages",
                "the node that takes it must have as many free in vm.nr_hugepages",
            )
            return


def _deleted(process: ProcessView) -> Iterator[Finding]:
    """Files without a name are carried inside the images, up to a limit each."""
    sizes: dict[str, int] = {}
    for area in process.mappings:
        if area.shared and area.path.endswith(DELETED) and _is_file(area.path):
            sizes[area.path] = sizes.get(area.path, 0) + area.size_bytes
    for path, size_bytes in sizes.items():
        name = path.removesuffix(DELETED)
        if size_bytes > GHOST_BYTES_MAX:
            yield process.finding(
                Severity.REFUSE,
                "deleted_file",
                f"maps {size_bytes >> 20} MiB of the deleted file {name}, more than the"
                f" {GHOST_BYTES_MAX >> 20} MiB that are carried",
                "keep the file while it is mapped",
            )
        elif size_bytes >= GHOST_BYTES_NOTABLE:
            yield process.finding(
                Severity.WARN,
                "deleted_file",
                f"maps {size_bytes >> 20} MiB of the deleted file {name}, which the images carry",
                "expect a longer dump",
            )


def _is_file(path: str) -> bool:
    """Not memory that has only the look of a file; CRIU dumps that as memory, without a limit."""
    return not path.startswith(("/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"))
