"""The store's rules, written once over any `KeyValue`: commit, admission, what never goes back.

Jobs are read, decided on and compared in one go; attempts and restores build on the revision that
this store last saw (`writing`). One job's writes go one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.codec import encode
from coordinator.core.errors import BugError, NotFound, Overtaken, StoreError, Where
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    JobRecord,
    NodeFacts,
    RestoreRecord,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.snapshot import check_whole, digest_of
from coordinator.core.timelines import Timeline
from coordinator.store.fence import Fence
from coordinator.store.keys import Kind
from coordinator.store.kv import Compare, Delete, KeyValue, Put, Range, View
from coordinator.store.port import ENDED_ATTEMPT, Loaded
from coordinator.store.reading import Listing
from coordinator.store.standing import Standing
from coordinator.store.writing import ROUNDS_MAX, Conflict, mod, restless

BATCH_OPS = 100  # of the 128 that etcd allows in one transaction
BATCHES_AT_ONCE = 4
BATCH_BYTES = 1_000_000  # of the 1.5 MiB that etcd allows in one request

_UNDONE = (AttemptState.ABORTING, AttemptState.ABORTED)


class Records(Standing):
    """The whole store; see `port.Store` for what each method promises."""

    def __init__(self, kv: KeyValue, fence: Fence | None = None, prefix: str = "/allstop") -> None:
        """Write under `fence`; without one everything can be read and every write is Fenced."""
        super().__init__(kv, fence, prefix)
        self._stored: dict[str, dict[str, bytes]] = {}  # attempt key -> worker key -> value
        self._latest: dict[str, str] = {}  # by job, as last seen; only saves a read

    async def close(self) -> None:
        """Close the key-value client; resign first."""
        await self.kv.close()

    async def load(self) -> Loaded:
        """Read all jobs and unfinished work, and build on what was seen."""
        listing = await self._listing()
        loaded = self._loaded(listing)
        self._remember(listing, loaded)
        newest = {(job.job, job.latest) for job in loaded.jobs}
        return replace(
            loaded,
            latest_unix_s={
                each.job: each.committed_unix_s
                for each in loaded.snapshots
                if (each.job, each.snapshot) in newest
            },
            snapshots=await self.with_stores(loaded.snapshots),
        )

    async def put_job(self, record: JobRecord) -> None:
        """Create or change a job; `latest` and `retention` stay, `incarnation` never gets lower."""
        key, where = self.keys.job(record.job), Where(job=record.job)
        async with self._lock(record.job):
            for _ in range(ROUNDS_MAX):
                found = (await self.kv.read(Range(key))).found[0]
                stored = self._first(JobRecord, found)
                if stored is not None and stored.incarnation > record.incarnation:
                    raise StoreError(
                        f"job {record.job} is at incarnation {stored.incarnation} already, "
                        f"not to go back to {record.incarnation}",
                        where=where,
                    )
                kept = stored.retention if stored is not None else None
                value = encode(replace(record, latest="", retention=kept))
                try:
                    await self._write([mod(key, found)], [Put(key, value)])
                    return
                except Conflict:
                    continue
            raise restless(key, where)

    async def begin_run(self, record: JobRecord, old_incarnation: int) -> JobRecord:
        """Record a new run under an incarnation above all earlier ones."""
        key, where = self.keys.job(record.job), Where(job=record.job)
        async with self._lock(record.job):
            for _ in range(ROUNDS_MAX):
                found = (await self.kv.read(Range(key))).found[0]
                stored = self._first(JobRecord, found)
                highest = max(old_incarnation, stored.incarnation if stored is not None else 0)
                kept = stored.retention if stored is not None else None
                begun = replace(record, incarnation=highest + 1, latest="", retention=kept)
                try:
                    await self._write([mod(key, found)], [Put(key, encode(begun))])
                    return begun
                except Conflict:
                    continue
            raise restless(key, where)

    async def put_attempt(self, record: AttemptRecord) -> None:
        """Write an attempt's record; a committed attempt is never undone."""
        key = self.keys.attempt(record.job, record.attempt)
        committed = self.keys.snapshot(record.job, record.attempt)
        guard = [Compare(committed, "create", 0)] if record.state in _UNDONE else []
        async with self._lock(record.job):
            await self._put_own(key, encode(record), guard, Where(job=record.job))
            if record.state in ENDED_ATTEMPT:
                self._stored.pop(key, None)

    async def put_restore(self, record: RestoreRecord) -> None:
        """Write a later state of a restore."""
        key, where = self.keys.restore(record.job, record.restore), Where(job=record.job)
        async with self._lock(record.job):
            if not self._seen.get(key):
                found = (await self.kv.read(Range(key))).found[0]
                if not found:
                    raise StoreError(f"restore {record.restore} was not admitted", where=where)
                self._adopt(found)
            await self._put_own(key, encode(record), [], where)

    async def put_workers(self, job: str, attempt: str, records: Sequence[WorkerRecord]) -> None:
        """Write worker records of an attempt in batches; those already written are left out."""
        async with self._lock(job):
            await self._put_workers(job, attempt, records)

    async def commit(self, snapshot: Snapshot, record: AttemptRecord) -> bool:
        """The one transaction that makes a snapshot; see `port.Store.commit`."""
        _check_commit(snapshot, record)
        async with self._lock(snapshot.job):
            view = await self._commit_view(snapshot)
            if self._committed_before(snapshot, view):
                return _names_latest(view) == snapshot.snapshot
            try:
                await self._put_workers(snapshot.job, snapshot.snapshot, snapshot.workers)
            except StoreError as error:
                error.definite = True  # of the commit: it was not sent
                raise
            return await self._commit(snapshot, record, view)

    async def find_commit(self, job: str, attempt: str) -> Snapshot | None:
        """Settle a commit whose answer was lost; None only once it cannot happen any more."""
        committed, key = self.keys.snapshot(job, attempt), self.keys.attempt(job, attempt)
        async with self._lock(job):
            for _ in range(ROUNDS_MAX):
                view = await self.kv.read(Range(committed), Range(key))
                snapshot = self._first(Snapshot, view.found[0])
                if snapshot is not None:
                    self._adopt(view.found[1])
                    return await self.join(snapshot, view.revision)
                if not view.found[1]:
                    return None  # a commit compares the attempt's revision, and there is none
                item = view.found[1][0]
                try:
                    # The same value at a new revision: a commit still under way compares in vain.
                    await self._write([mod(key, (item,))], [Put(key, item.value)], own=(key,))
                    return None
                except Conflict:
                    continue
            raise restless(key, Where(job=job))

    async def admit_restore(self, record: RestoreRecord, old_incarnation: int) -> None:
        """Write the restore's record and raise the job's incarnation in one transaction."""
        job, where = record.job, Where(job=record.job, phase="ADMIT")
        key, restore = self.keys.job(job), self.keys.restore(job, record.restore)
        snapshot = self.keys.snapshot(job, record.snapshot)
        async with self._lock(job):
            for _ in range(ROUNDS_MAX):
                view = await self.kv.read(Range(key), Range(snapshot), Range(restore))
                raised = self._raised(record, old_incarnation, view, where)
                if raised is None:
                    return
                conditions = [
                    mod(key, view.found[0]),
                    mod(snapshot, view.found[1]),
                    Compare(restore, "create", 0),
                ]
                ops = [Put(key, encode(raised)), Put(restore, encode(record))]
                try:
                    await self._write(conditions, ops, own=(restore,))
                    return
                except Conflict:
                    continue
            raise restless(key, where)

    async def put_timeline(self, timeline: Timeline) -> None:
        """Keep a timeline; advice, so only the epoch is compared."""
        key = self.keys.timeline(timeline.job, timeline.action)
        await self._write([], [Put(key, encode(timeline))])

    async def put_nodes(self, facts: Sequence[NodeFacts], gone: Sequence[str] = ()) -> None:
        """Publish nodes under the leader's lease; advice, so only the epoch is compared."""
        lease = self.fence.lease
        puts = [Put(self.keys.node(each.node), encode(each), lease) for each in facts]
        for batch in _batches([*puts, *(Delete(self.keys.node(node)) for node in gone)]):
            await self._write([], batch)

    # -- inside ----------------------------------------------------------------------------------

    def _raised(
        self, record: RestoreRecord, old_incarnation: int, view: View, where: Where
    ) -> JobRecord | None:
        """The job's record as the restore leaves it; None when this very restore is in already."""
        stored = self._first(JobRecord, view.found[0])
        if stored is None:
            raise NotFound(f"there is no job {record.job} in the store", where=where)
        snapshot = self._first(Snapshot, view.found[1])
        if snapshot is None:
            raise NotFound(f"there is no snapshot {record.snapshot} in the store", where=where)
        if snapshot.deleting:
            raise Overtaken(f"snapshot {record.snapshot} is being deleted", where=where)
        if view.found[2] and view.found[2][0].value == encode(record):
            self._adopt(view.found[2])
            return None
        if view.found[2]:
            raise Overtaken(f"restore {record.restore} is in the store already", where=where)
        if not stored.incarnation == old_incarnation < record.incarnation:
            raise Overtaken(
                f"restore {record.restore} is to take job {record.job} from incarnation "
                f"{old_incarnation} to {record.incarnation}, but it is at {stored.incarnation}",
                where=where,
                advice="another restore was first; look at the job and plan again",
            )
        return replace(stored, incarnation=record.incarnation)

    async def _put_workers(self, job: str, attempt: str, records: Sequence[WorkerRecord]) -> None:
        key, where = self.keys.attempt(job, attempt), Where(job=job)
        if not self._seen.get(key):
            raise BugError(f"attempt {attempt} was not stored before its workers", where=where)
        stored = self._stored.setdefault(key, {})
        puts = (
            Put(self.keys.worker(job, attempt, each.worker), encode(each)) for each in records
        )  # made one batch after another, while etcd writes the ones before
        writing: set[asyncio.Task[None]] = set()
        try:
            for batch in _batches(put for put in puts if stored.get(put.key) != put.value):
                writing.add(asyncio.create_task(self._put_batch(key, batch, stored, where)))
                await asyncio.sleep(0)  # it is sent, and whoever else waits for the loop has it
                if len(writing) == BATCHES_AT_ONCE:
                    done, writing = await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            for task in tuple(writing):
                await task
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _put_batch(
        self, key: str, batch: list[Put | Delete], stored: dict[str, bytes], where: Where
    ) -> None:
        for _ in range(ROUNDS_MAX):
            try:
                await self._write([Compare(key, "mod", self._seen[key])], batch)
                break
            except Conflict as conflict:
                self._adopt_own(key, conflict, where)
        else:
            raise restless(key, where)
        stored.update((op.key, op.value) for op in batch if isinstance(op, Put))

    async def _commit_view(self, snapshot: Snapshot) -> View:
        """All that a commit depends on, in one read: snapshot, job, latest, and two attempts.

        The second is the one that `latest` named when it was last looked at here.
        """
        keys, job = self.keys, snapshot.job
        for _ in range(ROUNDS_MAX):
            known = self._latest.get(job, snapshot.snapshot)
            view = await self.kv.read(
                Range(keys.snapshot(job, snapshot.snapshot)),
                Range(keys.job(job)),
                Range(keys.latest(job)),
                Range(keys.attempt(job, snapshot.snapshot), keys_only=True),
                Range(keys.attempt(job, known), keys_only=True),
            )
            named = _names_latest(view)
            if named in ("", known):
                return view
            self._latest[job] = named
        raise restless(keys.latest(job), Where(job=job, phase="COMMIT"))

    def _committed_before(self, snapshot: Snapshot, view: View) -> bool:
        before = self._first(Snapshot, view.found[0])
        if before is None:
            return False
        if before.digest != snapshot.digest:
            raise StoreError(
                f"snapshot {snapshot.snapshot} is in the store with the digest {before.digest}, "
                f"not {snapshot.digest}",
                where=Where(job=snapshot.job, phase="COMMIT"),
            )
        return True

    async def _commit(self, snapshot: Snapshot, record: AttemptRecord, view: View) -> bool:
        job, where = snapshot.job, Where(job=snapshot.job, phase="COMMIT")
        key = self.keys.attempt(job, snapshot.snapshot)
        shown = self.keys.snapshot(job, snapshot.snapshot)
        for _ in range(ROUNDS_MAX):
            conditions = [
                Compare(key, "mod", self._seen[key]),
                Compare(shown, "create", 0),
                mod(self.keys.job(job), view.found[1]),
                mod(self.keys.latest(job), view.found[2]),
            ]
            ops = [
                Put(shown, encode(replace(snapshot, workers=()))),
                Put(key, encode(record)),
                *self._put_job_of(snapshot, view, where),
            ]
            newer = _is_newer(view)
            if newer:
                ops.append(Put(self.keys.latest(job), snapshot.snapshot.encode()))
            try:
                await self._write(conditions, ops)
            except Conflict as conflict:
                if key in conflict.keys:
                    self._adopt_own(key, conflict, where)
                view = await self._commit_view(snapshot)
                continue
            if newer:
                self._latest[job] = snapshot.snapshot
            if record.state in ENDED_ATTEMPT:
                self._stored.pop(key, None)
            return newer
        raise restless(key, where)

    def _put_job_of(self, snapshot: Snapshot, view: View, where: Where) -> list[Put]:
        """The job's record where nobody wrote one yet; a job at another incarnation refuses."""
        stored = self._first(JobRecord, view.found[1])
        if stored is not None and stored.incarnation != snapshot.incarnation:
            raise Overtaken(
                f"snapshot {snapshot.snapshot} is of incarnation {snapshot.incarnation}, but the "
                f"job is at {stored.incarnation}: it was restored meanwhile",
                where=where,
            )
        if stored is not None:
            return []
        made = JobRecord(
            snapshot.job, len(snapshot.workers), snapshot.world_size, snapshot.incarnation
        )
        return [Put(self.keys.job(snapshot.job), encode(made))]

    def _remember(self, listing: Listing, loaded: Loaded) -> None:
        unfinished = {each.attempt for each in loaded.attempts}
        unfinished |= {each.restore for each in loaded.restores}
        for place, item in listing.items:
            if place.kind in (Kind.ATTEMPT, Kind.RESTORE) and place.identity in unfinished:
                self._adopt((item,))


