"""One deployment with a light job of 2 x 2 ranks that misbehave when told, and what must hold."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError
from coordinator.core.model import Severity, Snapshot
from coordinator.core.view import JobView, NodeView
from lab import Lab
from lab.deployment import STAGING, Deployment
from lab.host import Host
from tests.support.jobs import job_of

PROGRAMS = Path(__file__).with_name("programs")
PAIR = str(PROGRAMS / "pair.py")
JOB = "pair"
NODES = ("n0", "n1")
RANKS_PER_NODE = 2
RANKS = range(len(NODES) * RANKS_PER_NODE)
WAIT_S = 60.0  # of anything that surely comes; the machine may be busy
POLL_S = 0.05
AHEAD = 5  # steps after which a rank is moving for certain
POLICY = ("--lease", "3s", "--policy", "margin_s=2s", "--policy", "adopt_s=15s")


async def until(what: str, look: Callable[[], Awaitable[Any]], wait_s: float = WAIT_S) -> Any:
    """Look again and again until the answer is true; return it."""
    deadline = time.monotonic() + wait_s
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {wait_s:g} s"
        await asyncio.sleep(POLL_S)


class Action:
    """A checkpoint or restore that is followed in the background."""

    def __init__(self, events: AsyncGenerator[ActionEvent, None]) -> None:
        self.events: list[ActionEvent] = []
        self._task = asyncio.create_task(self._follow(events))

    async def _follow(self, events: AsyncGenerator[ActionEvent, None]) -> None:
        async for event in events:
            self.events.append(event)

    async def reached(self, state: str) -> str:
        """Wait for a state; return the action's id."""

        async def seen() -> bool:
            if self._task.done() and not self._saw(state):
                await self.ended()  # raises what it ended by
            return self._saw(state)

        await until(state, seen)
        return self.events[0].action

    def _saw(self, state: str) -> bool:
        return any(event.state == state for event in self.events)

    async def ended(self) -> ActionEvent:
        """The last event; raises what the action failed by."""
        async with asyncio.timeout(WAIT_S):
            await self._task
        return self.events[-1]

    async def failed(self) -> AllstopError:
        """What the action failed by."""
        try:
            last = await self.ended()
        except AllstopError as error:
            return error
        raise AssertionError(f"it did not fail: {last.state}, {last.reason}")


