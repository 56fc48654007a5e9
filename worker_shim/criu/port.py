"""Port of the image driver: one tree of processes to a directory of images, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coordinator.core.model import Endpoint
from worker_shim.network.port import Sockets


@dataclass(frozen=True)
class DumpStats:
    """What a dump did, from CRIU's own statistics."""

    took_ms: int  # the whole criu process
    frozen_ms: int
    pages_written: int
    image_bytes: int


@dataclass(frozen=True)
class ImageFacts:
    """What the images themselves say about the tree."""

    root_pid: int
    pids: tuple[int, ...]  # every process
    task_ids: tuple[int, ...]  # every thread too; all must be free at restore

    @property
    def highest_pid(self) -> int:
        """The greatest task id of the tree."""
        return max(self.task_ids)


@dataclass(frozen=True)
class NamedFile:
    """A file that a restore opens by its name."""

    path: str
    size_bytes: int = -1  # which CRIU insists on; -1: it does not
    made: bool = False  # the restore itself makes it: its contents are in the images


class ImageDriver(Protocol):
    """CRIU behind a few calls. Every call has its own deadline and process group."""

    async def version(self) -> str:
        """The version, such as `4.2.1`; raises SetupError when there is no usable CRIU (>= 4.2)."""

    async def warm_up(self) -> None:
        """Have what the first dump or restore would do once done now; never raises."""

    async def dump(self, root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        """Write a stopped tree to the empty directory `images`; the tree stays stopped and alive.

        Raises DriverError with the recognised cause and the tail of CRIU's log; the tree is then
        as before and `images` may hold rubbish. Network lock is the caller's.
        """

    async def restore(self, images: Path, *, deadline_s: float) -> int:
        """Bring the tree back as a child of this process, every task stopped; return its root pid.

        Raises DriverError as `dump` does; what CRIU had forked is then gone.
        """

    def facts(self, images: Path) -> ImageFacts:
        """Read pids and thread ids from the images."""

    def files(self, images: Path) -> tuple[NamedFile, ...]:
        """The files that the restore opens by name, each once."""

    def sockets(self, images: Path) -> Sockets:
        """The TCP sockets as a restore will make them, moved if they were: lock and clear these."""

    def move_addresses(
        self, images: Path, moves: Mapping[str, str], *, close: Sequence[Endpoint] = ()
    ) -> int:
        """Rewrite every inet socket's addresses by `moves` (old to new), in place, atomically.

        Connections in `close` (with addresses as dumped) come back closed. Every call starts from
        the sockets as dumped, so it can be repeated, also with another map. Returns how many
        sockets differ from the dump.
        """
