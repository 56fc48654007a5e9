"""Records to write in contract tests, and a key space with as many leaders as a test wants."""

from itertools import count

from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    JobRecord,
    NodeFacts,
    Plan,
    RankState,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.snapshot import digest_of
from coordinator.store.election import Election, Leadership
from coordinator.store.kv import KeyValue
from coordinator.store.port import Store
from coordinator.store.records import Records

WAIT_S = 10.0
JOB = JobRecord("llm", 2, 2, 1)
numbers = count()


def worker(number: int, job: str = "llm", digest: str = "d0") -> WorkerRecord:
    """A worker with one rank of its number."""
    return WorkerRecord(
        job, number, f"node-{number}", f"10.0.0.{number % 250}", 1000, 1009,
        (RankState(number, 0, 1001, 152, True),), 1 << 30, 1 << 29, f"manifests/{number}", digest,
        (), (), "x86_64", ("avx2",), "6.1.0", "4.2.1", "store-1", 2060, 1900,
        ("torchrun", "train.py"),
    )  # fmt: skip


def attempt(
    name: str, state: AttemptState, job: str = "llm", incarnation: int = 1
) -> AttemptRecord:
    return AttemptRecord(
        name, job, state, 7, incarnation, Cut.STEP, False, 152, 60.0, 1.5, "because"
    )


def snapshot(name: str, workers: int = 2, job: str = "llm", incarnation: int = 1) -> Snapshot:
    members = tuple(worker(number, job) for number in range(workers))
    return Snapshot(
        name, job, 7, incarnation, workers, 152, Cut.STEP, members, 9, digest_of(members), 2.5
    )


def restore(name: str, of: str, incarnation: int = 2, job: str = "llm") -> RestoreRecord:
    plan = Plan(job, of, (), ())
    state = RestoreState.ADMITTING
    return RestoreRecord(name, job, of, state, 7, incarnation, plan, 60.0, 1.5, "because")


def node(name: str) -> NodeFacts:
    return NodeFacts(name, "10.0.0.1", "x86_64", "6.1", "cpu", (), "4.2", 8, 4, 2, "s", "0.1", "b")


class Bench:
    """One key space, and as many leaders and stores over it as a test wants."""

    def __init__(self, kv: KeyValue, prefix: str) -> None:
        self.kv = kv
        self.prefix = prefix
        self.rights: list[Leadership] = []

    async def lead(self, name: str = "one", ttl_s: float = 30.0) -> Leadership:
        election = Election(self.kv, name, prefix=self.prefix, ttl_s=ttl_s)
        self.rights.append(await election.campaign(WAIT_S))
        return self.rights[-1]

    async def store(self, right: Leadership | None = None) -> Records:
        return Records(self.kv, right or await self.lead(), self.prefix)


async def begun(store: Store, name: str, job: str = "llm", incarnation: int = 1) -> None:
    await store.put_attempt(attempt(name, AttemptState.ADMITTING, job, incarnation))


async def commit(store: Store, name: str, workers: int = 2, incarnation: int = 1) -> bool:
    return await store.commit(
        snapshot(name, workers, incarnation=incarnation),
        attempt(name, AttemptState.COMMITTED, incarnation=incarnation),
    )


async def committed(store: Store, name: str) -> None:
    await begun(store, name)
    await commit(store, name)


async def latest(store: Store, job: str = "llm") -> str:
    return next(each.latest for each in (await store.load()).jobs if each.job == job)
