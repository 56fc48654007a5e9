"""What the preflight sees of a tree: descriptors, mappings and namespaces, read once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from coordinator.core.model import Finding, Severity
from worker_shim.process.port import Tree, TreeProcess

_MAPPING = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+)\s*(.*)"
)


class Namespaces(dict[str, int]):
    """Inode of each namespace by kind."""

    @classmethod
    def of(cls, pid: int | str) -> Namespaces:
        """Of a process; kinds that cannot be read are left out."""
        found = cls()
        place = f"/proc/{pid}/ns"
        for kind in _names(place):
            try:
                found[kind] = os.stat(f"{place}/{kind}").st_ino
            except OSError:
                continue
        return found


@dataclass(frozen=True)
class Descriptor:
    """One open descriptor."""

    number: int
    target: str  # what the link says: a path, `pipe:[123]`, `anon_inode:[eventfd]` …
    flags: int  # as given to open(2)
    mount: int  # id of its mount; -1: not known
    info: str = field(repr=False, default="")

    @property
    def writes(self) -> bool:
        """True when it may be written."""
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    @property
    def reads(self) -> bool:
        """True when it may be read."""
        return self.flags & os.O_ACCMODE in (os.O_RDONLY, os.O_RDWR)

    def inode(self, kind: str) -> int:
        """The number in `kind:[number]`; 0 when it is of another kind."""
        if self.target.startswith(f"{kind}:[") and self.target.endswith("]"):
            return int(self.target[len(kind) + 2 : -1])
        return 0


@dataclass(frozen=True)
class MemoryArea:
    """One mapping of a process's memory that has a name."""

    size_bytes: int
    shared: bool
    path: str


@dataclass(frozen=True)
class ProcessView:
    """One process as the preflight looks at it."""

    process: TreeProcess
    descriptors: tuple[Descriptor, ...]
    mappings: tuple[MemoryArea, ...]
    namespaces: Mapping[str, int]

    def finding(self, severity: Severity, code: str, what: str, advice: str) -> Finding:
        """A finding that begins with who it is and ends with what to do."""
        name = os.path.basename(self.process.argv[0])
        rank = f", rank {self.process.rank}" if self.process.rank >= 0 else ""
        return Finding(
            severity=severity,
            code=code,
            text=f"pid {self.process.pid} ({name}{rank}) {what}; {advice}",
            rank=self.process.rank,
            pid=self.process.pid,
        )

    def read(self, name: str) -> str:
        """A file of its /proc directory; empty when it has gone."""
        return _read(f"/proc/{self.process.pid}/{name}")


@dataclass(frozen=True)
class TreeView:
    """All processes of a tree that could be read."""

    processes: tuple[ProcessView, ...]

    @cached_property
    def pids(self) -> frozenset[int]:
        """Pids of the tree."""
        return frozenset(view.process.pid for view in self.processes)

    def all_descriptors(self) -> Iterator[tuple[ProcessView, Descriptor]]:
        """Every descriptor of every process."""
        for process in self.processes:
            for descriptor in process.descriptors:
                yield process, descriptor

    @cached_property
    def socket_inodes(self) -> frozenset[int]:
        """Inodes of all sockets of the tree."""
        return frozenset(d.inode("socket") for _, d in self.all_descriptors()) - {0}


def view(tree: Tree) -> TreeView:
    """Read what the checks need, once per process; zombies have nothing and are left out."""
    return TreeView(
        tuple(
            ProcessView(
                process=process,
                descriptors=tuple(_descriptors(process.pid)),
                mappings=tuple(_mappings(process.pid)),
                namespaces=Namespaces.of(process.pid),
            )
            for process in tree.processes
            if process.state not in "ZX"
        )
    )


def descriptor_targets(pid: int) -> Iterator[tuple[int, str]]:
    """Number and link of each descriptor of any process; nothing when it may not be read."""
    place = f"/proc/{pid}/fd"
    for name in _names(place):
        try:
            yield int(name), os.readlink(f"{place}/{name}")
        except OSError:
            continue


def _descriptors(pid: int) -> Iterator[Descriptor]:
    for number, target in descriptor_targets(pid):
        info = _read(f"/proc/{pid}/fdinfo/{number}")
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        yield Descriptor(
            number=number,
            target=target,
            flags=int(fields.get("flags", "0"), 8),
            mount=int(fields.get("mnt_id", "-1")),
            info=info,
        )


def _mappings(pid: int) -> Iterator[MemoryArea]:
    for line in _read(f"/proc/{pid}/maps").splitlines():
        match = _MAPPING.match(line)
        if match is None or not match[6]:
            continue
        yield MemoryArea(
            size_bytes=int(match[2], 16) - int(match[1], 16),
            shared=match[3][3] == "s",
            path=match[6],
        )


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
