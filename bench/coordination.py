"""Coordination alone: request to commit with shims whose drivers answer at once.

Everything is real but the workers: a coordinator process (with `fronts`, several), an etcd, TLS,
and as many shims as asked for, each with a connection of its own, in a few processes. The floor is
a bare grpc.aio server that sends as many star-wide rounds over as many connections to the same
processes; it is measured in turn with the coordinator, so that a noisy machine hits both.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from rich.table import Table

from bench.children import Child, cpu_s, open_files_max
from bench.hosts import JOB
from bench.links import VARIABLE, make_certificates, own_tls
from coordinator.api.client import OperatorClient
from coordinator.core.errors import SetupError
from coordinator.server.embedded import EmbeddedEtcd, start_etcd
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Compacted, Range

SIZES = (8, 64, 256, 1_024, 4_096)
FRONTS = (0, 2)
ROUNDS = 4  # star-wide: HOLD, PARK, DUMP, and RESUME with PERSIST (two orders, two answers)
PROCESSES_MAX = 4
SHIMS_PER_PROCESS_MIN = 32
SAMPLES = {8: 60, 64: 30, 256: 20, 1_024: 10, 4_096: 5}
PHASES = ("ADMIT", "HOLD", "PARK", "DUMP", "RESUME", "PERSIST", "COMMIT")
REPORT_S = 5.0  # how often a shim says that all is as it was
SPARE_FILES = 500  # what a process opens beside its connections
ATTACH_S_MAX = 300.0
IDLE_S = 4.0
PREFIX = "/allstop/jobs/"

RATIO_GOAL = 1.5
COMMIT_GOALS_MS = {256: 500.0, 1_024: 2_000.0}
MEMORY_GOAL_BYTES = 200_000


@dataclass(frozen=True)
class Spread:
    """Milliseconds after the request."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Both percentiles."""
        return cls(round(percentile(values, 0.50), 1), round(percentile(values, 0.99), 1))


@dataclass(frozen=True)
class Coordination:
    """One size: what a checkpoint took and cost, over `count` of them."""

    shims: int
    fronts: int
    tls: bool
    count: int
    rounds: int
    parked: Spread
    cut: Spread
    committed: Spread
    phases_ms: dict[str, int]  # p50 of each, as the leader saw it
    floor_ms: float  # bare echo of as many rounds, p50
    ratio: float  # p50 of committed to floor
    cpu_ms: float  # of the coordinator and its fronts, per checkpoint
    idle_cpu_ms: float  # the same, per second in which nothing happens
    floor_cpu_ms: float  # of the bare echo's server, per as many rounds
    bytes_per_shim: int  # resident, of the coordinator and its fronts
    messages: int  # handled by the leader itself, per checkpoint
    etcd_transactions: int  # per checkpoint
    etcd_keys: int  # written per checkpoint

    def to_fields(self) -> dict[str, object]:
        """For `--json`."""
        return {**asdict(self), "missed": self.missed()}

    def missed(self) -> list[str]:
        """The goals that were not reached, in words."""
        goal_ms = COMMIT_GOALS_MS.get(self.shims)
        found = []
        if self.ratio > RATIO_GOAL:
            found.append(f"{self.ratio:.2f} x floor, goal {RATIO_GOAL}")
        if goal_ms is not None and self.committed.p50_ms > goal_ms:
            found.append(f"{self.committed.p50_ms:.0f} ms, goal {goal_ms:.0f} ms")
        if self.shims >= 256 and self.bytes_per_shim > MEMORY_GOAL_BYTES:
            found.append(f"{self.bytes_per_shim // 1000} kB a shim, goal 200 kB")
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(share * 1000) * len(ordered) // 1000) - 1)]


