"""`Verify`: nodes that see its store read all of a snapshot again; what is broken is named.

Nothing depends on it until the end: then the snapshot's record says what was found. A caller that
leaves, or another leader, ends it; it is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from allstop.v1 import operator_pb2, shim_pb2

from coordinator.api.desk import Desk
from coordinator.api.identity import cleaning_id
from coordinator.api.keeping import found
from coordinator.core import events
from coordinator.core.errors import Refused, Where
from coordinator.core.failures import listed
from coordinator.core.kept import KeptImages
from coordinator.core.model import Snapshot, WorkerRecord

AT_ONCE_PER_NODE = 2
WORKER_S = 24 * 3600.0  # for the images of one worker, however slow its store is
TELL_S = 0.5
TRIES = 3  # nodes that are asked about one worker, when they go away


@dataclass
class _Verification:
    """One snapshot that is read."""

    desk: Desk
    snapshot: Snapshot
    others: dict[str, str]  # place of images of other snapshots -> snapshot
    kept: tuple[KeptImages, ...]  # these images
    done_bytes: dict[int, tuple[int, int]] = field(default_factory=dict)  # by worker
    verified: int = 0
    broken: list[operator_pb2.Broken] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    rooms: dict[str, asyncio.Semaphore] = field(default_factory=dict)  # by node

    async def run(self) -> None:
        """Read all workers' images, those of several nodes at once."""
        async with asyncio.TaskGroup() as group:
            for worker in self.snapshot.workers:
                group.create_task(self._worker(worker))

    async def _worker(self, worker: WorkerRecord) -> None:
        for number in range(TRIES):
            nodes = self.desk.control.seeing(worker.store)
            if not nodes:
                break
            node = nodes[(worker.worker + number) % len(nodes)]
            room = self.rooms.setdefault(node, asyncio.Semaphore(AT_ONCE_PER_NODE))
            async with room:
                result = await self._ask(node, worker)
            if result is not None:
                self._took(worker, node, result)
                return
        nobody = "no node in reach sees its image store, or those that do went away"
        self.unread.append(f"worker {worker.worker}: {nobody}")

    async def _ask(self, node: str, worker: WorkerRecord) -> shim_pb2.StoreTaskResult | None:
        def progress(done_bytes: int, total_bytes: int) -> None:
            self.done_bytes[worker.worker] = (done_bytes, total_bytes)

        return await self.desk.hub.verifications.ask(
            node,
            cleaning_id(self.snapshot.job, self.desk.unix()),
            self.snapshot.job,
            KeptImages(worker.manifest, worker.manifest_digest),
            self.kept,
            progress=progress,
            deadline_s=WORKER_S,
        )

    def _took(self, worker: WorkerRecord, node: str, result: shim_pb2.StoreTaskResult) -> None:
        self.done_bytes.pop(worker.worker, None)
        if result.HasField("failure"):
            self.unread.append(f"worker {worker.worker} on {node}: {result.failure.what}")
            return
        self.verified += 1
        for damage in result.damage:
            sharers = {self.others[place] for place in damage.sharers if place in self.others}
            self.broken.append(
                operator_pb2.Broken(
                    worker=worker.worker,
                    node=node,
                    name=damage.name,
                    what=damage.what,
                    file=damage.file,
                    sharers=sorted(sharers - {self.snapshot.snapshot}),
                )
            )

    def event(self, *, last: bool = False) -> operator_pb2.VerifyEvent:
        """How far it is."""
        self.broken.sort(key=lambda each: each.worker)
        return operator_pb2.VerifyEvent(
            snapshot=self.snapshot.snapshot,
            workers=len(self.snapshot.workers),
            verified=self.verified,
            done_bytes=sum(done for done, _ in self.done_bytes.values()),
            total_bytes=sum(total for _, total in self.done_bytes.values()),
            last=last,
            broken=self.broken if last else (),
            unread=sorted(self.unread) if last else (),
        )


async def verify(
    desk: Desk, request: operator_pb2.VerifyRequest
) -> AsyncIterator[operator_pb2.VerifyEvent]:
    """Read all of a snapshot again; the last event has what is broken."""
    snapshot = await found(desk, request.snapshot)
    await desk.gathered(snapshot.job)
    if snapshot.deleting:
        where = Where(job=snapshot.job)
        raise Refused(f"snapshot {snapshot.snapshot} is being deleted", where=where)
    others, kept = await _others(desk, snapshot)
    verification = _Verification(desk, snapshot, others, kept)
    running = asyncio.create_task(verification.run(), name=f"verify {snapshot.snapshot}")
    try:
        while not running.done():
            yield verification.event()
            await asyncio.wait({running}, timeout=TELL_S)
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await _record(verification)
    yield verification.event(last=True)


async def _others(desk: Desk, snapshot: Snapshot) -> tuple[dict[str, str], tuple[KeptImages, ...]]:
    """The images of the job's other snapshots: whose each place is, and what to ask about."""
    owners: dict[str, str] = {}
    kept: list[KeptImages] = []
    for each in await desk.store.snapshots(snapshot.job):
        if each.snapshot == snapshot.snapshot or each.deleting:
            continue
        whole = await desk.store.snapshot(each.snapshot, each.job)
        for worker in whole.workers:
            owners[worker.manifest] = each.snapshot
            kept.append(KeptImages(worker.manifest, worker.manifest_digest))
    return owners, tuple(kept)


async def _record(verification: _Verification) -> None:
    """Keep what was found, unless some of it could not be read and the rest is whole."""
    snapshot, desk = verification.snapshot, verification.desk
    if verification.unread and not verification.broken:
        return
    damaged = damage_text(verification.broken)
    at = (snapshot.job, snapshot.snapshot)
    changed = await desk.store.set_verified(*at, damaged, desk.unix())
    desk.tell(events.SnapshotChanged(changed))


def damage_text(broken: Sequence[operator_pb2.Broken]) -> str:
    """What is broken in one sentence; empty for nothing."""
    if not broken:
        return ""
    workers = sorted({each.worker for each in broken})
    first = broken[0]
    named = f" ({first.file})" if first.file and first.file != first.name else ""
    return (
        f"of worker {listed([str(each) for each in workers])}; first {first.name}{named}: "
        f"{first.what}"
    )
