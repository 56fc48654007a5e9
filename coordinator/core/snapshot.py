"""Putting a snapshot together from what the workers persisted, and proving that it is whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from coordinator.core.errors import BugError, Where
from coordinator.core.model import Cut, Snapshot, WorkerRecord


def digest_of(records: Iterable[WorkerRecord]) -> str:
    """One digest over the workers' manifest digests: BLAKE2b-256 of `worker:digest` lines."""
    hashed = hashlib.blake2b(digest_size=32)
    for record in sorted(records, key=lambda r: r.worker):
        hashed.update(f"{record.worker}:{record.manifest_digest}\n".encode())
    return hashed.hexdigest()


def check_whole(snapshot: Snapshot, workers: int) -> None:
    """Raise BugError unless every worker and rank is in it once, at one step, stored and hashed.

    With cut = freeze the ranks are wherever they were, so only the workers are counted.
    """
    numbers = [r.worker for r in snapshot.workers]
    if sorted(numbers) != list(range(workers)):
        raise BugError(f"snapshot {snapshot.snapshot} has workers {numbers}, not 0..{workers - 1}")
    bare = [r.worker for r in snapshot.workers if not r.manifest or not r.manifest_digest]
    if bare:
        raise BugError(f"snapshot {snapshot.snapshot} has no manifest of workers {bare}")
    if snapshot.cut is Cut.FREEZE:
        return
    ranks = [rank for r in snapshot.workers for rank in r.ranks]
    if sorted(r.rank for r in ranks) != list(range(snapshot.world_size)):
        raise BugError(
            f"snapshot {snapshot.snapshot} does not have each of {snapshot.world_size} ranks once"
        )
    astray = [r.rank for r in ranks if r.boundary != snapshot.step]
    if astray:
        raise BugError(
            f"ranks {astray} of snapshot {snapshot.snapshot} are not at step {snapshot.step}",
            where=Where(job=snapshot.job, rank=astray[0]),
        )


def assemble(
    *,
    attempt: str,
    job: str,
    epoch: int,
    incarnation: int,
    world_size: int,
    target: int,
    cut: Cut,
    records: Sequence[WorkerRecord],
    unix_s: float,
    suspect: str = "",
) -> Snapshot:
    """Build the snapshot of an attempt and check it; raises BugError when it is not whole.

    With cut = freeze there is no target: `step` is then the highest boundary any rank had passed,
    and the world is as large as the ranks that are known.
    """
    ordered = tuple(sorted(records, key=lambda r: r.worker))
    boundaries = [max(rank.boundary, 0) for r in ordered for rank in r.ranks]
    made = Snapshot(
        snapshot=attempt,
        job=job,
        epoch=epoch,
        incarnation=incarnation,
        world_size=world_size or len(boundaries),
        step=target if cut is Cut.STEP else max(boundaries, default=0),
        cut=cut,
        workers=ordered,
        image_bytes=sum(r.image_bytes for r in ordered),
        stored_bytes=sum(r.stored_bytes for r in ordered),
        shared_bytes=sum(r.shared_bytes for r in ordered),
        digest=digest_of(ordered),
        stores=tuple(sorted({r.store for r in ordered if r.store})),
        committed_unix_s=unix_s,
        suspect=suspect,
    )
    check_whole(made, len(ordered))
    return made
