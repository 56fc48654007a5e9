"""Tries an image store end to end, as a shim would use it, and removes what it wrote.

What stays is the store's own identity (`store.id`), where nobody had opened it before.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from coordinator.core.errors import AllstopError, DriverError
from worker_shim.examination import ROOM_MIN_BYTES, Line, Verdict
from worker_shim.images.keys import key_from
from worker_shim.images.objects.opening import StoreOptions, open_objects
from worker_shim.images.objects.partner.store import PartnerStore
from worker_shim.images.objects.port import ObjectMissing, ObjectStore
from worker_shim.images.sealing import Sealing, sealing_of

TRIED_BYTES = 16 << 20  # about a pack
PART_BYTES = 64 << 10  # about a chunk
ASKED = 9
UNLIMITED_BYTES = 1 << 61
PREFIX = "doctor-"

T = TypeVar("T")


def examine_store(options: StoreOptions) -> list[Line]:
    """One line for each thing that a shim does with a store; the first that fails is the last.

    Everything is bounded by the store's own limits. A crash leaves objects below `doctor-…/`.
    """
    lines: list[Line] = []
    try:
        key = key_from(options.key)
        store = open_objects(options)
    except AllstopError as error:
        return [_wrong("store", error)]
    folder = f"{PREFIX}{secrets.token_hex(4)}"
    try:
        lines.append(_opened(store, options))
        sealing = sealing_of(store, key, decide=False)
        lines.append(_encryption(sealing))
        lines += _used(store, sealing, folder)
        lines.append(_room(store))
    except AllstopError as error:
        lines.append(_wrong("store", error))
    finally:
        lines += _cleaned(store, folder)
        with suppress(AllstopError):
            store.close()
    return lines


def _wrong(what: str, error: AllstopError) -> Line:
    told = "; ".join((error.what, *error.details[:1]))
    return Line(what, Verdict.FIX, told, error.advice)


def _opened(store: ObjectStore, options: StoreOptions) -> Line:
    if isinstance(store, PartnerStore):
        away = [f"{node}: {why}" for node, why in store.look() if why]
        if away:
            advice = "is its shim up, and its port open to this node?"
            return Line("store", Verdict.FIX, f"{options.where}; {'; '.join(away)}", advice)
    asked_ms = []
    for _ in range(ASKED):
        began = time.perf_counter()
        with suppress(ObjectMissing):
            store.size(f"{PREFIX}none/none")
        asked_ms.append((time.perf_counter() - began) * 1000)
    found = f"{options.where} ({store.scheme} {store.identity}); it answers in "
    return Line("store", Verdict.OK, f"{found}{statistics.median(asked_ms):.1f} ms")


def _encryption(sealing: Sealing) -> Line:
    if sealing.overhead_bytes:
        return Line("store encryption", Verdict.OK, "AES-256-GCM, keyed names; the key fits")
    found = "none: whoever reads the store reads the memory of ranks"
    return Line("store encryption", Verdict.OK, found)


def _used(store: ObjectStore, sealing: Sealing, folder: str) -> Iterator[Line]:
    """Write, write again, read, read a part, list, delete: each as a line, or the error of it."""
    name, place = f"{folder}/packs/1", f"{folder} 1".encode()
    plain = os.urandom(TRIED_BYTES)
    body = sealing.seal(plain, place)
    took_s, made = _timed(lambda: store.put(name, [body]))
    yield Line("store writes", Verdict.OK, f"{_rate(took_s)}, synced")
    if not made or store.put(name, [b"another"]):
        yield Line(
            "store writes once",
            Verdict.FIX,
            "an object that was there was written over",
            "the store has to honour conditional puts (If-None-Match: *)",
        )
        return
    yield Line("store writes once", Verdict.OK, "a second writer of a name is told so")
    took_s, read = _timed(lambda: store.get(name))
    part = store.get(name, start=len(body) - PART_BYTES, length=2 * PART_BYTES)
    if read != body or part != body[-PART_BYTES:] or sealing.open(read, place) != plain:
        yield Line("store reads", Verdict.FIX, "it gives other bytes than were written")
        return
    yield Line("store reads", Verdict.OK, f"{_rate(took_s)}, and parts of objects")
    store.put(f"{folder}/1/manifest", [b"x"])
    listed = {one.name: one.size_bytes for one in store.list(f"{folder}/pa")}
    store.delete(name)
    if listed != {name: len(body)} or any(store.list(f"{folder}/pa")):
        yield Line("store lists and deletes", Verdict.FIX, f"it lists {sorted(listed)}")
        return
    yield Line("store lists and deletes", Verdict.OK, "what is there, and nothing that is gone")


def _room(store: ObjectStore) -> Line:
    free = store.free_bytes()
    if free >= UNLIMITED_BYTES:
        return Line("store room", Verdict.OK, "it tells no limit")
    found = f"{free / 1e9:.1f} GB free"
    if free < ROOM_MIN_BYTES:
        need = "it needs for each snapshot what of the memory of all workers is new"
        return Line("store room", Verdict.WARNING, found, need)
    return Line("store room", Verdict.OK, found)


def _cleaned(store: ObjectStore, folder: str) -> list[Line]:
    try:
        for one in list(store.list(f"{folder}/")):
            store.delete(one.name)
    except DriverError as error:
        advice = f"remove what lies below {folder}/ there"
        return [Line("store", Verdict.WARNING, f"not cleaned up: {error.what}", advice)]
    return []


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


def _rate(took_s: float) -> str:
    rate = TRIED_BYTES / took_s / 1e6
    return f"{TRIED_BYTES >> 20} MiB in {took_s * 1000:.0f} ms, {rate:.0f} MB/s"
