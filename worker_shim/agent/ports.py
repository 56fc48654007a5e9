"""What the agent needs besides the drivers' own ports, and all drivers in one bundle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coordinator.core.model import NodeFacts, RankState
from worker_shim.compatibility.node import NodeEyes
from worker_shim.criu.port import ImageDriver
from worker_shim.cuda.port import CudaDriver
from worker_shim.files.port import FileDriver
from worker_shim.health.watch import HealthWatch
from worker_shim.images.port import ImageStore
from worker_shim.images.staging import Staging
from worker_shim.inventory.inventory import GpuInventory
from worker_shim.nccl.endpoint import Endpoint
from worker_shim.nccl.port import RankCommunicators
from worker_shim.network.port import NetworkDriver
from worker_shim.process.port import ProcessDriver, Tree, unheard

PAGE = "page"
LOG = "log"
HOOK = "hook"


class Page(Protocol):
    """The shim's side of one worker's control page."""

    @property
    def hold(self) -> int:
        """Generation of the present hold; 0: none."""

    @property
    def world_size(self) -> int:
        """As the ranks say; 0 until one has loaded the hook."""

    async def raise_hold(self, generation: int) -> None:
        """Raise the flag and wait out the store buffers: every boundary read later counts."""

    def ranks(self, tree: Tree | None = None) -> tuple[RankState, ...]:
        """Every rank; one that is a process of `tree` but has no slot has boundary -1."""

    def set_target(self, target: int) -> None:
        """Tell the ranks at which boundary to park."""

    async def wait_parked(
        self,
        tree: Tree | None = None,
        *,
        known: tuple[RankState, ...] = (),
        deadline_s: float,
        arrived: Callable[[int], object] = unheard,
    ) -> tuple[RankState, ...]:
        """Wait until every rank is parked; raises DeadlinePassed naming those awaited.

        A rank that was `known` before and is gone has ended: raises DriverError naming it.
        `arrived` is told the number of each rank once, when it is seen parked.
        """

    def tear_down(self) -> None:
        """Tell the parked ranks to destroy their communicators; every rank of the job is parked."""

    @property
    def tearing_down(self) -> bool:
        """Whether ranks of this hold were told so: they build them anew when they are let go."""

    def communicators(self) -> tuple[RankCommunicators, ...]:
        """How the communicators of each living rank stand."""

    def release(self) -> None:
        """Lower the flag; no error when it is not up."""

    def set_incarnation(self, incarnation: int) -> None:
        """Say in which incarnation of the job the ranks are."""

    def snapshot(self) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
        """All fields, as the manifest keeps them."""

    def refresh_starts(self) -> None:
        """After a restore the ranks have their old pids and new start times."""

    def close(self) -> None:
        """Unmap it; the file stays."""


class HookDriver(Protocol):
    """Puts the hook and the control page into a worker's run directory."""

    def install(
        self, directory: Path, base: Mapping[str, str], *, worker: int, slots: int
    ) -> tuple[Page, dict[str, str], tuple[str, ...]]:
        """Make both anew; return the page, additions to the environment, and notes for people."""

    def renew(
        self, directory: Path, page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]
    ) -> Page:
        """Make both anew with every field as given, before the processes that map it return."""


class FactsSource(Protocol):
    """Where the node's facts come from."""

    def current(self) -> NodeFacts:
        """The facts as last probed."""


@dataclass(frozen=True)
class Drivers:
    """Everything a worker's steps act through."""

    process: ProcessDriver
    images: ImageDriver
    network: NetworkDriver
    files: FileDriver
    cuda: CudaDriver
    hook: HookDriver
    store: ImageStore
    staging: Staging
    facts: FactsSource
    run_root: Path
    eyes: NodeEyes = field(default_factory=NodeEyes)
    save_before_kill: Callable[[], bool] = lambda: False  # of GPU processes
    gpus: GpuInventory | None = None  # None: nobody looks for any
    health: HealthWatch | None = None  # of GPUs; None: nobody watches
    endpoint: Endpoint = field(default_factory=Endpoint)  # where ranks meet to rebuild
    device_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one process of the node
    close_store: Callable[[], None] = lambda: None  # at the shim's end
