"""What the core is told about drains; see `events`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.events import Event
from coordinator.core.model import Failure, NodeFacts, Snapshot


@dataclass(frozen=True)
class DrainRequested(Event):
    """An operator (or a node's own notice) asked that a node be emptied.

    `snapshots`: the newest of each job that is there, where there is one; the nodes were asked for
    their program files.
    """

    node: str
    request: str
    why: str
    deadline_s: float  # for the last checkpoint to be whole; 0: none
    unix_s: float
    snapshots: tuple[Snapshot, ...] = ()
    files: tuple[NodeFacts, ...] = ()
    notice: bool = False  # the node goes whatever is answered: what cannot be moved is saved
    session: str = ""  # of the shim that was told so; empty: somebody else says it


@dataclass(frozen=True)
class UndrainRequested(Event):
    """An operator asked that a node take workers again."""

    node: str
    request: str


@dataclass(frozen=True)
class DrainStored(Event):
    """The drain of a node is in etcd in this state, or gone from there."""

    node: str
    state: str
    requested_unix_s: float  # which drain of that node


@dataclass(frozen=True)
class DrainUnstored(Event):
    """A state of the drain of a node was not written, or nobody knows."""

    node: str
    state: str
    requested_unix_s: float
    failure: Failure


@dataclass(frozen=True)
class DrainUnready(Event):
    """A drain that the leader wanted itself could not even be asked for; nothing was changed."""

    node: str
    failure: Failure
    session: str  # of the shim that was told that the node goes; empty: none was


class NoticeKind(StrEnum):
    """What a shim was told."""

    DRAIN = "DRAIN"  # its node is about to go
    CHECKPOINT = "CHECKPOINT"  # its jobs are to be saved
    STOP = "STOP"  # its jobs are to be saved and stopped
    END = "END"  # it ends now, and its workers with it


@dataclass(frozen=True)
class NoticeGiven(Event):
    """Somebody has told a shim what is to become of its node."""

    node: str
    kind: NoticeKind
    deadline_s: float  # left for it; 0: no deadline
    why: str
