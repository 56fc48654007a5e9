"""The real drivers, put together; the only module that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from worker_shim.agent.options import ShimOptions
from worker_shim.agent.ports import HOOK, PAGE, Drivers, Page
from worker_shim.compatibility.judging import precautions
from worker_shim.compatibility.node import NodeEyes, NodeSight
from worker_shim.compatibility.table import Precaution
from worker_shim.criu.driver import CriuDriver
from worker_shim.cuda.choosing import AUTO, opened
from worker_shim.cuda.devices import KERNEL_DRIVER
from worker_shim.cuda.late import late
from worker_shim.facts import NodeProbe
from worker_shim.files.driver import LinuxFileDriver
from worker_shim.health.watch import HealthWatch
from worker_shim.hook import install
from worker_shim.images.chunks.pace import Limits
from worker_shim.images.opening import open_store
from worker_shim.images.staging import Staging
from worker_shim.inventory.inventory import GpuInventory
from worker_shim.network.driver import NftNetworkDriver
from worker_shim.process.control import ControlPage
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.runner import CommandRunner


class HookFiles:
    """`HookDriver` on the node's own file system."""

    def install(
        self, directory: Path, base: Mapping[str, str], *, worker: int, slots: int
    ) -> tuple[Page, dict[str, str], tuple[str, ...]]:
        """Make hook and page anew for a worker that is about to start."""
        install.install(directory / HOOK)
        page = ControlPage.create(directory / PAGE, slots)
        additions, notes = install.environment(
            base, directory / HOOK, directory / PAGE, worker=worker
        )
        return page, additions, notes

    def renew(
        self, directory: Path, page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]
    ) -> Page:
        """Make both anew for processes that CRIU is about to bring back."""
        install.install(directory / HOOK)
        return ControlPage.write_anew(directory / PAGE, page, slots)


async def build(options: ShimOptions) -> tuple[Drivers, NodeProbe]:
    """Make every driver.

    Raises DriverError when the image store cannot be used, BadRequest for an address of one that
    makes no sense, WrongKey, SetupError where the engine for device memory that was asked for is
    not there. Partners are answered from here on, until `Drivers.close_store`.
    """
    commands = CommandRunner()
    gpus, cuda = GpuInventory(commands), await opened(options.gpu_engine, commands)
    if options.gpu_engine == AUTO and not cuda.engine and KERNEL_DRIVER.exists():
        cuda = late(cuda, lambda: opened(AUTO, commands))
    store = open_store(
        options.store,
        limits=Limits(options.persist_bytes_per_s, options.persist_cpu),
        verify_full=options.persist_verify == "full",
    )
    staging = Staging(options.staging_dir, options.node, keep=options.keep_images)
    images = CriuDriver(commands, program=options.criu, at_once=options.criu_at_once)
    health = HealthWatch(lambda: gpus.driver_there, dcgm_url=options.dcgm_url)
    probe = NodeProbe(
        options.node,
        options.address,
        images,
        store,
        staging,
        gpus=gpus,
        cuda=cuda,
    )
    eyes = NodeEyes(commands)

    def sight() -> NodeSight:
        now = probe.current()
        return eyes.look(
            now.gpus,
            now.gpu_driver,
            now.cuda_version,
            engine=cuda.engine,
            trouble=cuda.trouble or now.gpu_trouble,
        )

    drivers = Drivers(
        process=LinuxProcessDriver(sight),
        images=images,
        network=NftNetworkDriver(commands),
        files=LinuxFileDriver(),
        cuda=cuda,
        hook=HookFiles(),
        store=store,
        staging=staging,
        facts=probe,
        eyes=eyes,
        run_root=options.run_dir,
        save_before_kill=lambda: Precaution.SAVE_BEFORE_KILL in precautions(sight().situation),
        gpus=gpus,
        health=health,
        close_store=store.objects.close,
    )
    return drivers, probe
