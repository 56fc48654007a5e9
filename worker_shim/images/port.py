"""Port of the image store: where a worker's images survive their node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    nccl: str = "auto"  # the mode that was asked for
    nccl_shim: str = ""  # NCCL's checkpoint shim as it was given; empty: looked for


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


@dataclass(frozen=True)
class Stored:
    """What `put` made of a worker's images."""

    place: str  # of the manifest
    digest: str  # of the manifest, which holds the digests of everything else
    dumped_bytes: int  # what was staged, zero pages left out
    stored_bytes: int  # what was written to the store for it
    shared_bytes: int  # of what was staged, what the store had, or another worker stores


@dataclass(frozen=True)
class Kept:
    """One worker's images that are to stay."""

    place: str
    digest: str


@dataclass(frozen=True)
class Damage:
    """Something in the store that is not what was committed."""

    name: str  # of the object, or of the chunk in it
    what: str  # missing, truncated, other bytes …
    file: str = ""  # the first image file that needs it
    sharers: tuple[str, ...] = ()  # places of other images that need it too


@dataclass(frozen=True)
class Collected:
    """What a collection removed, or would remove."""

    objects: int
    freed_bytes: int


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
        base: str = "",
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Stored:
        """Hash, store and sync everything, then publish the manifest.

        `base` is a snapshot of the job that stays until this is over: what it holds is not stored
        again. The manifest's `files` are filled in here. A crash half-way leaves only what `sweep`
        or `collect` removes. Raises DriverError (store full, unreachable).
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

    async def verify(
        self,
        place: str,
        digest: str,
        *,
        others: Sequence[Kept] = (),
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> tuple[Damage, ...]:
        """Read every byte again; return what is damaged, the first of it first; () when whole.

        Each damage names which of `others` need the same bytes. Raises DriverError where the store
        cannot be read at all.
        """

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """Every attempt of the job of which anything is in the store, sorted."""

    async def collect(
        self,
        job: str,
        dead: Sequence[str],
        keep: Sequence[Kept],
        *,
        dry_run: bool,
        deadline_s: float,
    ) -> Collected:
        """Remove what the attempts in `dead` wrote and nothing in `keep` needs.

        `dead` are attempts that `actions` gave and that were over when that was asked; `keep` is
        every snapshot that is to stay, also the base of whatever is being put. Raises DriverError,
        with nothing removed, where a manifest that is to stay cannot be read. Safe to repeat after
        a crash: manifests of `dead` go first.
        """

    def sweep(self) -> tuple[str, ...]:
        """At start: remove what an earlier shim of this node was writing; returns what went."""

    def free_bytes(self) -> int:
        """Room left."""
