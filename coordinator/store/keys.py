"""Where everything lies in the key space; the layout is the design's and part of the contract.

    <prefix>/leader/<lease>                                    candidates, in order of creation
    <prefix>/nodes/<node>                                      NodeFacts, under the leader's lease
    <prefix>/drains/<node>                                     DrainRecord, until it is called off
    <prefix>/jobs/<job>                                        JobRecord, `latest` left out
    <prefix>/jobs/<job>/latest                                 id of the newest snapshot, plain text
    <prefix>/jobs/<job>/policy                                 JobPolicy, set by an operator
    <prefix>/jobs/<job>/history                                JobHistory, of its failures
    <prefix>/jobs/<job>/recovery                               JobRecovery, with its story
    <prefix>/jobs/<job>/attempts/<attempt>                     AttemptRecord
    <prefix>/jobs/<job>/attempts/<attempt>/workers/<worker>    WorkerRecord
    <prefix>/jobs/<job>/snapshots/<snapshot>                   Snapshot, `workers` left out
    <prefix>/jobs/<job>/restores/<restore>                     RestoreRecord
    <prefix>/jobs/<job>/timelines/<attempt or restore>         Timeline, put once it has ended

A snapshot's value holds no workers, whatever the size of the world: a request to etcd holds
1.5 MiB, and thousands of workers do not fit. A snapshot has the id of its attempt, and its workers
are those of the attempt: written before the commit, named by the snapshot's digest, joined by
whoever reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.errors import BadRequest


class Kind(StrEnum):
    """What a key holds."""

    NODE = "node"
    DRAIN = "drain"
    JOB = "job"
    LATEST = "latest"
    POLICY = "policy"
    HISTORY = "history"
    RECOVERY = "recovery"
    ATTEMPT = "attempt"
    WORKER = "worker"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    TIMELINE = "timeline"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Place:
    """A key taken apart."""

    kind: Kind
    job: str = ""
    identity: str = ""  # node, attempt, snapshot or restore; of a timeline either of the last two
    worker: str = ""


_KINDS = {
    "attempts": Kind.ATTEMPT,
    "snapshots": Kind.SNAPSHOT,
    "restores": Kind.RESTORE,
    "timelines": Kind.TIMELINE,
}


class Keys:
    """Makes the keys below one prefix and takes them apart again."""

    def __init__(self, prefix: str = "/allstop") -> None:
        """Several installations can share one etcd under different prefixes."""
        self.prefix = prefix.rstrip("/")
        self.leaders = f"{self.prefix}/leader/"
        self.nodes = f"{self.prefix}/nodes/"
        self.drains = f"{self.prefix}/drains/"
        self.jobs = f"{self.prefix}/jobs/"

    def leader(self, lease: int) -> str:
        return f"{self.leaders}{lease:x}"

    def node(self, node: str) -> str:
        return self.nodes + _name("node", node)

    def drain(self, node: str) -> str:
        return self.drains + _name("node", node)

    def job(self, job: str) -> str:
        return self.jobs + _name("job", job)

    def latest(self, job: str) -> str:
        return f"{self.job(job)}/latest"

    def policy(self, job: str) -> str:
        return f"{self.job(job)}/policy"

    def history(self, job: str) -> str:
        return f"{self.job(job)}/history"

    def recovery(self, job: str) -> str:
        return f"{self.job(job)}/recovery"

    def attempt(self, job: str, attempt: str) -> str:
        return f"{self.job(job)}/attempts/{_name('attempt', attempt)}"

    def workers(self, job: str, attempt: str) -> str:
        return f"{self.attempt(job, attempt)}/workers/"

    def worker(self, job: str, attempt: str, worker: int) -> str:
        return f"{self.workers(job, attempt)}{worker}"

    def snapshots(self, job: str) -> str:
        return f"{self.job(job)}/snapshots/"

    def snapshot(self, job: str, snapshot: str) -> str:
        return self.snapshots(job) + _name("snapshot", snapshot)

    def restore(self, job: str, restore: str) -> str:
        return f"{self.job(job)}/restores/{_name('restore', restore)}"

    def timeline(self, job: str, action: str) -> str:
        return f"{self.job(job)}/timelines/{_name('attempt or restore', action)}"

    def place(self, key: str) -> Place:
        """Say what a key is; what allstop did not put there is FOREIGN."""
        if key.startswith(self.nodes):
            return Place(Kind.NODE, identity=key.removeprefix(self.nodes))
        if key.startswith(self.drains):
            return Place(Kind.DRAIN, identity=key.removeprefix(self.drains))
        parts = key.removeprefix(self.jobs).split("/")
        if not key.startswith(self.jobs) or not all(parts):
            return Place(Kind.FOREIGN)
        match parts:
            case [job]:
                return Place(Kind.JOB, job)
            case [job, "latest" | "policy" | "history" | "recovery" as leaf]:
                return Place(Kind(leaf), job)
            case [job, shelf, identity] if shelf in _KINDS:
                return Place(_KINDS[shelf], job, identity)
            case [job, "attempts", attempt, "workers", worker]:
                return Place(Kind.WORKER, job, attempt, worker)
            case [job, *_]:
                return Place(Kind.FOREIGN, job)
        return Place(Kind.FOREIGN)


def _name(what: str, name: str) -> str:
    if not name or "/" in name or "\0" in name:
        raise BadRequest(
            f"{name!r} cannot be the name of a {what}", advice="use letters, digits, '-', '_', '.'"
        )
    return name
