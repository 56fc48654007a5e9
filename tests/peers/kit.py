"""A job of somebody else's package under allstop, in a lab, asked as an operator asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError
from coordinator.core.model import Severity, Snapshot
from coordinator.core.view import JobView
from lab import Lab
from lab.demo.training import clean_environment, environment
from lab.deployment import Deployment
from tests.support.jobs import job_of, until

POLICY = ("--lease", "3s", "--policy", "adopt_s=8s")
NODES = ("n0", "n1")
READY_S = 90.0
END_S = 120.0
WORDS_CHARS = 4000


class Peer:
    """One job with a worker on n0 and on n1; further hosts are spares."""

    job = "peer"

    def __init__(self, lab: Lab, root: Path, criu: str) -> None:
        self.lab, self.shared = lab, root / "job"
        self.result = self.shared / "result.json"
        self.shared.mkdir(parents=True)
        self.deployment = Deployment(lab, root, options=("--criu", criu))
        self.client = OperatorClient([self.deployment.socket])
        self.workers = len(NODES)
        self.story: list[dict[str, Any]] = []  # of what was done, for the record

    def start(
        self,
        argvs: Sequence[Sequence[str]],
        envs: Sequence[Mapping[str, str]],
        workers: int = len(NODES),
    ) -> None:
        """A control plane, those workers, and shims without a worker on further hosts."""
        self.workers = workers
        self.deployment.start_control_plane(*POLICY)
        for worker, (argv, env) in enumerate(zip(argvs, envs, strict=False)):
            self.run(worker, argv, env)
        for node in self.lab.hosts:
            if node not in NODES:
                self.deployment.start_spare(self.lab.hosts[node])

    def run(self, worker: int, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """`allstop shim run` of one worker."""
        self.deployment.start_worker(
            self.lab.hosts[NODES[worker]],
            self.job,
            workers=self.workers,
            worker=worker,
            argv=argv,
            env={**environment(), **env},
        )

    def words(self) -> str:
        """The end of what everybody printed."""
        logs = sorted((self.deployment.root / "logs").glob("*.log"))
        return "\n".join(f"--- {log.stem}\n{log.read_text()[-WORDS_CHARS:]}" for log in logs)

    async def view(self) -> JobView | None:
        """The job as `allstop jobs` shows it; None while it is not known or nobody leads."""
        return await job_of(self.client, self.job)

    def boundaries(self, view: JobView | None) -> dict[int, int]:
        """The step of each rank, by rank."""
        workers = view.workers if view else ()
        return {rank.rank: rank.boundary for one in workers for rank in one.ranks}

    async def steps(self, ranks: int, beyond: int) -> dict[int, int]:
        """Wait until all ranks are known and further than that."""

        async def there() -> dict[int, int]:
            found = self.boundaries(await self.view())
            ahead = len(found) == ranks and min(found.values()) > beyond
            return found if ahead else {}

        try:
            found: dict[int, int] = await until(f"step {beyond} of {ranks} ranks", there, READY_S)
        except AssertionError as late:
            view = await self.view()
            raise AssertionError(f"{late}: {self.boundaries(view)}\n{self.words()}") from None
        return found

    async def printed(self, node: str, words: str) -> None:
        """Wait for words of a worker."""
        log = self.deployment.log(node)
        await until(f"{words!r} of {node}", lambda: words in log.read_text(), READY_S)

    async def unfit(self) -> list[str]:
        """What refuses a checkpoint now."""
        view = await self.view()
        found = [one for worker in view.workers for one in worker.findings] if view else []
        return [f"{one.code}: {one.text}" for one in found if one.severity is Severity.REFUSE]

    async def snapshot(self) -> Snapshot:
        """A checkpoint that must commit."""
        last = await self.follow(self.client.checkpoint(self.job))
        assert last.snapshot is not None, (last.state, last.reason, self.words())
        workers = last.snapshot.workers
        self.story.append(
            {
                "did": "checkpoint",
                "step": last.snapshot.step,
                "held_ms": max(worker.held_ms for worker in workers),
                "image_bytes": [worker.image_bytes for worker in workers],
                "connections": [len(worker.connections) for worker in workers],
            }
        )
        return last.snapshot

    def saved_at(self, snapshot: Snapshot) -> dict[int, int]:
        """The step of each rank in the snapshot."""
        return {rank.rank: rank.boundary for one in snapshot.workers for rank in one.ranks}

    async def restore(self, *, old_run_ended: bool = False) -> ActionEvent:
        """A restore of the newest snapshot that must work."""
        last = await self.follow(self.client.restore(self.job, old_run_ended=old_run_ended))
        assert last.state == "RUNNING", (last.state, last.reason, self.words())
        assert last.restore is not None
        assert last.restore.plan is not None
        moves = [(each.from_node, each.to_node) for each in last.restore.plan.placements]
        took = {"did": "restore", "took_ms": last.elapsed_ms}
        self.story.append(took | {"moves": [f"{old} to {new}" for old, new in moves]})
        return last

    async def follow(self, events: AsyncGenerator[ActionEvent, None]) -> ActionEvent:
        """The last event; what the action failed by comes with everybody's words."""
        last = None
        try:
            async for event in events:
                last = event
        except AllstopError as error:
            error.add_note(self.words())
            raise
        assert last is not None
        return last

    def lose(self, *nodes: str) -> None:
        """Pull the plug."""
        for node in nodes:
            self.lab.hosts[node].power_off()

    async def is_lost(self, *nodes: str) -> None:
        """Wait until the coordinator knows it."""

        async def lost() -> bool:
            views = {view.facts.node: view.state for view in await self.client.nodes()}
            return all(views.get(node) == "lost" for node in nodes)

        await until(f"the loss of {nodes}", lost)

    async def moves_twice(self) -> None:
        """Saved at one step, n1 lost; saved again, and nobody left of where it was."""
        await self.steps(2, 20)
        assert await self.unfit() == []

        first = await self.snapshot()
        assert (first.world_size, self.saved_at(first)) == (2, {0: first.step, 1: first.step})
        await self.steps(2, first.step + 10)  # it goes on, not only once it is restored
        self.lose("n1")
        await self.is_lost("n1")
        await self.restore()
        await self.steps(2, first.step + 10)

        second = await self.snapshot()
        assert second.step > first.step
        self.lose("n0", "n2")
        await self.is_lost("n0", "n2")
        last = await self.restore(old_run_ended=True)  # nobody is left who could say so
        assert last.restore is not None
        assert last.restore.plan is not None
        assert {place.to_node for place in last.restore.plan.placements} == {"n3", "n4"}

    async def ended(self) -> dict[str, Any]:
        """What the job wrote when it was done."""
        try:
            await until("the result", lambda: whole(self.result), END_S)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.words()}") from None
        found: dict[str, Any] = json.loads(self.result.read_text())
        return found


def whole(path: Path) -> bool:
    """Whether a result is there to its last line."""
    return path.exists() and path.read_text().endswith("\n")


def undisturbed(
    make_lab: Callable[..., Lab],
    root: Path,
    argvs: Callable[[Lab, Path], Sequence[Sequence[str]]],
    envs: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """The same commands with no allstop anywhere; blocks until they end."""
    root.mkdir()
    lab = make_lab(NODES)
    runs = []
    for node, argv, env in zip(NODES, argvs(lab, root), envs, strict=True):
        with (root / f"{node}.log").open("wb") as log:
            runs.append(
                lab.hosts[node].popen(
                    argv,
                    env={**clean_environment(), **environment(), **env},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    for node, run in zip(NODES, runs, strict=True):
        code = run.wait(END_S)
        assert code == 0, (root / f"{node}.log").read_text()[-WORDS_CHARS:]
    lab.close()
    found: dict[str, Any] = json.loads((root / "result.json").read_text())
    return found
