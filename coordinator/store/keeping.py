"""How snapshots are kept: pinned, found damaged, marked for deletion, forgotten; in `Records`.

A snapshot's own value says how it is kept, so each change of that is one compare of its revision.
Marking is for good. A restore is admitted by a transaction that compares the snapshot and writes
the job; marking compares the job and writes the snapshot: of the two at once one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from coordinator.codec import encode
from coordinator.core.errors import Busy, NotFound, Refused, StoreError, Where
from coordinator.core.kept import KeptImages, Retention
from coordinator.core.model import AttemptRecord, JobRecord, RestoreRecord, Snapshot, WorkerRecord
from coordinator.store.kv import Delete, Item, Put, Range
from coordinator.store.port import ENDED_ATTEMPT, ENDED_RESTORE, Weighed
from coordinator.store.reading import POINTS_PER_READ
from coordinator.store.writing import ROUNDS_MAX, Conflict, Writer, mod, restless

DELETES_AT_ONCE = 100  # of the 128 operations that etcd allows in one transaction


class Keeping(Writer):
    """The part of the store that knows how snapshots are kept; see `port.Store`."""

    async def set_retention(self, job: str, retention: Retention | None) -> None:
        """Record which snapshots of a job stay."""
        key, where = self.keys.job(job), Where(job=job)
        async with self._lock(job):
            for _ in range(ROUNDS_MAX):
                found = (await self.kv.read(Range(key))).found[0]
                stored = self._first(JobRecord, found)
                if stored is None:
                    raise NotFound(
                        f"there is no job {job} in the store",
                        where=where,
                        advice="a job is there from its first run or checkpoint on",
                    )
                put = Put(key, encode(replace(stored, retention=retention)))
                try:
                    await self._write([mod(key, found)], [put])
                    return
                except Conflict:
                    continue
            raise restless(key, where)

    async def set_pin(self, job: str, snapshot: str, why: str, unix_s: float) -> Snapshot:
        """Pin a snapshot, or take the pin away."""
        pinned_unix_s = unix_s if why else 0.0
        return await self._change(
            job, snapshot, lambda s: replace(s, pinned=why, pinned_unix_s=pinned_unix_s)
        )

    async def set_verified(self, job: str, snapshot: str, damaged: str, unix_s: float) -> Snapshot:
        """Record what was found when all of a snapshot was read again."""
        return await self._change(
            job, snapshot, lambda s: replace(s, damaged=damaged, verified_unix_s=unix_s)
        )

    async def _change(
        self, job: str, snapshot: str, changed: Callable[[Snapshot], Snapshot]
    ) -> Snapshot:
        key, where = self.keys.snapshot(job, snapshot), Where(job=job)
        async with self._lock(job):
            for _ in range(ROUNDS_MAX):
                found = (await self.kv.read(Range(key))).found[0]
                before = self._first(Snapshot, found)
                if before is None:
                    raise NotFound(f"there is no snapshot {snapshot}", where=where)
                if before.deleting:
                    raise Refused(f"snapshot {snapshot} is being deleted", where=where)
                after = changed(before)
                try:
                    await self._write([mod(key, found)], [Put(key, encode(after))])
                    return after
                except Conflict:
                    continue
            raise restless(key, where)

    async def mark_deleting(
        self, job: str, snapshot: str, why: str, *, latest_too: bool, users: Sequence[str] = ()
    ) -> None:
        """Record that a snapshot is being deleted; for good."""
        keys, where = self.keys, Where(job=job)
        key, latest, of_job = keys.snapshot(job, snapshot), keys.latest(job), keys.job(job)
        async with self._lock(job):
            await self._require_over(job, snapshot, users)
            for _ in range(ROUNDS_MAX):
                view = await self.kv.read(Range(key), Range(latest), Range(of_job, keys_only=True))
                before = self._first(Snapshot, view.found[0])
                if before is None:
                    raise NotFound(f"there is no snapshot {snapshot}", where=where)
                if before.deleting:
                    return
                is_latest = any(item.value == snapshot.encode() for item in view.found[1])
                if before.pinned:
                    raise Refused(f"snapshot {snapshot} is pinned: {before.pinned}", where=where)
                if is_latest and not latest_too:
                    raise Refused(f"snapshot {snapshot} is the newest", where=where)
                ops: list[Put | Delete] = [Put(key, encode(replace(before, deleting=why)))]
                ops += [Delete(latest)] if is_latest else []
                compared = zip((key, latest, of_job), view.found, strict=True)
                try:
                    await self._write([mod(*each) for each in compared], ops)
                    return
                except Conflict:
                    continue
            raise restless(key, where)

    async def _require_over(self, job: str, snapshot: str, users: Sequence[str]) -> None:
        """Raise Busy for a user that has not ended here: what has ended stays so."""
        attempts = [self.keys.attempt(job, each) for each in users]
        restores = [self.keys.restore(job, each) for each in users]
        begun: list[tuple[str, str]] = []  # what is used, by which key
        for item in await self._points(attempts, 0):
            attempt = self.record_of(AttemptRecord, item)
            begun += [(attempt.base, item.key)] if attempt.state not in ENDED_ATTEMPT else []
        for item in await self._points(restores, 0):
            restore = self.record_of(RestoreRecord, item)
            begun += [(restore.snapshot, item.key)] if restore.state not in ENDED_RESTORE else []
        for used, key in begun:
            if used == snapshot:
                raise Busy(
                    f"that {key} is over is not in the store yet, and it uses {snapshot}",
                    where=Where(job=job),
                    advice="try again in a moment",
                )

    async def weigh(self, job: str, attempts: Sequence[str], deleting: Sequence[str]) -> Weighed:
        """Judge attempts by what is recorded, at one revision."""
        revision = (await self.kv.read(Range(self.keys.job(job), keys_only=True))).revision
        items = await self._all(self.keys.snapshots(job), revision)
        snapshots = {each.snapshot: each for each in (self.record_of(Snapshot, i) for i in items)}
        records = await self._attempts(job, [a for a in attempts if a not in snapshots], revision)
        dead = [each for each in deleting if each in snapshots and snapshots[each].deleting]
        dead += [name for name, record in records.items() if record.state in ENDED_ATTEMPT]
        unknown = [a for a in attempts if a not in snapshots and a not in records]
        keep: list[KeptImages] = []
        for each in snapshots.values():
            if not each.deleting:
                whole = await self.join(each, revision)
                keep += [KeptImages(w.manifest, w.manifest_digest) for w in whole.workers]
        return Weighed(tuple(sorted(dead)), tuple(sorted(unknown)), tuple(keep))

    async def _attempts(
        self, job: str, names: Sequence[str], revision: int
    ) -> dict[str, AttemptRecord]:
        """The records of these attempts, where there are any."""
        keys = [self.keys.attempt(job, name) for name in names if "/" not in name]
        items: list[Item] = []
        for start in range(0, len(keys), POINTS_PER_READ):
            some = keys[start : start + POINTS_PER_READ]
            view = await self.kv.read(*(Range(key, revision=revision) for key in some))
            items += [item for found in view.found for item in found]
        found = (self.record_of(AttemptRecord, item) for item in items)
        return {record.attempt: record for record in found}

    async def forget_snapshot(self, job: str, snapshot: str) -> None:
        """Remove a marked snapshot's workers, then its own record."""
        key, where = self.keys.snapshot(job, snapshot), Where(job=job)
        async with self._lock(job):
            found = (await self.kv.read(Range(key))).found[0]
            before = self._first(Snapshot, found)
            if before is None:
                return
            if not before.deleting:
                raise StoreError(f"snapshot {snapshot} is not marked for deletion", where=where)
            workers = await self._all(self.keys.workers(job, snapshot))
            for some in _at_most(DELETES_AT_ONCE, [each.key for each in workers]):
                await self._write([mod(key, found)], [Delete(each) for each in some])
            await self._write([mod(key, found)], [Delete(key)])

    async def with_stores(self, snapshots: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
        """Fill in `stores` of snapshots that an older version has recorded without them."""
        whole: list[Snapshot] = []
        for each in snapshots:
            if each.stores:
                whole.append(each)
                continue
            stores: set[str] = set()
            for item in await self._all(self.keys.workers(each.job, each.snapshot)):
                with suppress(StoreError):  # what cannot be read is told where it is needed
                    stores.add(self.record_of(WorkerRecord, item).store)
            whole.append(replace(each, stores=tuple(sorted(stores - {""}))))
        return tuple(whole)


def _at_most(count: int, keys: list[str]) -> Iterable[list[str]]:
    return (keys[start : start + count] for start in range(0, len(keys), count))
