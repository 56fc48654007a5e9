"""Port of the image store: where a worker's images survive their node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from worker_shim.files.keeping import Keeping
from worker_shim.files.port import OpenFile


@dataclass(frozen=True)
class StoredFile:
    """One file of a worker's images."""

    name: str  # relative to the worker's directory
    size_bytes: int
    digest: str  # blake3 of the content, hex


@dataclass(frozen=True)
class Launch:
    """What a worker was started with, before its shim added anything of its own."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    slots: int  # ranks that fit into its control page


@dataclass(frozen=True)
class Manifest:
    """Everything that is needed to put one worker back, beside the images themselves."""

    version: int
    job: str
    worker: int
    action: str
    incarnation: int
    root_pid: int
    files: tuple[StoredFile, ...]
    open_files: tuple[OpenFile, ...]
    page: dict[str, int]  # control page: hold generation, target …
    slots: tuple[dict[str, int], ...]  # control page: one entry per local rank
    workers: int
    command: tuple[str, ...]
    run_directory: str
    launch: Launch | None = None  # None: kept by no version before
    keeping: Keeping = field(default_factory=Keeping)  # what the next cut keeps of files


class ImageStore(Protocol):
    """A place that outlives the node. Nothing is visible under its name before it is whole."""

    @property
    def identity(self) -> str:
        """Tells two stores apart; nodes that give the same identity share one store."""

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> tuple[str, str]:
        """Copy, hash and sync everything, then publish; return (place, digest) of the manifest.

        The manifest's `files` are filled in here. A crash half-way leaves only a partial directory
        that `sweep` removes. Raises DriverError (store full, unreachable).
        """

    async def fetch(
        self,
        place: str,
        digest: str,
        into: Path,
        *,
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Manifest:
        """Bring the images to the node and verify every digest.

        Raises DriverError naming the file that is missing or differs.
        """

    async def manifest(self, place: str, digest: str, *, deadline_s: float) -> Manifest:
        """Read the manifest alone; raises DriverError when it is missing or not the one wanted."""

    def place(self, job: str, action: str, worker: int) -> str:
        """Where `put` publishes the images of an action."""

    async def delete(self, place: str) -> None:
        """Remove what `put` published; no error when it is gone."""

    def sweep(self) -> tuple[str, ...]:
        """At start: remove what an earlier shim of this node was writing; returns what went."""

    def free_bytes(self) -> int:
        """Room left."""
