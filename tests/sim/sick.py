"""GPUs that fall sick: what a machine's driver has, what its shim knows of that, what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from coordinator.core.drain_records import of_drain
from coordinator.core.health_records import GpuTrouble
from coordinator.core.model import RestoreRecord, Snapshot, WorkerRecord
from tests.sim.cuda import uuids_of
from worker_shim.health.troubles import Troubles
from worker_shim.health.watch import HealthWatch

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

SICK = 0.5  # of the runs with GPUs have sick ones
XIDS = (13, 48, 64, 64, 79, 79, 95)
UNCORRECTED = frozenset({48, 95})  # said once more: the rules are what is tried


class SimHealth(HealthWatch):
    """What one life of a shim knows of the machine's GPUs; the driver is always right."""

    def __init__(self, machine: Machine) -> None:
        self.troubles = Troubles()
        for _, uuid, xid in machine.xids:
            self.troubles.xid(uuid, 0, xid, "nvml", before=True)
        machine.health = self

    async def run(self) -> None:
        """Nothing has to be asked for."""
        await asyncio.Event().wait()

    async def settled(self, *, within_s: float = 0.0) -> tuple[GpuTrouble, ...]:
        """All there is."""
        return tuple(replace(each, fresh=False) for each in self.troubles.now())


class Sickness:
    """Makes GPUs fail; its chance is its own: runs without it are as they were."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = Random(f"{world.seed} sick")
        self.wanted = bool(world.gpu_jobs) and self.chance.random() < SICK

    async def run(self) -> None:
        """Until cancelled."""
        while self.wanted:
            await asyncio.sleep(self.chance.uniform(3.0, 15.0))
            machine = self.chance.choice(list(self.world.machines.values()))
            uuid, xid = self.chance.choice(uuids_of(machine.name)), self.chance.choice(XIDS)
            self.world.note(f"Xid {xid} of {uuid}")
            machine.xids.append((self.world.loop.now, uuid, xid))
            if machine.health is not None and machine.shim is not None:
                machine.health.troubles.xid(uuid, 0, xid, "nvml")

    def heal(self) -> None:
        """All GPUs are replaced."""
        for machine in self.world.machines.values() if self.wanted else ():
            machine.xids.clear()
            if machine.health is not None:
                machine.health.troubles.forget()


# -- what must hold ------------------------------------------------------------------------------


def check_committed(
    world: World, snapshot: Snapshot, workers: Iterable[WorkerRecord], dumped_at: float
) -> None:
    """Suspect is what was saved through a GPU with an uncorrected error, and nothing else."""
    uses = {worker.node for worker in workers if worker.gpu_pids}
    had = [
        (name, at)
        for name, machine in world.machines.items()
        for at, _, xid in machine.xids
        if xid in UNCORRECTED and name in uses
    ]
    if any(at <= dumped_at for _, at in had) and not snapshot.suspect:
        world.truth.violated(1, f"{snapshot.snapshot} was saved through {had}, and is not suspect")
    if snapshot.suspect and not had and not world.healed:
        world.truth.violated(1, f"{snapshot.snapshot} is suspect for nothing: {snapshot.suspect}")


def check_restore(world: World, record: RestoreRecord) -> None:
    """Nothing takes a suspect snapshot by itself; a drain does where there is no other."""
    known = world.truth.snapshots.get(record.snapshot)
    if known is None or not known.record.suspect or not record.cause or record.cold:
        return
    good = [
        name
        for name, each in world.truth.snapshots.items()
        if each.record.job == record.job and not (each.record.suspect or each.record.deleting)
    ]
    if not of_drain(record.cause):
        world.truth.violated(3, f"{record.restore} takes {record.snapshot}, which is suspect")
    elif good:
        world.truth.violated(3, f"{record.restore} takes a suspect one in the place of {good}")