def _names_latest(view: View) -> str:
    """The snapshot that `latest` names in the view of a commit; empty: none."""
    return view.found[2][0].value.decode(errors="replace") if view.found[2] else ""


def _is_newer(view: View) -> bool:
    """Whether this attempt began after the one that `latest` names, by etcd's own count."""
    latest, own, other = view.found[2:]
    if not latest or not other or not own:
        return True
    return own[0].create_revision > other[0].create_revision


def _check_commit(snapshot: Snapshot, record: AttemptRecord) -> None:
    """Hold what is to be committed against invariant 1 once more, on this side of the door."""
    where = Where(job=snapshot.job, phase="COMMIT")
    if record.state not in (AttemptState.COMMITTED, AttemptState.STOPPING):
        raise BugError(f"a commit with the attempt {record.state}", where=where)
    if (snapshot.snapshot, snapshot.job) != (record.attempt, record.job):
        raise BugError(
            f"snapshot {snapshot.snapshot} is not of attempt {record.attempt}", where=where
        )
    if not snapshot.workers or snapshot.digest != digest_of(snapshot.workers):
        raise BugError(
            f"the digest of snapshot {snapshot.snapshot} is not that of its "
            f"{len(snapshot.workers)} workers",
            where=where,
        )
    check_whole(snapshot, len(snapshot.workers))


def _batches(ops: Iterable[Put | Delete]) -> Iterable[list[Put | Delete]]:
    batch: list[Put | Delete] = []
    size_bytes = 0
    for put in ops:
        own_bytes = len(put.key) + (len(put.value) if isinstance(put, Put) else 0)
        if own_bytes > BATCH_BYTES:
            raise StoreError(
                f"{put.key} would be {own_bytes} bytes; the store takes {BATCH_BYTES}",
                advice="a worker with so many connections or program files is not supported",
            )
        if batch and (len(batch) == BATCH_OPS or size_bytes + own_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(put)
        size_bytes += own_bytes
    if batch:
        yield batch
