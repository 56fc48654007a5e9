"""What a run leaves for the checker, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.store.kv import Compacted, Event, KeyValue, Put
from tests.chaos.steps import Step

PREFIX = "/allstop"
LAST_KEY = f"{PREFIX}/foreign/end-of-chaos"


@dataclass(frozen=True)
class Dump:
    """One run of CRIU as its node saw it begin."""

    unix_ns: int
    node: str
    word: str  # begins, or what went wrong
    verb: str
    directory: str

    @property
    def place(self) -> tuple[str, int]:
        """The action and the worker it is of: …/<job>/<worker>/<action>/images."""
        parts = Path(self.directory).parts
        return (parts[-2], int(parts[-3])) if len(parts) > 3 else ("", -1)


@dataclass(frozen=True)
class Lock:
    """A worker's network lock came or went on a node."""

    unix_ns: int
    node: str
    added: bool
    table: str


@dataclass
class Seen:
    """The whole of a run.

    Attributes:
        etcd: every change that etcd ever held, in order of its revisions.
        steps: what each rank wrote, in the order in which it was written.
        dump_s: by snapshot and worker, how long CRIU ran.
        undisturbed: digests by (rank, step) of the same job left alone.
    """

    etcd: Sequence[Event] = ()
    steps: Mapping[int, Sequence[Step]] = field(default_factory=dict)
    dumps: Sequence[Dump] = ()
    locks: Sequence[Lock] = ()
    dump_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    undisturbed: Mapping[tuple[int, int], str] = field(default_factory=dict)
    ghosts: Sequence[str] = ()


async def whole_history(kv: KeyValue) -> list[Event]:
    """Every change below allstop's prefix since etcd began (nobody compacts it here)."""
    await kv.write([], [Put(LAST_KEY, b"")])
    events: list[Event] = []
    async with aclosing(kv.watch(f"{PREFIX}/", 1)) as changes:
        async for change in changes:
            assert not isinstance(change, Compacted), "etcd has forgotten its history"
            if change.key == LAST_KEY:
                break
            events.append(change)
    return events


def read_dumps(directory: Path, nodes: Sequence[str]) -> list[Dump]:
    """What programs/criu.sh wrote on each node."""
    dumps = []
    for node in nodes:
        for line in lines_of(directory / node):
            unix_ns, word, verb, *where = line.split()
            dumps.append(Dump(int(unix_ns), node, word, verb, where[0] if where else ""))
    return sorted(dumps, key=lambda dump: dump.unix_ns)


def read_locks(directory: Path, nodes: Sequence[str]) -> list[Lock]:
    """What programs/locks.py wrote on each node."""
    locks = []
    for node in nodes:
        for line in lines_of(directory / node):
            unix_ns, word, table = line.split()
            locks.append(Lock(int(unix_ns), node, word != "delete", table))
    return sorted(locks, key=lambda lock: lock.unix_ns)


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none where there is no file."""
    return path.read_text().splitlines() if path.exists() else []