@dataclass
class Star:
    """One size, set up: etcd, coordinator, shims and the bare echo are running."""

    shims: int
    etcd: EmbeddedEtcd
    coordinator: Child
    echo: Child
    hosts: list[Child]
    client: OperatorClient
    empty_bytes: int  # what the coordinator had resident before the first shim
    pids: list[int]  # of the coordinator and its fronts
    spent_s: float = 0.0  # their processor time in checkpoints

    async def checkpoint(self) -> dict[str, float]:
        """Milliseconds after the request at which each state was heard of, and of each phase."""
        heard: dict[str, float] = {}
        spent_s, began = self.cpu_s(), time.perf_counter()
        async with aclosing(self.client.checkpoint(JOB)) as events:
            async for event in events:
                heard.setdefault(event.state, (time.perf_counter() - began) * 1000)
                if event.attempt is not None:
                    heard.update((str(t.phase), t.took_ms) for t in event.attempt.timings)
        self.spent_s += self.cpu_s() - spent_s
        return heard

    def cpu_s(self) -> float:
        """Processor seconds of the coordinator and its fronts so far."""
        return sum(cpu_s(pid) for pid in self.pids)

    async def idle_cpu_ms(self) -> float:
        """What they spend in a second in which nothing happens."""
        before_s = self.cpu_s()
        await asyncio.sleep(IDLE_S)
        return (self.cpu_s() - before_s) / IDLE_S * 1000

    async def floor_ms(self) -> float:
        """The bare echo's time for a checkpoint's rounds."""
        found = await self.echo.ask("rounds", count=ROUNDS)
        if found["streams"] != self.shims:
            raise SetupError(f"{found['streams']} of {self.shims} echo streams are left")
        return float(found["ms"])

    async def check(self) -> None:
        """Raise SetupError when a shim has lost its stream."""
        for host in self.hosts:
            found = await host.ask("look")
            if found["lost"]:
                raise SetupError("shims lost their streams", details=tuple(found["lost"]))

    async def writes(self) -> tuple[int, int]:
        """Transactions and keys that one checkpoint writes, by etcd's own history."""
        kv = EtcdKeyValue(EtcdOptions((self.etcd.endpoint,)))
        try:
            before = (await kv.read(Range(PREFIX))).revision
            await self.checkpoint()
            revisions: set[int] = set()
            keys = 0
            awaited = {"latest", "timelines"}  # the last of the commit, and what is put after it
            async with asyncio.timeout(60):
                async with aclosing(kv.watch(PREFIX, before + 1)) as changes:
                    async for change in changes:
                        assert not isinstance(change, Compacted)
                        revisions.add(change.revision)
                        keys += 1
                        awaited -= set(change.key.split("/"))
                        if not awaited:
                            break
            return len(revisions), keys
        finally:
            await kv.close()


