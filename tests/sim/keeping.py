"""What must always be true of snapshots that are deleted, and an operator who has them deleted."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from coordinator.core import events
from coordinator.core.errors import AllstopError
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot
from coordinator.store.keys import Kind, Place

if TYPE_CHECKING:
    from coordinator.api.desk import Desk
    from tests.sim.truth import Truth
    from tests.sim.world import World

RETAINED = 0.6  # of all jobs
DELETES = 0.35  # of the moments in which an operator does something


class TruthOfKeeping:
    """Rules about deletions, by the store's own transactions."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.using: dict[str, str] = {}  # action that has not ended -> snapshot

    def used(self, action: str, snapshot: str, *, over: bool) -> None:
        """An attempt based on it or a restore of it is recorded."""
        known = self.truth.snapshots.get(snapshot)
        if over:
            self.using.pop(action, None)
        elif snapshot and action not in self.using:
            self.using[action] = snapshot
            if known is None or known.record.deleting:
                self.truth.violated(1, f"{action} begins with {snapshot}, which is gone or goes")

    def changed(self, snapshot: Snapshot) -> None:
        """How it is kept was recorded anew."""
        truth, name = self.truth, snapshot.snapshot
        known = truth.snapshots[name]
        before = known.record
        if replace(before, workers=(), **_kept(snapshot)) != snapshot:
            truth.violated(1, f"snapshot {name} was changed: {before} is {snapshot}")
        if before.deleting and not snapshot.deleting:
            truth.violated(1, f"snapshot {name} is not deleted any more")
        if snapshot.deleting and not before.deleting:
            users = [action for action, of in self.using.items() if of == name]
            if users or before.pinned:
                truth.violated(1, f"{name} is deleted though pinned or used by {users}")
            truth.world.note(f"snapshot {name} is being deleted")
            truth.world.nemesis.at(snapshot.job, "MARKING")
        known.record = snapshot

    def removed(self, place: Place) -> None:
        """A key is gone."""
        truth = self.truth
        if place.kind is Kind.LATEST:
            newest = truth.snapshots.get(truth.latest.get(place.job, ""))
            if newest is not None and not newest.record.deleting:
                truth.violated(3, f"latest of {place.job} is gone")
            truth.latest.pop(place.job, None)
        if place.kind is not Kind.SNAPSHOT:
            return
        known = truth.snapshots.pop(place.identity)
        truth.deleted += 1
        truth.world.nemesis.at(place.job, "FORGETTING")
        left = [w.manifest for w in known.workers if w.manifest in truth.world.images.published]
        if not known.record.deleting or left:
            truth.violated(1, f"{place.identity} is forgotten, and {left} are still there")
        if truth.latest.get(place.job) == place.identity:
            truth.violated(3, f"latest of {place.job} is {place.identity}, which was deleted")


def _kept(snapshot: Snapshot) -> dict[str, object]:
    names = ("pinned", "pinned_unix_s", "deleting", "damaged", "verified_unix_s", "stores")
    return {name: getattr(snapshot, name) for name in names}


class Keeper:
    """What the operator of a job wants kept; its chance is its own, all else stays as it was."""

    def __init__(self, world: World, job: str) -> None:
        self.world, self.job = world, job
        self.chance = Random(f"{world.seed} keeping {job}")
        last = self.chance.choice((1, 1, 2, 3))
        self.policy = Retention(keep_last=last) if self.chance.random() < RETAINED else None
        self.number = 0

    async def something(self, desk: Desk) -> None:
        """Set the rules, pin, delete or collect; whatever is refused is refused."""
        try:
            if desk.control.retention(self.job) != self.policy:
                await desk.store.set_retention(self.job, self.policy)
                desk.tell(events.RetentionChanged(self.job, self.policy))
                return
            known = [s for s in await desk.store.snapshots(self.job) if not s.deleting]
            if self.chance.random() > DELETES or not known:
                return
            await self._one(desk, self.chance.choice(known))
        except AllstopError as error:
            self.world.note(f"keeping of {self.job}: {error.what}")

    async def _one(self, desk: Desk, chosen: Snapshot) -> None:
        self.number += 1
        name = f"{self.job}-k{desk.control.epoch}-{self.number}"
        what = self.chance.random()
        if what < 0.2:
            why = "" if chosen.pinned else "it is a good one"
            changed = await desk.store.set_pin(self.job, chosen.snapshot, why, 1.0)
            desk.tell(events.SnapshotChanged(changed))
        elif what < 0.5:
            wanted = (chosen.snapshot,)
            desk.tell(events.DeletionRequested(self.job, name, wanted, force=what < 0.35))
        else:
            desk.tell(events.CollectionRequested(self.job, name))
