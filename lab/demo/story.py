"""The demo, act by act. Every number in its report is measured here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError, SetupError
from coordinator.core.model import AttemptRecord, RestoreRecord, Snapshot
from lab.demo.options import JOB, DemoOptions
from lab.demo.report import DemoReport, Move, SnapshotSummary
from lab.demo.stage import Stage

START_TIMEOUT_S = 240.0  # two cores that others share import torch slowly
LOSS_TIMEOUT_S = 60.0
TRAIN_TIMEOUT_S = 600.0
POLL_S = 0.05
SAY_EVERY_S = 3.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Played:
    """What the acts with allstop came to."""

    attempt: AttemptRecord
    snapshot: Snapshot
    restored: RestoreRecord
    connections_kept: int
    lost_at_step: int
    lost_after_ms: int
    recovery_ms: int
    outage_ms: int
    verified_workers: int


@dataclass
class Story:
    """One run of the demo on a stage that is set up."""

    options: DemoOptions
    stage: Stage
    say: Say

    async def play(self) -> Played:
        """All acts with allstop, once started; raises AllstopError naming what went wrong."""
        async with OperatorClient(self.stage.coordinators, tls=self.stage.tls) as client:
            await self.reach(client, self.options.checkpoint_at, START_TIMEOUT_S)
            attempt, snapshot = await self.checkpoint(client)
            await self.reach(client, snapshot.step + self.options.train_on, TRAIN_TIMEOUT_S)
            lost_at_step, killed_at, noticed_at = await self.lose_a_node(client)
            restored, recovery_ms = await self.restore(client)
            kept = self.connections_kept(snapshot, restored)
            await self.reach(client, lost_at_step + 1, TRAIN_TIMEOUT_S)
            outage_s = time.monotonic() - killed_at
            verified = await self.verify(client)
            await self.reach_end(client)
        return Played(
            attempt=attempt,
            snapshot=snapshot,
            restored=restored,
            connections_kept=kept,
            lost_at_step=lost_at_step,
            lost_after_ms=round((noticed_at - killed_at) * 1000),
            recovery_ms=recovery_ms,
            outage_ms=round(outage_s * 1000),
            verified_workers=verified,
        )

    def report(self, played: Played, undisturbed: dict[str, Any]) -> DemoReport:
        """What was measured, and whether the job ended as the `undisturbed` run did."""
        ended, snapshot = self.stage.result(), played.snapshot
        assert ended is not None, "reach_end has seen it"
        return DemoReport(
            world_size=snapshot.world_size,
            snapshot=summary_of(snapshot),
            killed_node=self.options.killed,
            moved=moves_of(played.restored),
            connections_kept=played.connections_kept,
            steps_repeated=played.lost_at_step - snapshot.step,
            bit_exact=same_bits(ended, undisturbed),
            final_loss=ended["final_loss"],
            pause_ms=played.attempt.pause_ms,
            raw_dump_ms=max(worker.dump_ms for worker in snapshot.workers),
            recovery_ms=played.recovery_ms,
            lost_after_ms=played.lost_after_ms,
            outage_ms=played.outage_ms,
            cut=str(self.options.cut),
            digest=ended["digest"],
            undisturbed_digest=undisturbed["digest"],
            losses_compared=len(undisturbed["losses"]),
            verified_workers=played.verified_workers,
        )

    def start(self) -> None:
        """Control plane, spare shims, and torchrun below a shim on every busy node."""
        options = self.options
        self.stage.start()
        nodes = ", ".join(f"{name} {address}" for name, address in self.stage.addresses.items())
        self.say(f"{self.stage.about}: {nodes}")
        size = f"{options.nodes} x {options.ranks_per_node}"
        how = (
            f"torchrun {size} starts"
            if not options.own_trees
            else f"the shims start {size} ranks of"
        )
        self.say(f"{how} digits_ddp.py, which knows nothing of allstop")

    async def reach(self, client: OperatorClient, step: int, timeout_s: float) -> int:
        """Wait until the job has finished `step` steps; returns how many it has."""
        deadline = time.monotonic() + timeout_s
        seen, said = -1, time.monotonic()
        while time.monotonic() < deadline:
            seen = await self.step_of(client)
            if seen >= step:
                return seen
            self.check_processes()
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                self.say(f"  training, step {seen}" if seen > 0 else "  the job is starting")
            await asyncio.sleep(POLL_S)
        raise SetupError(
            f"the job is at step {seen}, step {step} was not reached in {timeout_s:.0f} s",
            details=self.stage.last_words(),
        )

    async def step_of(self, client: OperatorClient) -> int:
        """The job's last step; -1 while the control plane or the job is not there yet."""
        try:
            views = await client.jobs()
        except AllstopError:
            return -1
        return next((view.step for view in views if view.job.job == JOB), -1)

    async def checkpoint(self, client: OperatorClient) -> tuple[AttemptRecord, Snapshot]:
        """Take a checkpoint while the job trains."""
        last = await self.follow("checkpoint", client.checkpoint(JOB, cut=self.options.cut))
        if last is None or last.snapshot is None or last.attempt is None:
            raise SetupError(
                "the checkpoint did not end in a snapshot", details=self.stage.last_words()
            )
        return last.attempt, last.snapshot

    async def follow(
        self, verb: str, events: AsyncGenerator[ActionEvent, None]
    ) -> ActionEvent | None:
        """Say what happens to an action, each state once; returns the last event."""
        self.say(f"allstop {verb} {JOB}")
        last = None
        async with aclosing(events):
            async for event in events:
                if last is None or (last.state, last.reason) != (event.state, event.reason):
                    self.say(f"  {event.elapsed_ms:>6} ms  {event.state:<11} {event.reason}")
                last = event
        return last

    async def lose_a_node(self, client: OperatorClient) -> tuple[int, float, float]:
        """Pull the plug of one busy node; returns the job's last step, and two times."""
        killed = self.options.killed
        self.check_processes()
        last_step = await self.step_of(client)
        killed_at = time.monotonic()
        self.stage.power_off(killed)
        self.say(f"{killed} loses power at step {last_step}: shim, ranks and network are gone")
        deadline = killed_at + LOSS_TIMEOUT_S
        while time.monotonic() < deadline:
            nodes = {view.facts.node: view for view in await client.nodes()}
            if nodes[killed].state == "lost":
                self.say(f"  coordinator: {killed} is lost: {nodes[killed].reason}")
                # by now the survivors wait for the lost ranks, and have reported their last step
                return max(last_step, await self.step_of(client)), killed_at, time.monotonic()
            await asyncio.sleep(POLL_S)
        raise SetupError(f"{killed} was not noticed as lost in {LOSS_TIMEOUT_S:.0f} s")

    async def restore(self, client: OperatorClient) -> tuple[RestoreRecord, int]:
        """Put the snapshot back on the nodes that are left."""
        began = time.monotonic()
        last = await self.follow("restore", client.restore(JOB))
        recovery_ms = round((time.monotonic() - began) * 1000)
        if last is None or last.restore is None:
            raise SetupError("the restore did not end", details=self.stage.last_words())
        for placement in last.restore.plan.placements:
            self.say(f"  worker {placement.worker}: {placement.why}")
        return last.restore, recovery_ms

    async def verify(self, client: OperatorClient) -> int:
        """Have every snapshot of the job read again, byte for byte; returns how many workers were.

        Raises SetupError naming what is broken.
        """
        verified = 0
        for snapshot in (await client.snapshots(JOB)).snapshots:
            self.say(f"allstop verify {snapshot.snapshot}")
            last = None
            async with aclosing(client.verify(snapshot.snapshot)) as events:
                async for event in events:
                    last = event
            if last is None or last.broken or last.unread:
                told = (*last.broken, *last.unread) if last is not None else ()
                raise SetupError(
                    f"snapshot {snapshot.snapshot} is not whole in the image store",
                    details=tuple(map(str, told)),
                )
            self.say(f"  it is whole: {last.verified} workers read")
            verified += last.verified
        return verified

    def connections_kept(self, snapshot: Snapshot, restored: RestoreRecord) -> int:
        """Count the snapshot's connections between nodes that are established again."""
        moves = {move.old: move.new for move in restored.plan.addresses}
        records = {record.worker: record for record in snapshot.workers}
        kept = 0
        for placement in restored.plan.placements:
            now = established(self.stage.established(placement.to_node))
            for connection in records[placement.worker].connections:
                ends = (
                    moves.get(connection.local_address, connection.local_address),
                    connection.local_port,
                    moves.get(connection.remote_address, connection.remote_address),
                    connection.remote_port,
                )
                kept += ends in now
        return kept // 2  # each was counted at both of its ends

    async def reach_end(self, client: OperatorClient) -> None:
        """Wait until every worker has ended well."""
        deadline = time.monotonic() + TRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            view = next((view for view in await client.jobs() if view.job.job == JOB), None)
            if view is not None and view.state == "exited":
                failed = [worker for worker in view.workers if worker.exit_code != 0]
                if failed or self.stage.result() is None:
                    raise SetupError(
                        "the job failed after the restore", details=self.stage.last_words()
                    )
                return
            await asyncio.sleep(POLL_S)
        raise SetupError(
            f"the job did not end in {TRAIN_TIMEOUT_S:.0f} s", details=self.stage.last_words()
        )

    def check_processes(self) -> None:
        """Raise when the control plane or a shim ended too early."""
        ended = self.stage.ended_too_early()
        if ended:
            raise SetupError(
                f"{ended}, before the story had come to that",
                advice="a job that ended by itself trains longer with --epochs",
                details=self.stage.last_words(),
            )


