"""One job in each phase, all under one leader: what the rows of the tables are about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError, LinkError, NotFound
from coordinator.core.model import Phase
from tests.integration.etcd_away.coordinators import CoordinatorProcess
from tests.integration.etcd_away.nodes import Node
from tests.integration.etcd_away.tables import PHASES
from tests.support.cluster import follow

JOB = "llm"
WORKERS = 2
ATTACHED_S = 40.0
POLL_S = 0.05
# where a job stands still; COMMIT begins as soon as PERSIST is let through
GATES = {
    "HOLD": Phase.HOLD,
    "PARK": Phase.PARK,
    "DUMP": Phase.DUMP,
    "PERSIST": Phase.PERSIST,
    "COMMIT": Phase.PERSIST,
    "FETCH": Phase.FETCH,
    "CLEAR": Phase.CLEAR,
    "RESTORE": Phase.RESTORE,
    "RELEASE": Phase.RELEASE,
}
RESTORES = frozenset({"ADMIT, restore", "FETCH", "CLEAR", "RESTORE", "RELEASE"})


@dataclass
class Case:
    """One job, the phase it is to stand in, and what its operator hears."""

    phase: str
    nodes: list[Node]
    events: list[ActionEvent] = field(default_factory=list)
    asking: asyncio.Task[str] | None = None  # its result: what the operator read at the end

    @property
    def job(self) -> str:
        """Its name."""
        return self.nodes[0].job

    @property
    def action(self) -> str:
        """Id of the attempt or restore; empty while nobody has heard of it."""
        return self.events[0].action if self.events else ""

    @property
    def restores(self) -> bool:
        """Whether it is a restore."""
        return self.phase in RESTORES

    def ask(self, client: OperatorClient) -> None:
        """Begin the checkpoint or the restore, and listen."""
        stream = client.restore(self.job) if self.restores else client.checkpoint(self.job)
        self.asking = asyncio.create_task(self._listen(stream))

    async def _listen(self, stream: Any) -> str:
        try:
            async for event in stream:
                self.events.append(event)
        except AllstopError as error:
            return f"{self._last_words()} {error}"
        return self._last_words()

    def _last_words(self) -> str:
        if not self.events:
            return ""
        last = self.events[-1]
        return f"{last.state}: {last.reason}" if last.last else ""

    async def in_place(self) -> None:
        """Wait until every node stands in the phase."""
        await asyncio.gather(*(node.gates.reached(GATES[self.phase]) for node in self.nodes))

    def open(self) -> None:
        """Let its drivers go on."""
        for node in self.nodes:
            node.gates.open()


@dataclass
class Stage:
    """All cases of one absence."""

    cases: dict[str, Case]
    client: OperatorClient

    async def ready(self) -> None:
        """Wait until every job runs; take the snapshots that restores need."""
        await until(self._all_running, ATTACHED_S)
        first = [case for case in self.cases.values() if case.restores or case.phase == "ADMIT"]
        went = await asyncio.gather(*(follow(self.client.checkpoint(case.job)) for case in first))
        for each in went:
            assert each.error is None, each.error

    async def _all_running(self) -> bool:
        with suppress(LinkError):  # nobody leads yet
            jobs = {view.job.job: view.state for view in await self.client.jobs()}
            return all(jobs.get(case.job) == "running" for case in self.cases.values())
        return False

    async def take_places(self) -> None:
        """Bring every case that has a gate to it."""
        gated = [case for case in self.cases.values() if case.phase in GATES]
        for case in gated:
            for node in case.nodes:
                node.gates.close(GATES[case.phase])
            case.ask(self.client)
        await asyncio.gather(*(case.in_place() for case in gated))

    def ask_new(self) -> None:
        """New requests, made while etcd is away."""
        for case in self.cases.values():
            if case.phase not in GATES:
                case.ask(self.client)

    async def outcome(self, case: Case) -> tuple[str, str]:
        """How it ended, and all that its operator has read, also when asking anew."""
        assert case.asking is not None
        heard = await case.asking
        if not case.action:
            return "never was", heard
        try:
            went = await follow(self.client.watch(case.action))
        except NotFound as error:
            return "never was", f"{heard} {error}"
        if isinstance(went.error, NotFound) and not went.events:
            return "never was", f"{heard} {went.error}"
        return went.last.state, f"{heard} {went.last.reason} {went.error or ''}"


async def until(condition: Any, within_s: float, what: str = "") -> None:
    """Ask again and again until it is true."""
    async with asyncio.timeout(within_s):
        while True:
            answer = condition()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def staged(folder: Path, *coordinators: CoordinatorProcess) -> AsyncIterator[Stage]:
    """Nodes and jobs for every phase, which know these coordinators."""
    addresses = [each.address for each in coordinators]
    published: dict[str, Any] = {}
    cases: dict[str, Case] = {}
    for phase in PHASES:
        job = phase.lower().replace(", ", "-")
        nodes = [Node(folder, job, number, WORKERS, published) for number in range(WORKERS)]
        cases[phase] = Case(phase, nodes)
    nodes = [node for case in cases.values() for node in case.nodes]
    try:
        async with OperatorClient(addresses) as client:
            for node in nodes:
                await node.start(addresses)
            stage = Stage(cases, client)
            await stage.ready()
            await stage.take_places()
            yield stage
            asking = [case.asking for case in cases.values() if case.asking is not None]
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    finally:
        for node in nodes:
            await node.stop()


@asynccontextmanager
async def job_at(folder: Path, *addresses: str) -> AsyncIterator[list[Node]]:
    """Two workers on two nodes that dial these coordinators."""
    published: dict[str, Any] = {}
    nodes = [Node(folder, JOB, number, 2, published) for number in range(2)]
    try:
        for node in nodes:
            await node.start(addresses)
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def running(client: OperatorClient) -> None:
    """Wait until the job runs under whoever leads."""

    async def runs() -> bool:
        with suppress(LinkError):  # nobody leads yet
            return [view.state for view in await client.jobs()] == ["running"]
        return False

    await until(runs, ATTACHED_S)
