"""verify: every chunk of an image is read again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from coordinator.core.errors import DriverError
from worker_shim.images.chunks import whole
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.packs import NotPacked
from worker_shim.images.chunks.reading import ChunkReader, Read, find_manifest, reads
from worker_shim.images.copying import CopyStopped
from worker_shim.images.objects.port import ObjectStore
from worker_shim.images.port import Damage, Kept, Manifest
from worker_shim.images.priority import yield_to_others
from worker_shim.images.sealing import Sealing
from worker_shim.images.transfer import Transfer, run_all

THREADS = 4

Where = tuple[str, int]  # pack, offset in it


def verify(
    objects: ObjectStore,
    sealing: Sealing,
    place: str,
    digest: str,
    others: Sequence[Kept],
    job: Transfer,
) -> tuple[Damage, ...]:
    """What is damaged, in the order of the files that need it; which of `others` need it too."""
    manifest, layout = find_manifest(objects, place, digest, sealing)
    if layout is None:
        return whole.verify(objects, place, manifest, job)
    job.total_bytes = int(layout.stored.sum(dtype=np.int64))
    bad: dict[int, str] = {}
    parts = list(reads(layout, np.arange(len(layout.digests))))
    works = [partial(_check, objects, sealing, layout, part, bad, job) for part in parts]
    run_all(works, job, threads=THREADS, begin=yield_to_others)
    if not bad:
        return ()
    sharers = _sharers(objects, sealing, place, others, {_where(layout, each) for each in bad})
    return _damages(manifest, layout, bad, sharers)


def _check(
    objects: ObjectStore,
    sealing: Sealing,
    layout: Layout,
    part: Read,
    bad: dict[int, str],
    job: Transfer,
) -> None:
    if job.stop.is_set():
        raise CopyStopped
    for chunk, found in ChunkReader(objects, layout, sealing).chunks(part):
        if isinstance(found, NotPacked):
            bad[chunk] = str(found)
        job.advance(int(layout.stored[chunk]))


def _damages(
    manifest: Manifest, layout: Layout, bad: dict[int, str], sharers: dict[Where, list[str]]
) -> tuple[Damage, ...]:
    damages, file_of = [], layout.files()
    told = set[int]()
    for piece in np.flatnonzero(np.isin(layout.chunk, list(bad))).tolist():
        chunk = int(layout.chunk[piece])
        if chunk in told:
            continue
        told.add(chunk)
        where = _where(layout, chunk)
        damages.append(
            Damage(
                f"{where[0]}: chunk {layout.digests[chunk].tobytes().hex()}",
                bad[chunk],
                manifest.files[int(file_of[piece])].name,
                tuple(sharers.get(where, ())),
            )
        )
    return tuple(damages)


def _sharers(
    objects: ObjectStore,
    sealing: Sealing,
    place: str,
    others: Sequence[Kept],
    wanted: set[Where],
) -> dict[Where, list[str]]:
    """Who else needs these bytes; a manifest that cannot be read is damaged itself."""
    found: dict[Where, list[str]] = {}
    for other in others:
        if other.place == place:
            continue
        try:
            _, layout = find_manifest(objects, other.place, other.digest, sealing)
        except DriverError:
            continue
        if layout is None:
            continue
        numbers = [n for n, pack in enumerate(layout.packs) if pack.name in {w[0] for w in wanted}]
        for chunk in np.flatnonzero(np.isin(layout.pack, numbers)).tolist():
            where = _where(layout, chunk)
            if where in wanted:
                found.setdefault(where, []).append(other.place)
    return found


def _where(layout: Layout, chunk: int) -> Where:
    return layout.packs[int(layout.pack[chunk])].name, int(layout.offset[chunk])
