"""The light job of `badluck` with a device for every rank, and what is in device memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lab.host import Host
from tests.integration.badluck.kit import NODES, RANKS, RANKS_PER_NODE, Pair, until
from tests.support.gpus import ROOT, built

FAKES = ROOT / "tests" / "fakes" / "gpu"
PLACE = Path("/run/gpu")  # of every node: it has a /run of its own
DEVICE_BYTES = 64 << 20
STEPS_MAX = 100_000
END_S = 20.0
LOOK_RANKS = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <"$process/cmdline" | grep -q '[p]air.py rank' && echo "${process#/proc/}"
done 2>/dev/null
true
"""


def uuids_of(node: str, count: int = RANKS_PER_NODE) -> list[str]:
    """The node's devices."""
    number = int(node[1:])
    return [f"GPU-5c89e0f0-0000-4000-8000-0000000{number:02d}0{each:02d}" for each in range(count)]


def link(rank: int, step: int) -> str:
    """What a rank's chain is after so many steps."""
    assert step < STEPS_MAX
    text = str(rank)
    for _ in range(step):
        text = hashlib.sha256(text.encode()).hexdigest()
    return text


def devices_on(host: Host) -> subprocess.Popen[bytes]:
    """Make the node's devices; the daemon ends with the node, or with its input."""
    sizes = dict.fromkeys(uuids_of(host.name), DEVICE_BYTES)
    daemon = host.popen(
        [sys.executable, str(FAKES / "daemon.py"), str(PLACE), json.dumps(sizes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    assert daemon.stdout.readline(), "the daemon has ended"
    return daemon


def environment_on(node: str, engine: str, faults: Path) -> dict[str, str]:
    """What the node's shim, its driver and its ranks need; `faults`: what goes wrong."""
    programs = built()
    return {
        "PAIR_GPU": str(PLACE),
        "PAIR_FAKES": str(FAKES),
        "PAIR_UUIDS": ",".join(uuids_of(node)),
        "ALLSTOP_NVIDIA_DEVICES": str(PLACE / "nvidia"),
        "ALLSTOP_GPU_ENGINE": engine,
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LD_LIBRARY_PATH": str(programs),
        "FAKE_GPU_PLACE": str(PLACE),
        "FAKE_GPU_FAULT": str(faults),
    }


@dataclass
class GpuPair(Pair):
    """Each node has two devices and whoever drives them, by the library or by the program."""

    engine: str = "library"
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)  # their ends are held here

    async def start(self, *, spares: tuple[str, ...] = ()) -> None:
        """As the pair, with devices before the shims."""
        (self.shared / "chain").mkdir(parents=True)
        for node in (*NODES, *spares):
            self.start_devices(node)
        await super().start(spares=spares)

    async def stop(self) -> None:
        """As the pair, with the daemons."""
        await super().stop()
        for daemon in self.daemons:
            await asyncio.to_thread(daemon.communicate, timeout=END_S)

    def start_devices(self, node: str) -> None:
        """The node's devices and their daemon, which end with the node."""
        self.daemons.append(devices_on(self.host(node)))

    def start_worker(self, node: str) -> None:
        self._beside(node)
        super().start_worker(node)

    def start_spare(self, node: str) -> None:
        self._beside(node)
        super().start_spare(node)

    def _beside(self, node: str) -> None:
        self.env = environment_on(node, self.engine, self.fault_of(node))

    # -- what misbehaves -----------------------------------------------------------------------

    def fault_of(self, node: str) -> Path:
        """What the node's driver does wrong; see tests/fakes/gpu/libcuda.c."""
        return self.shared / f"fault.{node}"

    def tell_driver(self, node: str, *words: str) -> None:
        """From now on a call of the node's driver has this result."""
        self.fault_of(node).write_text(" ".join(words) + "\n" if words else "")

    def behave(self) -> None:
        super().behave()
        for node in NODES:
            self.tell_driver(node)

    # -- what is seen --------------------------------------------------------------------------

    def states(self, node: str) -> list[str]:
        """How the driver says that the node's ranks stand."""
        host = self.host(node)
        pids = host.run(["sh", "-c", LOOK_RANKS]).stdout.split()
        return [
            host.run(
                [str(built() / "cuda-checkpoint"), "--get-state", "--pid", pid], env=self.env
            ).stdout.strip()
            for pid in pids
        ]

    async def chains_are_right(self) -> None:
        """Every rank's chain is what so many steps make of it, from the first one on."""
        await self.moves()

        async def right() -> bool:
            for rank in RANKS:
                step, found = (self.shared / "chain" / str(rank)).read_text().split()
                assert found == link(rank, int(step)), f"rank {rank} at step {step}"
            return True

        await until("the chains", right)
