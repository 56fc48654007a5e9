"""What can be read from the store; open to leaders, replicas and tools alike."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coordinator.codec import decode
from coordinator.core.drain_records import DrainRecord
from coordinator.core.errors import NotFound, StoreError, Where
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    JobRecord,
    NodeFacts,
    RestoreRecord,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.pace import RECENT
from coordinator.core.snapshot import digest_of
from coordinator.core.timelines import Timeline
from coordinator.store.keys import Keys, Kind, Place
from coordinator.store.kv import COMPACTED, Compacted, Event, Item, KeyValue, Range, below
from coordinator.store.port import ENDED_ATTEMPT, ENDED_RESTORE, Changed, Loaded, Shown

PAGE_KEYS = 200  # keys of one answer; values are a few KiB, and 128 ranges fit in one request
POINTS_PER_READ = 100
PAGES_MAX = 100_000
WORKERS_MAX = 100_000  # of one job; nothing loops over a number that somebody mistyped
RELOADS_MAX = 3  # a listing that the compaction overtook is begun anew

_CLASSES: dict[Kind, type[Any]] = {
    Kind.NODE: NodeFacts,
    Kind.DRAIN: DrainRecord,
    Kind.JOB: JobRecord,
    Kind.ATTEMPT: AttemptRecord,
    Kind.SNAPSHOT: Snapshot,
    Kind.RESTORE: RestoreRecord,
    Kind.WORKER: WorkerRecord,
    Kind.TIMELINE: Timeline,
    Kind.POLICY: JobPolicy,
    Kind.HISTORY: JobHistory,
    Kind.RECOVERY: JobRecovery,
}
OF_JOB = (Kind.POLICY, Kind.HISTORY, Kind.RECOVERY)  # what a leader does by itself
LISTED = (Kind.DRAIN, Kind.JOB, Kind.LATEST, Kind.ATTEMPT, Kind.RESTORE, Kind.SNAPSHOT, *OF_JOB)
UNWATCHED = (Kind.DRAIN, Kind.WORKER, Kind.TIMELINE, Kind.FOREIGN, *OF_JOB)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Listing:
    """All records but workers and timelines, as they stood at one revision."""

    revision: int
    items: tuple[tuple[Place, Item], ...]


class Reader:
    """The reading half of the store; see `port.Store` for what each method promises."""

    def __init__(self, kv: KeyValue, prefix: str = "/allstop") -> None:
        """Read below `prefix` of `kv`."""
        self.kv = kv
        self.keys = Keys(prefix)

    async def load(self) -> Loaded:
        """Read all jobs and all unfinished work at one revision."""
        return self._loaded(await self._listing())

    async def snapshots(self, job: str) -> tuple[Snapshot, ...]:
        """All snapshots of a job, oldest first, without workers; raises when none can be read."""
        found, damaged = await self.listed(job)
        if damaged and not found:
            raise damaged[0]
        return found

    async def listed(self, job: str) -> tuple[tuple[Snapshot, ...], tuple[StoreError, ...]]:
        """All snapshots of a job as `snapshots`, and what cannot be read among them."""
        items = await self._all(self.keys.snapshots(job))
        items.sort(key=lambda each: each.create_revision)
        found: list[Snapshot] = []
        damaged: list[StoreError] = []
        for item in items:
            try:
                found.append(self.record_of(Snapshot, item))
            except StoreError as error:
                damaged.append(error)
        return tuple(found), tuple(damaged)

    async def snapshot(self, snapshot: str, job: str = "") -> Snapshot:
        """One snapshot with its workers; NotFound when no job (or not this one) has it."""
        for name in [job] if job else await self.job_names():
            view = await self.kv.read(Range(self.keys.snapshot(name, snapshot)))
            if view.found[0]:
                return await self.join(self.record_of(Snapshot, view.found[0][0]), view.revision)
        raise NotFound(
            f"there is no snapshot {snapshot}",
            where=Where(job=job),
            advice="`allstop snapshots JOB` lists them; an attempt that was not committed is none",
        )

    async def show(self, identity: str, job: str = "") -> Shown:
        """Whatever has that id; NotFound when nothing has."""
        for name in [job] if job else await self.job_names():
            view = await self.kv.read(
                Range(self.keys.snapshot(name, identity)),
                Range(self.keys.attempt(name, identity)),
                Range(self.keys.restore(name, identity)),
                Range(self.keys.timeline(name, identity)),
            )
            if not any(view.found[:3]):
                continue
            snapshot = self._first(Snapshot, view.found[0])
            if snapshot is not None:
                snapshot = await self.join(snapshot, view.revision)
            return Shown(
                snapshot,
                self._first(AttemptRecord, view.found[1]),
                self._first(RestoreRecord, view.found[2]),
                self._timeline(view.found[3]),
            )
        raise NotFound(f"there is no snapshot, attempt or restore {identity}", where=Where(job=job))

    def _timeline(self, found: tuple[Item, ...]) -> Timeline | None:
        with suppress(StoreError):
            return self._first(Timeline, found)
        return None

    async def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes that the present leader has published."""
        return tuple(self.record_of(NodeFacts, each) for each in await self._all(self.keys.nodes))

    async def watch(self) -> AsyncGenerator[Loaded | Changed]:
        """First all there is, then each change; `Loaded` again after a compaction."""
        while True:
            listing = await self._listing()
            jobs = {place.job: item for place, item in listing.items if place.kind is Kind.JOB}
            latest = {
                place.job: item.value.decode(errors="replace")
                for place, item in listing.items
                if place.kind is Kind.LATEST
            }
            yield self._loaded(listing)
            follow = self.kv.watch(f"{self.keys.prefix}/", listing.revision + 1)
            async with aclosing(follow) as changes:
                async for event in changes:
                    if isinstance(event, Compacted):
                        break
                    changed = self._changed(event, jobs, latest)
                    if changed is not None:
                        yield changed

    # -- pieces, also used by the writing half -----------------------------------------------------

    def record_of(self, cls: type[_Value], item: Item) -> _Value:
        """Decode a value and hold it against the key it stands under."""
        record = decode(cls, item.value, item.key)
        place = self.keys.place(item.key)
        named = {"job": place.job, str(place.kind): place.identity, "worker": place.worker}
        if place.kind is Kind.DRAIN:
            named["node"] = place.identity
        for name, wanted in named.items():
            if wanted and hasattr(record, name) and str(getattr(record, name)) != wanted:
                raise StoreError(
                    f"the value of {item.key} in the store is of another {name}: "
                    f"{getattr(record, name)}",
                    advice="somebody copied or edited it; put it back or delete it",
                )
        nonsense = _nonsense(record)
        if nonsense:
            raise StoreError(
                f"the value of {item.key} in the store makes no sense: {nonsense}",
                advice="somebody edited it; put it back or delete it",
            )
        return record

    async def join(self, snapshot: Snapshot, revision: int) -> Snapshot:
        """Add the workers to a snapshot; StoreError unless they are those it was committed with."""
        prefix = self.keys.workers(snapshot.job, snapshot.snapshot)
        items = await self._all(prefix, revision)
        workers = sorted(
            (self.record_of(WorkerRecord, each) for each in items), key=lambda each: each.worker
        )
        if digest_of(workers) != snapshot.digest:
            raise StoreError(
                f"snapshot {snapshot.snapshot} is not whole in the store: the {len(workers)} "
                f"workers below {prefix} are not those that it was committed with",
                where=Where(job=snapshot.job),
                advice="worker records were changed or deleted by hand; use another snapshot",
            )
        return replace(snapshot, workers=tuple(workers))

    async def job_names(self) -> list[str]:
        """All jobs, by leaping over what lies below each."""
        names: list[str] = []
        cursor = self.keys.jobs
        for _ in range(PAGES_MAX):
            asked = Range(cursor, below(self.keys.jobs), limit=1, keys_only=True)
            found = (await self.kv.read(asked)).found[0]
            if not found:
                return names
            key = found[0].key
            job, *rest = key.removeprefix(self.keys.jobs).split("/")
            if job and "\0" not in job and job not in names:  # such a key is not ours
                names.append(job)
            cursor = below(f"{self.keys.jobs}{job}/") if rest else f"{key}\0"
        raise StoreError(f"more than {PAGES_MAX} jobs below {self.keys.jobs}")

    async def _all(self, prefix: str, revision: int = 0) -> list[Item]:
        """Every item below a prefix, page by page, all at one revision."""
        items: list[Item] = []
        cursor = prefix
        for _ in range(PAGES_MAX):
            view = await self.kv.read(
                Range(cursor, below(prefix), limit=PAGE_KEYS, revision=revision)
            )
            revision = revision or view.revision
            items += view.found[0]
            if len(view.found[0]) < PAGE_KEYS:
                return items
            cursor = f"{items[-1].key}\0"
        raise StoreError(f"more than {PAGES_MAX * PAGE_KEYS} keys below {prefix}")

    async def _listing(self) -> Listing:
        for left in reversed(range(RELOADS_MAX)):
            try:
                revision, places = await self._places()
                items = await self._points([key for key, _ in places], revision)
                items += await self._all(self.keys.drains, revision)
                known = dict(places) | {
                    each.key: place
                    for each in items
                    if (place := self.keys.place(each.key)).kind is Kind.DRAIN
                }
                return Listing(revision, tuple((known[each.key], each) for each in items))
            except StoreError as error:
                if COMPACTED not in error.details or not left:
                    raise
        raise StoreError("the listing was never finished")

    async def _places(self) -> tuple[int, list[tuple[str, Place]]]:
        """Keys of jobs, attempts, restores, snapshots; the workers of an attempt are leapt over."""
        wanted: list[tuple[str, Place]] = []
        cursor, revision = self.keys.jobs, 0
        for _ in range(PAGES_MAX):
            view = await self.kv.read(
                Range(cursor, below(self.keys.jobs), PAGE_KEYS, keys_only=True, revision=revision)
            )
            revision = revision or view.revision
            for item in view.found[0]:
                place = self.keys.place(item.key)
                if place.kind in LISTED:
                    wanted.append((item.key, place))
            if len(view.found[0]) < PAGE_KEYS:
                return revision, wanted
            last = view.found[0][-1].key
            place = self.keys.place(last)
            leap = place.kind is Kind.WORKER
            cursor = below(self.keys.workers(place.job, place.identity)) if leap else f"{last}\0"
        raise StoreError(f"more than {PAGES_MAX * PAGE_KEYS} keys below {self.keys.jobs}")

    async def _points(self, keys: list[str], revision: int) -> list[Item]:
        items: list[Item] = []
        for start in range(0, len(keys), POINTS_PER_READ):
            some = keys[start : start + POINTS_PER_READ]
            view = await self.kv.read(*(Range(key, revision=revision) for key in some))
            items += [item for found in view.found for item in found]
        return items

    def _loaded(self, listing: Listing) -> Loaded:
        damaged: list[StoreError] = []
        latest: dict[str, str] = {}
        records: dict[Kind, list[Any]] = {kind: [] for kind in LISTED}
        for place, item in sorted(listing.items, key=lambda each: each[1].create_revision):
            try:
                if place.kind is Kind.LATEST:
                    latest[place.job] = _text(item)
                else:
                    records[place.kind].append(self.record_of(_CLASSES[place.kind], item))
            except StoreError as error:
                damaged.append(error)
                error.at(job=place.job)
        return Loaded(
            listing.revision,
            tuple(replace(each, latest=latest.get(each.job, "")) for each in records[Kind.JOB]),
            tuple(
                each
                for each in records[Kind.ATTEMPT]
                if each.owed or each.state not in ENDED_ATTEMPT
            ),
            tuple(
                each
                for each in records[Kind.RESTORE]
                if each.owed or each.state not in ENDED_RESTORE
            ),
            tuple(damaged),
            recent=_recent(records[Kind.ATTEMPT]),
            replaced=_newest(records[Kind.RESTORE]),
            policies=tuple(records[Kind.POLICY]),
            histories=tuple(records[Kind.HISTORY]),
            recoveries=tuple(records[Kind.RECOVERY]),
            drains=tuple(records[Kind.DRAIN]),
            snapshots=tuple(records[Kind.SNAPSHOT]),
        )

    def _changed(
        self, event: Event, jobs: dict[str, Item], latest: dict[str, str]
    ) -> Changed | None:
        """A change as its reader wants it: a moved `latest` is a changed job."""
        place = self.keys.place(event.key)
        if place.kind in UNWATCHED:
            return None
        item = event.item
        try:
            if place.kind is Kind.LATEST:
                latest[place.job] = _text(item) if item else ""
                item = jobs.get(place.job)
            elif place.kind is Kind.JOB:
                jobs.pop(place.job, None)
                if item is not None:
                    jobs[place.job] = item
            if item is None:
                return Changed(event.revision, event.key, None)
            record = self.record_of(_CLASSES[self.keys.place(item.key).kind], item)
        except StoreError as error:
            return Changed(event.revision, event.key, None, error)
        if isinstance(record, JobRecord):
            record = replace(record, latest=latest.get(place.job, ""))
        return Changed(event.revision, event.key, record)

    def _first(self, cls: type[_Value], found: tuple[Item, ...]) -> _Value | None:
        return self.record_of(cls, found[0]) if found else None