def established(listing: str) -> set[tuple[str, int, str, int]]:
    """The TCP connections that `ss -Htn` lists, IPv4-mapped addresses as plain IPv4."""
    found = set()
    for line in listing.splitlines():
        ends = [field for field in line.split() if ":" in field][:2]
        if len(ends) == 2:
            (here, here_port), (there, there_port) = (end.rsplit(":", 1) for end in ends)
            found.add((plain(here), int(here_port), plain(there), int(there_port)))
    return found


def plain(address: str) -> str:
    """An address of `ss` without brackets, interface and IPv4-mapped prefix."""
    return address.strip("[]").split("%")[0].removeprefix("::ffff:")


def summary_of(snapshot: Snapshot) -> SnapshotSummary:
    """The snapshot as the report shows it."""
    ranks = sorted(
        (rank for worker in snapshot.workers for rank in worker.ranks), key=lambda rank: rank.rank
    )
    return SnapshotSummary(
        id=snapshot.snapshot,
        step=snapshot.step,
        rank_steps={str(rank.rank): rank.boundary for rank in ranks},
        bytes=snapshot.image_bytes,
        stored_bytes=snapshot.stored_bytes,
        shared_bytes=snapshot.shared_bytes,
    )


def moves_of(restored: RestoreRecord) -> tuple[Move, ...]:
    """The workers that changed their node."""
    return tuple(
        Move(
            worker=placement.worker,
            from_node=placement.from_node,
            from_address=placement.from_address,
            to_node=placement.to_node,
            to_address=placement.to_address,
        )
        for placement in restored.plan.placements
        if placement.to_node != placement.from_node
    )


def same_bits(ended: dict[str, Any], undisturbed: dict[str, Any]) -> bool:
    """Equal digests of all parameters and optimizer state, and every printed loss equal."""
    return all(
        ended[name] == undisturbed[name] for name in ("digest", "losses", "final_loss", "steps")
    )
