"""Records and histories that are made up, for the tests of checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.codec import encode
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    Plan,
    RankState,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.snapshot import digest_of
from coordinator.store.keys import Keys
from coordinator.store.kv import Event, Item

KEYS = Keys()
JOB, FIRST, SECOND, RESTORE = "digits", "one", "two", "back"
RANKS = (0, 1)
MS = 1_000_000
NODES = ("n0", "n1")


def attempt(name: str, state: AttemptState, epoch: int) -> AttemptRecord:
    return AttemptRecord(
        attempt=name, job=JOB, state=state, epoch=epoch, incarnation=1, cut=Cut.STEP, stop=False,
        target=0, deadline_s=60.0, requested_unix_s=0.0, reason="it is so",
    )  # fmt: skip


def worker(name: str, number: int, step: int) -> WorkerRecord:
    return WorkerRecord(
        job=JOB, worker=number, node=NODES[number], address="", root_pid=1, highest_pid=1,
        ranks=(RankState(number, 0, 1, step),), image_bytes=1, memory_bytes=1,
        manifest=f"{JOB}/{name}/{number}", manifest_digest=f"{name}{number}", connections=(),
        programs=(), architecture="", cpu_flags=(), kernel="", criu_version="", store="",
        held_ms=0, dump_ms=0,
    )  # fmt: skip


def snapshot(name: str, step: int, epoch: int) -> Snapshot:
    workers = [worker(name, rank, step) for rank in RANKS]
    return Snapshot(
        snapshot=name, job=JOB, epoch=epoch, incarnation=1, world_size=2, step=step,
        cut=Cut.STEP, workers=(), image_bytes=2, digest=digest_of(workers), committed_unix_s=0.0,
    )  # fmt: skip


def restore(state: RestoreState, epoch: int) -> RestoreRecord:
    return RestoreRecord(
        restore=RESTORE, job=JOB, snapshot=FIRST, state=state, epoch=epoch, incarnation=2,
        plan=Plan(JOB, FIRST, (), ()), deadline_s=60.0, requested_unix_s=0.0, reason="it is so",
    )  # fmt: skip


class Etcd:
    """Puts and deletes, one revision each transaction, beginning at 2 as etcd does."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.revision = 1
        self.created: dict[str, int] = {}

    def put(self, *pairs: tuple[str, bytes]) -> int:
        self.revision += 1
        for key, value in pairs:
            created = self.created.setdefault(key, self.revision)
            item = Item(key, value, created, self.revision)
            self.events.append(Event(self.revision, key, item))
        return self.revision

    def delete(self, key: str) -> None:
        self.revision += 1
        self.created.pop(key)
        self.events.append(Event(self.revision, key, None))

    def attempt(self, name: str, state: AttemptState, epoch: int, **more: Any) -> None:
        record = replace(attempt(name, state, epoch), **more)
        self.put((KEYS.attempt(JOB, name), encode(record)))

    def commit(self, name: str, step: int, epoch: int) -> None:
        for rank in RANKS:
            self.put((KEYS.worker(JOB, name, rank), encode(worker(name, rank, step))))
        self.put(
            (KEYS.snapshot(JOB, name), encode(snapshot(name, step, epoch))),
            (KEYS.latest(JOB), name.encode()),
            (KEYS.attempt(JOB, name), encode(attempt(name, AttemptState.COMMITTED, epoch))),
        )