def _recent(attempts: list[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """The last committed attempts of each job, oldest first: they tell how long one takes."""
    committed = [each for each in attempts if each.state is AttemptState.COMMITTED]
    committed.sort(key=lambda each: each.requested_unix_s)
    by_job: dict[str, deque[AttemptRecord]] = {}
    for each in committed:
        by_job.setdefault(each.job, deque(maxlen=RECENT)).append(each)
    return tuple(each for of_job in by_job.values() for each in of_job)


def _newest(restores: list[RestoreRecord]) -> tuple[RestoreRecord, ...]:
    """The last restore of each job, where it has ended and is owed nothing: the others are read."""
    by_job = {each.job: each for each in sorted(restores, key=lambda each: each.incarnation)}
    return tuple(e for e in by_job.values() if e.state in ENDED_RESTORE and not e.owed)


def _text(item: Item) -> str:
    try:
        text = item.value.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"the value of {item.key} in the store is not text: {error}") from error
    if not text or "/" in text or "\0" in text:
        raise StoreError(
            f"the value of {item.key} in the store is no snapshot's id: {text[:80]!r}",
            advice="delete it: the next checkpoint writes it anew",
        )
    return text


def _nonsense(record: object) -> str:
    """What in a record cannot be, whoever wrote it; empty when it can."""
    for name, value in vars(record).items():
        if isinstance(value, int | float) and not 0 <= value < float("inf"):
            return f"{name} is {value}"
    if isinstance(record, JobRecord) and record.workers > WORKERS_MAX:
        return f"workers is {record.workers}, above {WORKERS_MAX}"
    if isinstance(record, AttemptRecord) and any(w >= len(record.nodes) for w in record.owed):
        return f"owed names workers {record.owed} of {len(record.nodes)}"
    return ""
