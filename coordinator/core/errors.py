"""Every error of allstop, in one tree.

    AllstopError             exit  gRPC status
    ├── Refused                 3  FAILED_PRECONDITION asked for something that cannot be
    │   ├── NotFound            4  NOT_FOUND           unknown job, snapshot, attempt, node
    │   ├── Busy                5  ABORTED             another attempt or restore has the job
    │   ├── NotReady            3  FAILED_PRECONDITION preflight, worker missing, no hook
    │   ├── OldRunUnseen       16  FAILED_PRECONDITION it may go on where nobody sees it
    │   ├── NoPlan              6  FAILED_PRECONDITION no set of nodes fits the snapshot
    │   ├── Forbidden          15  PERMISSION_DENIED   the certificate is not of the role for it
    │   └── BadRequest          2  INVALID_ARGUMENT    the request itself makes no sense
    ├── AttemptFailed           7  ABORTED             a checkpoint was tried and undone
    │   └── DeadlinePassed      8  DEADLINE_EXCEEDED   somebody was awaited in vain
    ├── RestoreFailed           9  ABORTED             a restore was tried and cleared away
    ├── DriverError            10  INTERNAL            criu, nft, cuda … failed on a node
    │   └── StoreAway          10  INTERNAL            a node cannot use the image store
    ├── Damaged                17  DATA_LOSS           a snapshot is not what was committed
    ├── LinkError              11  UNAVAILABLE         no coordinator, or the stream broke
    │   └── NoLeader           11  UNAVAILABLE         one answers, but nobody leads just now
    ├── StoreError             12  UNAVAILABLE         etcd; see `definite`
    │   └── Overtaken          12  UNAVAILABLE         it holds what rules this write out
    ├── Fenced                 13  FAILED_PRECONDITION an older epoch spoke, or a lost node returned
    ├── SetupError             14  FAILED_PRECONDITION this machine lacks something
    │   └── WrongKey           14  FAILED_PRECONDITION not the key that the image store began with
    └── BugError               70  INTERNAL            allstop broke its own rule; nothing changed
        └── IllegalEvent       70  INTERNAL            an event that the state has no row for

An error says what happened, where (job, worker, rank, node, phase), whether it surely did *not*
happen (`definite`), and what to do next (`advice`). Foreign errors become one of these in one
place per edge: `store/etcd/mapping`, `link/mapping`, `worker_shim/process/runner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class Where:
    """The place of an error; fields that do not apply stay empty."""

    job: str = ""
    worker: int | None = None
    rank: int | None = None
    node: str = ""
    phase: str = ""

    def __str__(self) -> str:
        parts = [
            f"job {self.job}" if self.job else "",
            f"worker {self.worker}" if self.worker is not None else "",
            f"rank {self.rank}" if self.rank is not None else "",
            f"node {self.node}" if self.node else "",
            f"phase {self.phase}" if self.phase else "",
        ]
        return ", ".join(part for part in parts if part)


def printable(text: str) -> str:
    """A text that can be shown and sent: keys of etcd and file names need not be Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


class AllstopError(Exception):
    """Base of all errors that allstop raises on purpose."""

    exit_code: ClassVar[int] = 1
    grpc_status: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        what: str,
        *,
        where: Where | None = None,
        advice: str = "",
        definite: bool = True,
        details: tuple[str, ...] = (),
    ) -> None:
        """Keep the parts apart; `definite`: the thing asked for surely did not happen."""
        super().__init__(what)
        self.what = printable(what)
        self.where = where or Where()
        self.advice = advice
        self.definite = definite
        self.details = details

    def at(self, **known: object) -> AllstopError:
        """Fill in the parts of the place that were not known where the error was raised."""
        missing: dict[str, object] = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in known.items()
            if getattr(self.where, name) in ("", None) and value not in ("", None)
        }
        self.where = replace(self.where, **missing)  # type: ignore[arg-type]
        return self

    def __str__(self) -> str:
        place = str(self.where)
        text = f"{self.what} ({place})" if place else self.what
        return text if self.definite else f"{text} [it may have happened all the same]"

    def to_fields(self) -> dict[str, object]:
        """The same as plain values, for the wire and for `-o json`."""
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "job": self.where.job,
            "worker": self.where.worker,
            "rank": self.where.rank,
            "node": self.where.node,
            "phase": self.where.phase,
            "advice": self.advice,
            "definite": self.definite,
            "details": list(self.details),
        }


class Refused(AllstopError):
    """Asked for something that cannot be; nothing was changed."""

    exit_code = 3
    grpc_status = "FAILED_PRECONDITION"