@asynccontextmanager
async def star(
    shims: int, *, fronts: int, tls: bool, place: Path, profile: str = ""
) -> AsyncIterator[Star]:
    """Start everything for one size; ends all of it.

    Raises SetupError when so many connections cannot be opened here.
    """
    count = min(PROCESSES_MAX, max(1, shims // SHIMS_PER_PROCESS_MIN))
    _check_files(shims, count)
    if tls:
        make_certificates(place)
        os.environ[VARIABLE] = str(place)
    else:
        os.environ.pop(VARIABLE, None)
    async with AsyncExitStack() as stack:
        etcd = await start_etcd(place / "etcd")
        stack.push_async_callback(etcd.stop)
        given = {"listen": "127.0.0.1:0", "etcd": [etcd.endpoint], "fronts": fronts}

        async def child(module: str, name: str, *arguments: str) -> Child:
            made = await Child.start(module, *arguments, log=place / f"{name}.log")
            return await stack.enter_async_context(made)

        more = [profile] if profile else []
        coordinator = await child("bench.replica", "coordinator", json.dumps(given), *more)
        echo = await child("bench.echo", "echo")
        hosts = [await child("bench.hosts", f"host-{index}") for index in range(count)]
        addresses = (await coordinator.ask("leading"))["addresses"]
        await coordinator.ask("settle")
        empty = await coordinator.ask("look")
        await _attach(hosts, shims, addresses)
        listening = await echo.ask("listen")
        for index, host in enumerate(hosts):
            await host.tell(
                "connect", address=listening["address"], count=_share(shims, hosts, index)
            )
        for host in hosts:
            await host.answer("connect", deadline_s=ATTACH_S_MAX)
        await echo.ask("settle")
        client = OperatorClient(addresses[:1], tls=own_tls())
        await stack.enter_async_context(client)
        await _whole(client, shims)
        yield Star(
            shims,
            etcd,
            coordinator,
            echo,
            hosts,
            client,
            empty["resident_bytes"],
            empty["pids"],
        )


def _check_files(shims: int, processes: int) -> None:
    need = max(shims, 2 * -(-shims // processes)) + SPARE_FILES
    have = open_files_max()
    if have < need:
        raise SetupError(
            f"{shims} shims need {need} open files in one process, and {have} are allowed",
            advice=f"`ulimit -Hn {need}` as root, or fewer shims",
        )


def _share(shims: int, hosts: Sequence[Child], index: int) -> int:
    return shims // len(hosts) + (index < shims % len(hosts))


async def _attach(hosts: Sequence[Child], shims: int, addresses: Sequence[str]) -> None:
    first = 0
    for index, host in enumerate(hosts):
        share = _share(shims, hosts, index)
        await host.tell(
            "attach",
            addresses=list(addresses),
            first=first,
            count=share,
            workers=shims,
            report_s=REPORT_S,
        )
        first += share
    for host in hosts:
        found = await host.answer("attach", deadline_s=ATTACH_S_MAX)
        if found["lost"]:
            raise SetupError("shims could not attach", details=tuple(found["lost"]))


async def _whole(client: OperatorClient, shims: int) -> None:
    """Wait until the leader has heard of every worker."""
    async with asyncio.timeout(ATTACH_S_MAX):
        while True:
            views = await client.jobs()
            if views and len(views[0].workers) == shims:
                return
            await asyncio.sleep(0.5)


async def measure_size(
    shims: int,
    *,
    fronts: int = 0,
    tls: bool = True,
    count: int = 0,
    profile: str = "",
) -> Coordination:
    """Measure one size; `count` 0: as many checkpoints as suits it."""
    count = count or SAMPLES.get(shims, 10)
    with tempfile.TemporaryDirectory(prefix="allstop-bench-") as place:
        async with star(
            shims, fronts=fronts, tls=tls, place=Path(place), profile=profile
        ) as running:
            await running.checkpoint()  # warms up
            await running.floor_ms()
            transactions, keys = await running.writes()
            idle_cpu_ms = await running.idle_cpu_ms()
            running.spent_s = 0.0
            before = await running.coordinator.ask("look")
            floor_before_s = cpu_s(running.echo.process.pid)
            await running.coordinator.ask("profile", on=True)
            floors, heard = [], []
            for _ in range(count):
                floors.append(await running.floor_ms())
                heard.append(await running.checkpoint())
            await running.coordinator.ask("profile", on=False)
            after = await running.coordinator.ask("look")
            floor_cpu_s = cpu_s(running.echo.process.pid) - floor_before_s
            await running.check()
    committed = Spread.of([one["COMMITTED"] for one in heard])
    floor_ms = statistics.median(floors)
    return Coordination(
        shims=shims,
        fronts=fronts,
        tls=tls,
        count=count,
        rounds=ROUNDS,
        parked=Spread.of([one["DUMPING"] for one in heard]),
        cut=Spread.of([one["PERSISTING"] for one in heard]),
        committed=committed,
        phases_ms={
            phase: round(statistics.median(one[phase] for one in heard)) for phase in PHASES
        },
        floor_ms=round(floor_ms, 1),
        ratio=round(committed.p50_ms / floor_ms, 2),
        cpu_ms=round(running.spent_s * 1000 / count, 1),
        idle_cpu_ms=round(idle_cpu_ms, 1),
        floor_cpu_ms=round(floor_cpu_s * 1000 / count, 1),
        bytes_per_shim=(after["resident_bytes"] - running.empty_bytes) // shims,
        messages=round((after["messages"] - before["messages"]) / count),
        etcd_transactions=transactions,
        etcd_keys=keys,
    )


async def measure(
    sizes: Sequence[int] = SIZES,
    *,
    fronts: Sequence[int] = FRONTS,
    tls: bool = True,
    count: int = 0,
    tell: Callable[[Coordination], None] = lambda found: None,
) -> list[Coordination]:
    """All sizes with each number of fronts, one after another; each is told when it is there."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found = []
    for shims in sizes:
        for some in fronts:
            found.append(await measure_size(shims, fronts=some, tls=tls, count=count))
            tell(found[-1])
    return found


def rows(found: Sequence[Coordination]) -> Iterator[tuple[str, str, str]]:
    """What was measured for people: figure, value, floor or goal."""
    for one in found:
        with_fronts = f", {one.fronts} fronts" if one.fronts else ""
        heading = f"coordination, {one.shims} shims{with_fronts}"
        spread = f"p50 {one.committed.p50_ms:.0f} ms, p99 {one.committed.p99_ms:.0f} ms"
        yield heading, spread, f"bare echo {one.floor_ms:.0f} ms, ratio {one.ratio:.2f}"
        parked, cut = one.parked, one.cut
        yield (
            "  of which",
            f"parked {parked.p50_ms:.0f} / {parked.p99_ms:.0f} ms, "
            f"cut {cut.p50_ms:.0f} / {cut.p99_ms:.0f} ms",
            ", ".join(f"{phase} {took_ms}" for phase, took_ms in one.phases_ms.items()),
        )
        yield (
            "  costs",
            f"{one.cpu_ms:.0f} ms of processor, idle {one.idle_cpu_ms:.0f} ms/s, "
            f"{one.bytes_per_shim // 1000} kB a shim",
            f"{one.messages} messages at the leader, "
            f"etcd {one.etcd_transactions} transactions, {one.etcd_keys} keys",
        )
        for missed in one.missed():
            yield "  not reached", missed, ""


def table(found: Sequence[Coordination]) -> Table:
    """`rows` as a table."""
    made = Table("figure", "measured", "floor or goal", box=None, padding=(0, 2, 0, 0))
    for row in rows(found):
        made.add_row(*row)
    return made


def main() -> None:
    """`python -m bench.coordination SHIMS [FRONTS [COUNT [PROFILE]]]`, for profiles; no TLS."""
    shims, fronts, count, profile, *_ = [*sys.argv[1:], *["0", "0", ""][len(sys.argv) - 2 :]]
    tls = bool(os.environ.get("TLS"))
    found = asyncio.run(
        measure_size(int(shims), fronts=int(fronts), count=int(count), tls=tls, profile=profile)
    )
    print(json.dumps(found.to_fields(), indent=1), flush=True)


if __name__ == "__main__":
    main()
