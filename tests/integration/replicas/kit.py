"""Real coordinator processes over one real etcd, started as a user starts them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from allstop.v1 import shim_pb2

from coordinator.api.channels import OWN_POOL
from coordinator.core.errors import LinkError
from coordinator.link.security import NO_TLS, Dialler, Tls
from tests.support.fake_shim import FakeShim

ROOT = Path(__file__).resolve().parents[3]
LEASE_S = 3.0
WAIT_S = 40.0  # for anything that takes an instant on an idle machine

Answer = TypeVar("Answer")


@dataclass
class Replica:
    """One coordinator process, and all it has said so far."""

    name: str
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _reader: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Keep what it says, to its end."""
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.lines.append(raw.decode(errors="replace").rstrip())
            self._news.set()
        self._news.set()

    def start_reading(self) -> None:
        """From now on its words are kept."""
        self._reader = asyncio.create_task(self.read())

    async def said(self, pattern: str, since: int = 0, timeout_s: float = WAIT_S) -> re.Match[str]:
        """The first match in what it said after its first `since` lines; waits for it."""
        async with asyncio.timeout(timeout_s):
            while True:
                for line in self.lines[since:]:
                    if found := re.search(pattern, line):
                        return found
                if self._reader is not None and self._reader.done():
                    raise AssertionError(f"{self.name} ended without {pattern!r}: {self.lines}")
                self._news.clear()
                await self._news.wait()

    @property
    def addresses(self) -> list[str]:
        """What it listens on, once it has said so."""
        found = next(each for each in self.lines if each.startswith("listening on "))
        return found.removeprefix("listening on ").split(", ")

    @property
    def address(self) -> str:
        """Its first TCP address."""
        return self.addresses[0]

    def kill(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self, timeout_s: float = WAIT_S) -> int:
        """Its exit code."""
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    async def close(self) -> None:
        """End it, frozen or not."""
        with suppress(ProcessLookupError):
            self.kill(signal.SIGKILL)
        await self.process.wait()
        if self._reader is not None:
            await self._reader


def environment() -> dict[str, str]:
    """Ours, without anything that leads to another coordinator."""
    kept = {name: value for name, value in os.environ.items() if "ALLSTOP" not in name}
    return {**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}


def allstop(*arguments: str) -> list[str]:
    """The command line of one `allstop …`."""
    return [sys.executable, "-P", "-m", "coordinator.cli.main", *arguments]


@dataclass
class Replicas:
    """Coordinators of one prefix, by name; each may be started again."""

    endpoint: str
    prefix: str
    folder: Path
    options: Sequence[str] = ()
    running: dict[str, Replica] = field(default_factory=dict)

    async def start(self, name: str, *options: str) -> Replica:
        """Start one and wait until it serves."""
        process = await asyncio.create_subprocess_exec(
            *allstop("coordinator", "--etcd", self.endpoint, "--prefix", self.prefix),
            *("--name", name, "--state-dir", str(self.folder / name)),
            *("--lease", f"{LEASE_S:g}s", "--node-lease", "1h"),
            *self.options,
            *(options if "--listen" in options else ("--listen", "127.0.0.1:0", *options)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        replica = self.running[name] = Replica(name, process)
        replica.start_reading()
        await replica.said("listening on ")
        return replica

    async def leader(self, *, since: dict[str, int] | None = None) -> Replica:
        """Whoever says first that it leads."""
        waiting = {
            asyncio.create_task(each.said("leading, epoch", (since or {}).get(each.name, 0))): each
            for each in self.running.values()
        }
        left = set(waiting)
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:  # else it has ended
                        return waiting[task]
        finally:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        raise AssertionError("nobody leads")

    def marks(self) -> dict[str, int]:
        """How much each has said up to now."""
        return {name: len(each.lines) for name, each in self.running.items()}

    @property
    def addresses(self) -> list[str]:
        """Of all, in the order of their names."""
        return [self.running[name].address for name in sorted(self.running)]

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(each.close() for each in self.running.values()))
        self.running.clear()


@asynccontextmanager
async def replicas(
    endpoint: str, prefix: str, folder: Path, *names: str, options: Sequence[str] = ()
) -> AsyncIterator[Replicas]:
    """These coordinators, started one after the other, so that the first one leads."""
    made = Replicas(endpoint, prefix, folder, options)
    try:
        for name in names:
            await made.start(name)
            if name == names[0]:
                await made.leader()
        yield made
    finally:
        await made.close()


class Watchful(FakeShim):
    """A shim with a connection of its own, which notes what newer and older leaders say to it."""

    def __init__(self, address: str, node: str, *, tls: Tls = NO_TLS, **options: Any) -> None:
        channel = Dialler(tls, options=OWN_POOL)(address)
        super().__init__(address, node, channel=channel, **options)
        self._own_channel = True
        self.late: list[shim_pb2.Order] = []  # orders of an epoch below the highest seen
        self.epochs: list[int] = []  # of each Welcome on the one stream that stands

    async def _take(self, message: shim_pb2.CoordinatorMessage) -> None:
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self.epochs.append(message.welcome.epoch)
        if kind == "order" and message.order.epoch < self.epoch:
            self.late.append(message.order)
        await super()._take(message)


async def attach(shim: Watchful) -> None:
    """Attach as soon as a leader is known there; until then it is refused."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(AssertionError):
                await shim.attach()
                return
            await asyncio.sleep(0.1)


async def until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Look again and again at what nobody tells us, such as whether a process is still there."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def eventually(ask: Callable[[], Awaitable[Answer]], timeout_s: float = WAIT_S) -> Answer:
    """The first answer that is no LinkError."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await ask()
            except LinkError:
                await asyncio.sleep(0.1)


async def cli(*arguments: str, timeout_s: float = WAIT_S) -> tuple[int, Any, str]:
    """Run `allstop … -o json`: its exit code, what it put out, and what it told people."""
    process = await asyncio.create_subprocess_exec(
        *allstop(*arguments, "-o", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, told = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out else None, told.decode()