@dataclass
class Pair:
    """The job on n0 and n1 (and hosts beside them), driven as an operator drives it."""

    lab: Lab
    root: Path
    criu: str
    policy: Sequence[str] = POLICY
    env: Mapping[str, str] = field(default_factory=dict)  # of the shims beside workers, and theirs
    options: Sequence[str] = ()  # further ones of every shim
    plane_env: Mapping[str, str] = field(default_factory=dict)  # of the coordinator
    deployment: Deployment = field(init=False)
    client: OperatorClient = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.deployment = Deployment(self.lab, self.root)
        self.shared = self.root / "job"

    # -- its life ------------------------------------------------------------------------------

    async def start(self, *, spares: tuple[str, ...] = ()) -> None:
        """Start everything and wait until every rank steps."""
        for name in ("tell", "said", "steps", "criu"):
            (self.shared / name).mkdir(parents=True)
        shims_env = self.deployment.env
        self.deployment.env = {**shims_env, **self.plane_env}
        self.deployment.start_control_plane(*self.policy)
        self.deployment.env = shims_env
        for node in NODES:
            self.start_worker(node)
        for name in spares:
            self.start_spare(name)
        self.client = OperatorClient([self.deployment.socket])
        self._stack.push_async_callback(self.client.close)
        await until("the first steps", self._all_step)
        await until("the coordinator's word of them", self._all_told)

    async def stop(self) -> None:
        """Close the client; what else there is ends with the lab."""
        await self._stack.aclose()

    def start_worker(self, node: str) -> None:
        """The job's worker of that node."""
        worker = NODES.index(node)
        hosts = ",".join(self.host(name).address for name in NODES)
        argv = [sys.executable, PAIR, "worker", str(worker), str(RANKS_PER_NODE), hosts]
        self.deployment.options = ("--criu", str(self.criu_of(node)), *self.options)
        self.deployment.start_worker(
            self.host(node),
            JOB,
            workers=len(NODES),
            worker=worker,
            argv=[*argv, str(self.shared)],
            env=self.env,
        )

    def start_spare(self, node: str) -> None:
        """A shim without a worker."""
        self.deployment.options = ("--criu", str(self.criu_of(node)), *self.options)
        self.deployment.start_spare(self.host(node), self.env)

    async def fit(self) -> bool:
        """Whether the next test can use it: everything runs and every rank steps."""
        processes = [self.deployment.plane, *(self.deployment.shims[node] for node in NODES)]
        if any(process is None or process.poll() is not None for process in processes):
            return False
        try:
            await self.moves(wait_s=10.0)
            await until("that nothing speaks against a checkpoint", self.no_findings, 15.0)
        except (AssertionError, AllstopError):
            return False
        return True

    # -- what misbehaves -----------------------------------------------------------------------

    def host(self, node: str) -> Host:
        return self.lab.hosts[node]

    def tell(self, rank: int, *words: str) -> None:
        """Have a rank do something from its next step on."""
        (self.shared / "said" / str(rank)).unlink(missing_ok=True)  # its answer to earlier words
        temporary = self.shared / f"tell.{rank}"
        temporary.write_text(" ".join(words))
        temporary.replace(self.shared / "tell" / str(rank))

    async def stall(self, rank: int) -> None:
        """Have a rank stay where it is until `untell`; the others wait for it in the same step."""
        self.tell(rank, "stall")
        assert await self.said(rank) == "stall"

    def untell(self, rank: int) -> None:
        """Have it behave again."""
        (self.shared / "tell" / str(rank)).unlink(missing_ok=True)

    async def said(self, rank: int) -> str:
        """What the rank said to that, once."""
        path = self.shared / "said" / str(rank)

        async def there() -> bool:
            return path.exists()

        await until(f"rank {rank}'s answer", there)
        text = path.read_text()
        path.unlink()
        return text

    def criu_of(self, node: str) -> Path:
        """The program that this node's shim takes for CRIU; made when it is not there."""
        path = self.shared / "criu" / node
        if not path.exists():
            wrapper, tell = PROGRAMS / "criu.sh", self.shared / "criu" / f"{node}.tell"
            path.write_text(f'#!/bin/sh\nexec {wrapper} {tell} {self.criu} "$@"\n')
            path.chmod(0o755)
        return path

    def tell_criu(self, node: str, *words: str) -> None:
        """What happens to the dumps of a node from now on; see programs/criu.sh."""
        (self.shared / "criu" / f"{node}.tell").write_text(" ".join(words) + "\n" if words else "")

    def behave(self) -> None:
        """Nobody is told to misbehave any more."""
        for rank in RANKS:
            self.untell(rank)
        for node in NODES:
            self.tell_criu(node)

    # -- what is seen --------------------------------------------------------------------------

    async def job(self, name: str = JOB) -> JobView | None:
        """The job as `allstop jobs` shows it; None while it is not known or nobody leads."""
        return await job_of(self.client, name)

    async def node(self, name: str) -> NodeView | None:
        """The node as `allstop nodes` shows it."""
        try:
            return next((v for v in await self.client.nodes() if v.facts.node == name), None)
        except AllstopError:
            return None

    async def no_findings(self) -> bool:
        """Whether the coordinator knows nothing that speaks against a checkpoint."""
        view = await self.job()
        found = [one for worker in view.workers for one in worker.findings] if view else []
        return view is not None and all(one.severity is Severity.WARN for one in found)

    def steps(self) -> dict[int, int]:
        """The last step of each rank, as the rank itself wrote it."""
        paths = {rank: self.shared / "steps" / str(rank) for rank in RANKS}
        return {rank: int(path.read_text()) for rank, path in paths.items() if path.exists()}

    async def pid_of(self, rank: int) -> int:
        """The rank's pid on its node."""
        view = await self.job()
        assert view is not None
        return next(r.pid for worker in view.workers for r in worker.ranks if r.rank == rank)

    async def _all_step(self) -> bool:
        return len(self.steps()) == len(RANKS) and min(self.steps().values()) > AHEAD

    async def _all_told(self) -> bool:
        view = await self.job()
        ranks = [rank for worker in view.workers for rank in worker.ranks] if view else []
        return len(ranks) == len(RANKS) and all(rank.boundary > 0 for rank in ranks)

    async def moves(self, wait_s: float = WAIT_S) -> None:
        """Every rank takes further steps."""
        before = self.steps()

        async def ahead() -> bool:
            now = self.steps()
            return all(now[rank] >= before[rank] + AHEAD for rank in RANKS)

        await until(f"every rank beyond {before}", ahead, wait_s)

    def stopped_on(self, node: str) -> list[int]:
        """Processes of the node that are stopped."""
        lines = self.host(node).run(["sh", "-c", "cat /proc/[0-9]*/stat"], check=False).stdout
        fields = [(line.split()[0], line.rpartition(")")[2].split()) for line in lines.splitlines()]
        return [int(pid) for pid, (state, *_) in fields if state in "Tt"]

    def commands_on(self, node: str) -> str:
        """Every command line of the node."""
        return self.host(node).run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout

    def ranks_on(self, node: str) -> int:
        """How many ranks the node has as processes, running or not."""
        return self.commands_on(node).count("pair.py rank")

    def left_on(self, node: str) -> list[str]:
        """What an attempt must not leave on a node: locks, stopped tasks, staging, CRIU."""
        host = self.host(node)
        tables = host.run(["nft", "list", "tables"]).stdout.split("\n")
        places = ["find", str(STAGING), "-mindepth", "3", "-maxdepth", "3"]
        staged = host.run([*places, "!", "-execdir", "test", "-e", "{}/kept", ";"]).stdout
        left = [table for table in tables if "allstop" in table]
        left += [f"stopped: {pid}" for pid in self.stopped_on(node)]
        left += [f"staged: {line}" for line in staged.split("\n") if line]
        return left + (["a criu runs"] if "--leave-running" in self.commands_on(node) else [])

    async def unpublished(self) -> set[str]:
        """What is in the image store and in no snapshot, and the other way round."""
        store = self.deployment.store
        found = {path.name for path in store.glob(f"{JOB}/*") if any(path.iterdir())}
        found |= {path.name for path in (store / "partial").iterdir()}
        return found ^ {one.snapshot for one in (await self.client.snapshots(JOB)).snapshots}

    # -- what is done and must hold ------------------------------------------------------------

    def checkpoint(self, *, deadline_s: float = 0.0) -> Action:
        """Begin a checkpoint."""
        return Action(self.client.checkpoint(JOB, deadline_s=deadline_s))

    async def snapshot(self) -> Snapshot:
        """Take a checkpoint that must commit."""
        last = await self.checkpoint().ended()
        assert last.snapshot is not None, (last.state, last.reason)
        return last.snapshot

    async def restore(self, snapshot: str = "") -> ActionEvent:
        """Put a snapshot back, which must work, and see the job move."""
        last = await Action(self.client.restore(JOB, snapshot)).ended()
        assert last.state == "RUNNING", (last.state, last.reason)
        await self.moves()
        return last

    async def nothing_left(self, nodes: tuple[str, ...] = NODES) -> None:
        """Neither lock nor stopped task nor staged or published images; at once."""
        assert {node: self.left_on(node) for node in nodes} == {node: [] for node in nodes}
        assert await self.unpublished() == set()

    async def went_on(self, failure: AllstopError | None = None) -> None:
        """The job goes on as if nothing had been tried, and its next checkpoint commits."""
        self.behave()
        await self.moves()
        await self.nothing_left()
        if failure is not None:
            assert failure.where.job == JOB, failure.to_fields()
        await until("that nothing speaks against a checkpoint", self.no_findings)
        taken = await self.snapshot()
        assert {rank.boundary for worker in taken.workers for rank in worker.ranks} == {taken.step}
        await self.moves()
        await self.nothing_left()

    async def aborted(self, action: str, *words: str) -> str:
        """`allstop show` says ABORTED and why, in these words; return all of it."""
        shown = await self.client.show(action)
        assert shown.snapshot is None
        assert shown.attempt is not None
        assert shown.attempt.state == "ABORTED"
        assert shown.attempt.failure is not None
        failure = shown.attempt.failure
        told = "\n".join((shown.attempt.reason, failure.what, *failure.details, failure.advice))
        for word in words:
            assert word in told, told
        return told

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one of allstop's processes: `control` or a node's shim."""
        plane = self.deployment.plane
        host = self.lab.control if name == "control" else self.host(name)
        process = plane if name == "control" else self.deployment.shims[name]
        assert process is not None
        os.kill(host.pid_of(process), number)


async def heard(pair: Pair, node: str, words: str) -> None:
    """Wait for words of a worker in its shim's log, which follows its output a moment behind."""

    async def told() -> bool:
        return words in pair.deployment.log(node).read_text()

    await until(f"{words!r} of {node}", told)
