"""One node and one job as a leader knows them; `cluster` keeps all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.model import JobRecord, NodeFacts, WorkerState

ATTACHED, LOST, LEFT = "attached", "lost", "left"


@dataclass
class Node:
    """One node, from its first Hello on."""

    facts: NodeFacts
    session: str
    state: str = ATTACHED
    reason: str = ""
    workers: dict[tuple[str, int], WorkerState] = field(default_factory=dict)
    condemned: set[tuple[str, int]] = field(default_factory=set)  # it was told to kill these


@dataclass
class Job:
    """One job: its numbers, and the node of each worker of the present incarnation.

    Workers of an incarnation below `floor` are not the job. One from there up to the present
    incarnation is left of a job that a restore was to replace: it becomes the job again if that
    restore fails before anything was cleared away.
    """

    name: str
    workers: int
    world_size: int = 0
    incarnation: int = 0
    latest: str = ""
    latest_unix_s: float = 0.0
    places: dict[int, str] = field(default_factory=dict)
    floor: int = 0
    base: int = 1  # the run that may be taking steps has this incarnation, or a later one
    broken: bool = False  # a worker of that run is surely gone: it takes no more steps
    homes: dict[int, str] = field(default_factory=dict)  # its nodes by the store, when adopted
    vacated: bool = False  # one of these came to this leader without its worker
    known: bool = False  # some worker was seen under this leader
    whole: bool = False  # whatever held a place in the present incarnation is in `places`
    sure_at: float = 0.0  # before this, who has not attached to a new leader may still live
    fresh: dict[int, str] = field(default_factory=dict)  # launched, not taken in yet: their nodes
    waiting: str = ""  # what these wait for
    told: dict[int, tuple[str, str, str]] = field(default_factory=dict)  # node, session, reason
    beginning: bool = False  # a new run is being recorded
    taken_away: str = ""  # why its run was ended on purpose, though not all at once
    try_at: float = 0.0  # when that may be tried again

    def of_run(self, state: WorkerState) -> bool:
        """Whether a worker belongs to the run that may be taking steps."""
        return state.incarnation >= self.base

    def is_whole(self) -> None:
        """Whatever was known of ends of its run is of the past."""
        self.broken, self.homes, self.vacated = False, {}, False

    def record(self) -> JobRecord:
        """The job as etcd keeps it."""
        return JobRecord(self.name, self.workers, self.world_size, self.incarnation, self.latest)
