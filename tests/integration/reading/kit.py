"""A real tree with one of everything, dumped by real CRIU, and what /proc said of it before."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.integration.criu.kit import until
from worker_shim.criu.driver import CriuDriver
from worker_shim.criu.tasks import states
from worker_shim.process.runner import CommandRunner

PROGRAM = Path(__file__).with_name("programs") / "many.py"
DUMP_S = 30.0
AREA = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \d+ *(.*)")
DELETED = " (deleted)"


@dataclass(frozen=True)
class SeenArea:
    """A mapping as /proc/PID/smaps shows it."""

    start: int
    end: int
    access: str
    offset: int
    name: str
    own_bytes: int  # "Anonymous": pages that are the process's own and no file's


@dataclass(frozen=True)
class SeenDescriptor:
    """A descriptor as /proc/PID/fd and fdinfo show it."""

    number: int
    target: str
    flags: int
    position: int


@dataclass
class Seen:
    """A process as /proc shows it."""

    pid: int
    status: dict[str, str]
    command: tuple[str, ...]
    cwd: str
    program: str
    threads: dict[int, str]
    areas: tuple[SeenArea, ...] = ()
    descriptors: tuple[SeenDescriptor, ...] = ()
    sockets: dict[int, tuple[str, str]] = field(default_factory=dict)  # inode: local, remote


@dataclass
class Dumped:
    """What a test has of one dump."""

    images: Path
    directory: Path  # where the tree kept its files
    seen: dict[int, Seen]
    root: int
    child: int
    zombie: int  # 0: none


class Many:
    """The tree while it runs; use it as a context manager."""

    def __init__(self, directory: Path, criu: str, *, zombie: bool = True) -> None:
        """Start it and wait until it has everything."""
        directory.mkdir(parents=True)
        self.directory = directory
        self._driver = CriuDriver(CommandRunner(), program=criu)
        more = ["zombie"] if zombie else []
        with open(directory / "out", "ab") as out:
            self._root = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(directory), *more],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/",
            )  # fmt: skip
        self.pids = [self._root.pid]
        self._await("ready")
        self.pids = [int(pid) for pid in (directory / "ready").read_text().split()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in reversed(self.pids):
            os.kill(pid, signal.SIGKILL)
        self._root.wait(10)

    def dump(self, images: Path) -> Dumped:
        """Stop it, look at it, dump it; it stays stopped."""
        self._tell(signal.SIGSTOP)
        until(lambda: set(states(self.pids).values()) <= set("TZ"), "it stands still")
        seen = {pid: look(pid) for pid in self.pids}
        asyncio.run(self._driver.dump(self._root.pid, images, deadline_s=DUMP_S))
        root, child, *dead = self.pids
        return Dumped(images, self.directory, seen, root, child, dead[0] if dead else 0)

    def step(self) -> None:
        """Let it go on and take the step in which it changes what it has."""
        self._tell(signal.SIGCONT)
        os.kill(self._root.pid, signal.SIGUSR1)
        self._await("stepped")

    def _tell(self, what: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, what)

    def _await(self, name: str) -> None:
        path = self.directory / name
        until(lambda: path.exists() or self._root.poll() is not None, f"the tree is {name}")
        assert self._root.poll() is None, (self.directory / "out").read_text()


def look(pid: int) -> Seen:
    """Everything of a process that images have too."""
    proc = Path(f"/proc/{pid}")
    lines = (proc / "status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    threads = {int(p.name): (p / "comm").read_text().strip() for p in (proc / "task").iterdir()}
    command = tuple((proc / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0"))
    if status["State"].startswith("Z"):
        return Seen(pid, status, (), "", "", threads)
    return Seen(
        pid=pid,
        status=status,
        command=command,
        cwd=os.readlink(proc / "cwd"),
        program=os.readlink(proc / "exe"),
        threads=threads,
        areas=_areas((proc / "smaps").read_text()),
        descriptors=tuple(_descriptor(path) for path in sorted((proc / "fd").iterdir())),
        sockets=_sockets(proc),
    )


def _areas(smaps: str) -> tuple[SeenArea, ...]:
    found = []
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", smaps):
        head = AREA.match(block)
        own = re.search(r"^Anonymous: +(\d+) kB", block, re.MULTILINE)
        assert head
        assert own
        start, end, access, offset, name = head.groups()
        numbers = int(start, 16), int(end, 16)
        found.append(SeenArea(*numbers, access, int(offset, 16), name, int(own.group(1)) * 1024))
    return tuple(found)


def _descriptor(path: Path) -> SeenDescriptor:
    info = (path.parent.with_name("fdinfo") / path.name).read_text()
    values = dict(line.split(":\t", 1) for line in info.splitlines() if ":\t" in line)
    return SeenDescriptor(
        int(path.name), os.readlink(path), int(values["flags"], 8), int(values["pos"])
    )


def _sockets(proc: Path) -> dict[int, tuple[str, str]]:
    found = {}
    for table in ("tcp", "tcp6", "udp"):
        for line in (proc / "net" / table).read_text().splitlines()[1:]:
            words = line.split()
            found[int(words[9])] = (_end(words[1]), _end(words[2]))
    for line in (proc / "net" / "unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        found[int(words[6])] = (words[7] if len(words) > 7 else "", "")
    return found


def _end(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`; nobody as nothing."""
    address, port = text.split(":")
    raw = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    if not int(port, 16):
        return ""
    shown = ipaddress.ip_address(raw)
    return f"[{shown}]:{int(port, 16)}" if shown.version == 6 else f"{shown}:{int(port, 16)}"
