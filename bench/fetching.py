"""How fast images come from object storage, against the library alone reading the same objects.

A real S3 server on loopback, a process of its own; the images are noise, so that as many bytes
travel as are written at the end. Both sides read with as many threads. Once over a link that gives
each connection some 30 MB/s, as object storage does, and once over bare loopback, where nothing
but the processor is in the way: there the ratio says what checking and writing cost beside reading.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

SIZE_BYTES = 256 << 20
FILES = 4
ROUNDS = 5
THREADS = 8
GOAL = 1.3
DEADLINE_S = 120.0
LINK_BYTES_PER_S = 30e6  # of one connection
LINK_S_MAX = 600.0


@dataclass(frozen=True)
class Fetched:
    """Medians of rounds that take turns."""

    fetch_s: float  # every chunk brought, checked, and written where CRIU reads it
    library_s: float  # the same objects read and thrown away
    ratio: float  # median of the rounds' ratios
    link: str
    size_bytes: int
    goal: float = GOAL


def measure() -> list[Fetched]:
    """Takes half a minute, and memory for the images three times."""
    from tests.support.s3.server import BUCKET, serving

    room = "/dev/shm" if Path("/dev/shm").is_dir() else None
    where = f"s3://{BUCKET}/bench"
    with TemporaryDirectory(dir=room, prefix="allstop-bench-") as folder, serving() as server:
        root = Path(folder)
        with _environment(server.endpoint):
            stored = _put(where, root)
        with _link(server.port) as endpoint, _environment(endpoint):
            slow = _compared(where, stored, root, "a link of 30 MB/s a connection")
        with _environment(server.endpoint):
            return [slow, _compared(where, stored, root, "bare loopback")]


def _compared(where: str, stored: tuple[str, str], root: Path, link: str) -> Fetched:
    rounds = [(_fetch(where, stored, root), _library(where)) for _ in range(ROUNDS)]
    fetch_s, library_s = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = statistics.median(one / other for one, other in rounds)
    return Fetched(fetch_s, library_s, ratio, link, SIZE_BYTES)


@contextmanager
def _link(port: int) -> Iterator[str]:
    """An endpoint that passes everything on, slowly; a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    made = multiprocessing.get_context("spawn").Process(target=_pass_on, args=(port, theirs))
    made.start()
    try:
        yield str(ours.recv())
    finally:
        made.kill()
        made.join(10)


def _pass_on(port: int, told: Connection) -> None:
    from tests.support.s3.meddler import PIECE_BYTES, Meddler, Meddling

    with Meddler(port) as meddler:
        meddler.does = Meddling(pause_s=PIECE_BYTES / LINK_BYTES_PER_S)
        told.send(meddler.endpoint)
        threading.Event().wait(LINK_S_MAX)


def rows(found: Iterable[Fetched]) -> Iterable[tuple[str, str, str]]:
    """For the table."""
    for one in found:
        rate = one.size_bytes / one.fetch_s / 1e6
        yield (
            f"fetch from S3, {one.link}",
            f"{one.fetch_s * 1000:.0f} ms, {rate:.0f} MB/s, ratio {one.ratio:.2f}",
            f"library alone {one.library_s * 1000:.0f} ms, goal ≤ {one.goal}",
        )


@contextmanager
def _environment(endpoint: str) -> Any:
    """The variables that a user sets."""
    ours = {
        "AWS_ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with mock.patch.dict(os.environ, others | ours, clear=True):
        yield


def _put(where: str, root: Path) -> tuple[str, str]:
    from worker_shim.images import manifest
    from worker_shim.images.opening import open_store
    from worker_shim.images.port import Manifest

    staged = root / "staged"
    (staged / "images").mkdir(parents=True)
    noise = np.random.default_rng(1)
    for number in range(FILES):
        (staged / "images" / f"pages-{number}.img").write_bytes(noise.bytes(SIZE_BYTES // FILES))
    made = Manifest(
        version=manifest.VERSION, job="bench", worker=0, action="bench-1", incarnation=1,
        root_pid=1000, files=(), open_files=(), page={}, slots=(), workers=1, command=("bench",),
        run_directory="/run/allstop",
    )  # fmt: skip
    putting = open_store(where).put(staged, made, progress=_quiet, deadline_s=DEADLINE_S)
    stored = asyncio.run(putting)
    return stored.place, stored.digest


def _fetch(where: str, stored: tuple[str, str], root: Path) -> float:
    """Opened anew: nothing is known of what was read before."""
    from worker_shim.images.opening import open_store

    store = open_store(where)
    with TemporaryDirectory(dir=root) as into:
        began = time.perf_counter()
        fetching = store.fetch(*stored, Path(into), progress=_quiet, deadline_s=DEADLINE_S)
        asyncio.run(fetching)
        return time.perf_counter() - began


def _library(where: str) -> float:
    import obstore
    from obstore.store import S3Store

    remote = S3Store.from_url(where, client_options={"allow_http": True})
    names = [each["path"] for page in obstore.list(remote) for each in page]

    def read(name: str) -> int:
        return len(obstore.get(remote, name).bytes())

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        total = sum(pool.map(read, names))
    took_s = time.perf_counter() - began
    assert total >= SIZE_BYTES, "the library has read less than was stored"
    return took_s


def _quiet(done: int, total: int) -> None:
    """Nobody watches."""
