"""What this node is and has: probed from /proc and the drivers, kept for who asks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.core.errors import SetupError
from coordinator.core.model import NodeFacts, ProgramFile
from coordinator.telemetry.version import own_version
from worker_shim.agent.programs import answer
from worker_shim.criu.port import ImageDriver
from worker_shim.cuda.port import CudaDriver
from worker_shim.images.port import ImageStore
from worker_shim.images.staging import Staging
from worker_shim.inventory.inventory import GpuInventory

SIOCGIFADDR = 0x8915  # linux/sockios.h
ROUND_BYTES = 64 << 20  # free room is told in steps, so that a report does not differ every second
FIRST_LOOK_S = 5.0  # at start; a look that takes longer goes on meanwhile


class NodeProbe:
    """The node's facts; what cannot change is read once."""

    def __init__(
        self,
        node: str,
        address: str,
        images: ImageDriver,
        store: ImageStore,
        staging: Staging,
        *,
        gpus: GpuInventory | None = None,
        cuda: CudaDriver | None = None,
    ) -> None:
        """`address` empty: that of the default interface, or of the first that is not loopback.

        `gpus` None: nobody looks for any. `cuda`: what saves device memory here.
        """
        self._images, self._store, self._staging = images, store, staging
        self._gpus, self._cuda = gpus, cuda
        model, flags = _cpu()
        self._facts = NodeFacts(
            node=node,
            address=address or default_address(),
            architecture=platform.machine(),
            kernel=platform.release(),
            cpu_model=model,
            cpu_flags=flags,
            criu_version="",
            memory_bytes=0,
            memory_free_bytes=0,
            staging_free_bytes=0,
            store=store.identity,
            shim_version=own_version(),
            boot_id=_boot_id(),
            **self._of_engine(),
        )

    def current(self) -> NodeFacts:
        """The facts as last probed."""
        return self._facts

    async def probe(self) -> str:
        """Ask criu for its version and NVML for the GPUs, then `refresh`.

        Returns why there is no usable criu, or ''.
        """
        trouble = ""
        if self._gpus is not None:
            await self._gpus.look(wait_s=FIRST_LOOK_S)
        try:
            criu = await self._images.version()
        except SetupError as error:
            criu, trouble = "", str(error)
        self._facts = replace(self._facts, criu_version=criu)
        self.refresh()
        return trouble

    def refresh(self) -> NodeFacts:
        """Read anew what changes: memory and room; of GPUs what the last look has found."""
        total, free = memory()
        self._facts = replace(
            self._facts,
            **self._of_gpus(),
            **self._of_engine(),
            memory_bytes=total,
            memory_free_bytes=_rounded(free),
            staging_free_bytes=_rounded(self._staging.free_bytes()),
        )
        return self._facts

    async def answer(self, files: tuple[ProgramFile, ...]) -> NodeFacts:
        """The facts with those of `files` that this node has, and GPUs as they are now."""
        looking = asyncio.ensure_future(self._gpus.fresh()) if self._gpus is not None else None
        found = await asyncio.to_thread(answer, files)
        if looking is not None:
            await looking
        return replace(self.refresh(), files=found)

    def look_at_gpus(self) -> None:
        """Have the GPUs looked at now and then; for who is called all the time.

        Not while a worker stands still: its memory is off the GPUs, and drivers are busy with it.
        """
        if self._gpus is not None:
            self._gpus.look_now_and_then()

    async def close(self) -> None:
        """End a look that is under way."""
        if self._gpus is not None:
            await self._gpus.close()

    def _of_engine(self) -> dict[str, Any]:
        engine = self._cuda.engine if self._cuda is not None else ""
        moves = self._cuda is None or not engine or self._cuda.moves
        return {"gpu_engine": engine, "gpu_no_map": not moves}

    def _of_gpus(self) -> dict[str, Any]:
        if self._gpus is None:
            return {}
        seen = self._gpus.current
        return {
            "gpus": tuple(
                replace(gpu, memory_free_bytes=_rounded(gpu.memory_free_bytes)) for gpu in seen.gpus
            ),
            "gpus_unseen": seen.unseen,
            "gpu_driver": seen.driver,
            "cuda_version": seen.cuda_version,
            "gpu_trouble": seen.trouble,
            "gpu_looked": seen.looked,
        }


def _rounded(size: int) -> int:
    return size // ROUND_BYTES * ROUND_BYTES


def default_address() -> str:
    """IPv4 address of the interface with the default route, else of the first not loopback."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    default = _default_interface()
    for name in ([default] if default else []) + names:
        address = _interface_address(name)
        if address:
            return address
    return "127.0.0.1"


def _default_interface() -> str:
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        name, destination, _, flags, *_ = line.split()
        if destination == "00000000" and int(flags, 16) & 1:
            return name
    return ""


def _interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
        except OSError:
            return ""


def _cpu() -> tuple[str, tuple[str, ...]]:
    """Model and feature flags of the first CPU, in the words of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or fields.get("CPU part") or platform.machine()
    flags = fields.get("flags") or fields.get("Features") or ""
    return model, tuple(sorted(flags.split()))


def memory() -> tuple[int, int]:
    """Bytes of memory: all, and what can be had without swapping; a cgroup's limit counts."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    total, free = fields["MemTotal"], fields["MemAvailable"]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total, free
    if limit.isdigit() and int(limit) < total:
        return int(limit), max(0, min(free, int(limit) - used))
    return total, free


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"unknown-{os.getpid()}"