class NotFound(Refused):
    """There is no job, snapshot, attempt or node of that name."""

    exit_code = 4
    grpc_status = "NOT_FOUND"


class Busy(Refused):
    """Another attempt or restore has the job; its id is in the text."""

    exit_code = 5
    grpc_status = "ABORTED"


class NotReady(Refused):
    """The job cannot be checkpointed as it is: preflight findings, a worker or a hook missing."""


class OldRunUnseen(Refused):
    """What a restore is to replace is out of reach, and may go on where nobody sees it."""

    exit_code = 16


class NoPlan(Refused):
    """No set of nodes fits the snapshot; `details` holds every reason for every node."""

    exit_code = 6


class Forbidden(Refused):
    """Whoever asks may not: the certificate is not of the role, or not of the node."""

    exit_code = 15
    grpc_status = "PERMISSION_DENIED"


class BadRequest(Refused):
    """The request itself makes no sense."""

    exit_code = 2
    grpc_status = "INVALID_ARGUMENT"


class AttemptFailed(AllstopError):
    """A checkpoint was tried, did not reach COMMITTED, and was undone."""

    exit_code = 7
    grpc_status = "ABORTED"


class DeadlinePassed(AttemptFailed):
    """Somebody was awaited in vain; the text names whom, in which phase, and for how long."""

    exit_code = 8
    grpc_status = "DEADLINE_EXCEEDED"


class RestoreFailed(AllstopError):
    """A restore was tried and what it had restored was killed again; the snapshot is untouched."""

    exit_code = 9
    grpc_status = "ABORTED"


class DriverError(AllstopError):
    """An outside program or kernel facility failed on a node; `details` holds its own words."""

    exit_code = 10
    grpc_status = "INTERNAL"


class StoreAway(DriverError):
    """A node cannot use the image store: it does not answer, is not mounted, or refuses."""


class Damaged(AllstopError):
    """A snapshot's images are not what was committed; `allstop verify` ends with its code."""

    exit_code = 17
    grpc_status = "DATA_LOSS"


class LinkError(AllstopError):
    """No coordinator can be reached, or the stream to it broke."""

    exit_code = 11
    grpc_status = "UNAVAILABLE"


class NoLeader(LinkError):
    """A coordinator answers, but nobody leads at this moment: asking again soon helps."""


class StoreError(AllstopError):
    """etcd did not do what was asked; with `definite=False` it may have done it."""

    exit_code = 12
    grpc_status = "UNAVAILABLE"


class Overtaken(StoreError):
    """What the store holds rules a write out, and every earlier try whose answer was lost."""


class Fenced(AllstopError):
    """An older epoch spoke, or a node came back that had been given up."""

    exit_code = 13
    grpc_status = "FAILED_PRECONDITION"


class SetupError(AllstopError):
    """This machine lacks something that is needed; the advice says how to get it."""

    exit_code = 14
    grpc_status = "FAILED_PRECONDITION"


class WrongKey(SetupError):
    """The image store is encrypted with another key, or not, or is and no key was given."""


class BugError(AllstopError):
    """allstop broke a rule of its own; the state was left as it was before the event."""

    exit_code = 70
    grpc_status = "INTERNAL"


class IllegalEvent(BugError):
    """The table has no row for this event in this state."""


def all_kinds() -> Mapping[str, type[AllstopError]]:
    """Every class of the tree by name, as it stands on the wire."""
    kinds: dict[str, type[AllstopError]] = {}
    queue: list[type[AllstopError]] = [AllstopError]
    while queue:
        kind = queue.pop()
        kinds[kind.__name__] = kind
        queue.extend(kind.__subclasses__())
    return kinds


def from_fields(fields: Mapping[str, object]) -> AllstopError:
    """Build the error again that `to_fields` took apart; an unknown kind becomes AllstopError."""
    kind = all_kinds().get(str(fields.get("kind", "")), AllstopError)
    worker, rank = fields.get("worker"), fields.get("rank")
    details = fields.get("details")
    return kind(
        str(fields.get("what", "")),
        where=Where(
            job=str(fields.get("job", "")),
            worker=worker if isinstance(worker, int) else None,
            rank=rank if isinstance(rank, int) else None,
            node=str(fields.get("node", "")),
            phase=str(fields.get("phase", "")),
        ),
        advice=str(fields.get("advice", "")),
        definite=bool(fields.get("definite", True)),
        details=tuple(str(line) for line in details) if isinstance(details, (list, tuple)) else (),
    )
