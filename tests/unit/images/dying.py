"""A real process that is killed at its Nth system call that changes a store; run as a program.

    python -m tests.unit.images.dying put|collect|fetch ROOT

For N = 1, 2, … it copies ROOT/store to ROOT/N, and a child does the work on the copy and kills
itself with SIGKILL before its Nth change; it ends with the first N at which the child got through.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.images.kit import S, a_manifest, directory, fetch, put
from worker_shim.images import manifest
from worker_shim.images.port import Kept, Stored

CHANGES = ("open", "write", "link", "unlink", "rmdir", "mkdir", "fsync", "ftruncate", "pwrite")
STEPS_MAX = 400


def kept(root: Path, place: str) -> Kept:
    """A place as a snapshot's record names it."""
    return Kept(place, manifest.digest_of((root / place / "manifest").read_bytes()))


async def do_put(store: Path, staged: Path) -> None:
    await put(directory(store), staged, a_manifest("a9"), base="a0")


async def do_collect(store: Path, staged: Path) -> None:
    keep = [kept(store, "llm/a1/0")]
    await directory(store).collect("llm", ["a0", "a2"], keep, dry_run=False, deadline_s=S)


async def do_fetch(store: Path, staged: Path) -> None:
    one = kept(store, "llm/a1/0")
    await fetch(directory(store), Stored(one.place, one.digest, 0, 0, 0), store / "into")


def dying(at: int, call: Callable[..., Any], count: list[int]) -> Callable[..., Any]:
    """The call, before which the process dies when its turn has come."""

    def counted(*args: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] >= at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **named)

    return counted


def child(work: Callable[[Path, Path], Any], store: Path, staged: Path, at: int) -> None:
    count = [0]
    for name in CHANGES:
        setattr(os, name, dying(at, getattr(os, name), count))
    asyncio.run(work(store, staged))
    os._exit(0)


def main() -> None:
    verb, root = sys.argv[1], Path(sys.argv[2])
    work = {"put": do_put, "collect": do_collect, "fetch": do_fetch}[verb]
    staged = Path((root / "staged").read_text())
    for at in range(1, STEPS_MAX):
        store = root / str(at)
        shutil.copytree(root / "store", store)
        if not (pid := os.fork()):
            try:
                child(work, store, staged, at)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            if os.waitstatus_to_exitcode(status):
                raise SystemExit(f"the child failed at {at}")
            print(at)
            return
    raise SystemExit("no end")


if __name__ == "__main__":
    main()
