"""The snapshots of one job as a leader keeps them, and what stands against deleting them."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.cleaning import Cleaning
from coordinator.core.errors import Busy, Refused, Where
from coordinator.core.events import DeletionRequested
from coordinator.core.failures import listed
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot


@dataclass
class Shelf:
    """The snapshots of one job, in the order of their commits, without their workers."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    policy: Retention | None = None
    found_unix_s: float = 0.0  # newest stamp when this leader began; 0: there was none
    cleaning: Cleaning | None = None

    @property
    def held(self) -> frozenset[str]:
        """Snapshots that nobody may begin to use."""
        marked = frozenset(s.snapshot for s in self.snapshots.values() if s.deleting)
        return marked | (self.cleaning.holds if self.cleaning is not None else frozenset())

    def kept(self) -> list[Snapshot]:
        """Those that stay, as things are."""
        held = self.held
        return [each for each in self.snapshots.values() if each.snapshot not in held]


def require_newest_stays(shelf: Shelf, event: DeletionRequested, latest: str) -> None:
    """Raise Refused where the newest would go before older ones: `latest` never points back."""
    if latest not in event.snapshots:
        return
    where = Where(job=event.job)
    older = [s.snapshot for s in shelf.kept() if s.snapshot not in event.snapshots]
    if older:
        raise Refused(
            f"snapshot {latest} is the newest, which a restore takes; older ones are "
            f"{listed(older)}",
            where=where,
            advice=f"take a newer one with `allstop checkpoint {event.job}`, or delete the older "
            "ones first",
        )
    if not event.force:
        raise Refused(
            f"snapshot {latest} is the last one: without it job {event.job} cannot be restored",
            where=where,
            advice="say --force if it is to go all the same",
        )


def busy_with(cleaning: Cleaning) -> Busy:
    """The refusal of a request that a cleaning stands against."""
    return Busy(
        f"a cleaning of job {cleaning.job} is {cleaning.state}: {cleaning.reason}",
        where=Where(job=cleaning.job),
        advice="try again when it is over",
    )
