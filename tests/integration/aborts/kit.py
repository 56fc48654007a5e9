"""A patient: the pair of `badluck` with short deadlines and tools that stand still when told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError
from coordinator.core.model import Phase
from tests.integration.badluck.kit import (
    AHEAD,
    JOB,
    NODES,
    RANKS,
    RANKS_PER_NODE,
    WAIT_S,
    Action,
    Pair,
    until,
)  # fmt: skip

PROGRAMS = Path(__file__).with_name("programs")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
SECONDS = {  # the deadline of each phase: an idle machine needs a tenth of it
    Phase.HOLD: 3, Phase.PARK: 3, Phase.DUMP: 4, Phase.RESUME: 3, Phase.PERSIST: 4,
    Phase.FETCH: 3, Phase.CLEAR: 3, Phase.RESTORE: 4, Phase.RELEASE: 3, Phase.UNDO: 2,
}  # fmt: skip
MARGIN_S = 1
ADMIT_S = 3  # a hold of RESTORE outlives it by this, for the record that the job is released
NAMES = {Phase.RESTORE: "rebuild"}
POLICY = (
    *("--lease", "2s", "--policy", f"margin_s={MARGIN_S}s", "--policy", "adopt_s=8s"),
    *("--policy", f"admit_s={ADMIT_S}s"),
    *(
        word
        for phase, seconds in SECONDS.items()
        for word in ("--policy", f"{NAMES.get(phase, phase.value.lower())}_s={seconds}s")
    ),
)
STATES = {
    Phase.HOLD: "HOLDING", Phase.PARK: "PARKING", Phase.DUMP: "DUMPING",
    Phase.PERSIST: "PERSISTING", Phase.FETCH: "FETCHING", Phase.CLEAR: "CLEARING",
    Phase.RESTORE: "RESTORING", Phase.RELEASE: "RELEASING",
}  # fmt: skip
LET_GO_S = 1.0  # beyond the phase's deadline
SLACK_S = 2.0  # of the looks, on a busy machine
STILL_S = 0.4  # no rank steps for so long: they are held
LOOK_PROCESSES = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <"$process/cmdline" | grep -q '[p]air.py' && cut -d ' ' -f 1,22 "$process/stat"
done 2>/dev/null
true
"""


@dataclass(frozen=True)
class Condition:
    """What of the job an operation that fails must not change."""

    processes: dict[str, tuple[str, ...]]  # of each node: pid and start time
    connections: dict[str, tuple[str, ...]]  # of each node, established
    steps: dict[int, int]


@dataclass
class Patient(Pair):
    """The job on n0 and n1; each phase can be made to last until `go`."""

    policy: Sequence[str] = POLICY
    frozen: bool = False

    # -- its life ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before the lab is made: a store that can hang, and an nft that can wait."""
        nft = shutil.which("nft") or shutil.which("nft", path=SBIN)
        (self.shared / "bin").mkdir(parents=True)
        wrapper = self.shared / "bin" / "nft"
        wrapper.write_text(f'#!/bin/sh\nexec {PROGRAMS / "nft.sh"} {nft} "$@"\n')
        wrapper.chmod(0o755)

    def start_worker(self, node: str) -> None:
        self.env = self.env_of(node)
        super().start_worker(node)

    def start_spare(self, node: str) -> None:
        self.env = self.env_of(node)
        super().start_spare(node)

    def env_of(self, node: str) -> dict[str, str]:
        """Of the node's shim, and so of its worker."""
        return {
            "PAIR_LOOSE": "1",
            "PATH": f"{self.shared / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "NFT_TELL": str(self.nft_of(node)),
        }

    def nft_of(self, node: str) -> Path:
        """While this file exists, the node's nft waits."""
        return self.shared / f"nft.{node}"

    def start_plane(self) -> None:
        """The control plane again, after it was killed."""
        self.deployment.start_control_plane(*self.policy)

    async def whole(self) -> None:
        """The coordinator knows the job, both nodes and every rank."""

        async def seen() -> bool:
            view = await self.job()
            ranks = [rank for worker in view.workers for rank in worker.ranks] if view else []
            return view is not None and view.state == "running" and len(ranks) == len(RANKS)

        await until("the job as it was", seen)

    # -- a phase that lasts --------------------------------------------------------------------

    async def checkpoint_in(self, phase: Phase, *, stop: bool = False) -> Action:
        """A checkpoint that stays in this phase until `go`: n0 is through with it, n1 is not."""
        if phase is Phase.HOLD:
            self.nft_of("n1").touch()
        elif phase is Phase.PARK:
            await self.stall(2)
        elif phase in (Phase.DUMP, Phase.PERSIST):
            self.tell_criu("n1", "wait")
        attempt = Action(self.client.checkpoint(JOB, stop=stop))
        if phase is Phase.PERSIST:
            await attempt.reached(STATES[Phase.DUMP])
            self.freeze_store()
            self.behave()
        await attempt.reached(STATES[phase])
        await (self.stands() if stop or phase is not Phase.PERSIST else self.moves())
        if phase is Phase.DUMP:
            await until("the dump of n0", lambda: self.dumped("n0"))
        return attempt

    async def restore_in(self, phase: Phase) -> Action:
        """A restore that stays in this phase until `go`: n0 is through with it, n1 is not."""
        if phase is Phase.FETCH:
            self.block_image()
        elif phase is Phase.CLEAR:
            self.nft_of("n1").touch()
        elif phase is Phase.RESTORE:
            self.tell_criu("n1", "wait-restore")
        elif phase is Phase.RELEASE:
            self.tell_criu("n0", "wait-restore")
        restore = Action(self.client.restore(JOB))
        if phase is Phase.RELEASE:  # what is left of it is too short to be caught on the way
            await restore.reached(STATES[Phase.RESTORE])
            await until("the ranks of n1", lambda: self._there("n1"))
            self.signal("n1", signal.SIGSTOP)
            self.behave()
        await restore.reached(STATES[phase])
        if phase in (Phase.CLEAR, Phase.RESTORE):
            wanted = 0 if phase is Phase.CLEAR else RANKS_PER_NODE
            await until(f"{phase} on n0", lambda: self._there("n0", wanted))
        return restore

    async def _there(self, node: str, wanted: int = RANKS_PER_NODE) -> bool:
        if wanted and len(self.stopped_on(node)) < wanted:
            return False
        return self.ranks_on(node) == wanted

    def go(self) -> None:
        """Nothing waits any more."""
        self.behave()
        for node in NODES:
            self.nft_of(node).unlink(missing_ok=True)
        self.unblock_image()
        self.thaw_store()

    def freeze_store(self) -> None:
        """Every write to the store waits in the kernel from now on, and no signal ends it."""
        subprocess.run(["fsfreeze", "-f", self.deployment.store], check=True, timeout=20)
        self.frozen = True

    def thaw_store(self) -> None:
        if self.frozen:
            subprocess.run(["fsfreeze", "-u", self.deployment.store], check=True, timeout=20)
            self.frozen = False

    def block_image(self) -> None:
        """Whoever reads the newest snapshot of worker 1 waits in the kernel from now on."""
        newest = max(
            self.deployment.store.glob(f"{JOB}/*/1"), key=lambda path: path.stat().st_mtime
        )
        manifest = newest / "manifest"
        manifest.rename(manifest.with_suffix(".kept"))
        os.mkfifo(manifest)

    def unblock_image(self) -> None:
        for kept in self.deployment.store.glob(f"{JOB}/*/1/*.kept"):
            fifo = kept.with_suffix("")
            held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # who waits in open(2) goes on
            kept.rename(fifo)
            os.close(held)  # and reads its end

    # -- what is seen --------------------------------------------------------------------------

    async def dumped(self, node: str) -> bool:
        """Whether no CRIU dumps there any more."""
        return "--leave-running" not in self.commands_on(node)

    async def attached(self) -> bool:
        """Whether both nodes have a stream to the leader."""
        views = [await self.node(node) for node in NODES]
        return all(view is not None and view.state == "attached" for view in views)

    def etcd_pid(self) -> str:
        """The control plane's own etcd, as its host numbers it."""
        look = "grep -lz -- '[-]-data-dir=' /proc/[0-9]*/cmdline"
        found = self.lab.control.run(["sh", "-c", look], check=False).stdout.split()
        pids = [path.split("/")[2] for path in found]
        assert len(pids) == 1, found
        return pids[0]

    async def stands(self) -> None:
        """Wait until no rank steps."""
        last, since = self.steps(), time.monotonic()

        async def still() -> bool:
            nonlocal last, since
            now = self.steps()
            if now != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since >= STILL_S

        await until("that the ranks stand", still)

    def condition(self) -> Condition:
        """As it is now."""
        return Condition(
            {node: self._processes(node) for node in NODES},
            {node: self._connections(node) for node in NODES},
            self.steps(),
        )

    def _processes(self, node: str) -> tuple[str, ...]:
        return tuple(sorted(self.host(node).run(["sh", "-c", LOOK_PROCESSES]).stdout.split("\n")))

    def _connections(self, node: str) -> tuple[str, ...]:
        found = self.host(node).run(["ss", "-Htn", "state", "established"]).stdout.splitlines()
        ends = (" ".join(line.split()[2:4]) for line in found)
        return tuple(sorted(each for each in ends if ":7600" in each))

    async def moved(self, held: dict[int, int], lost: Collection[int] = ()) -> None:
        """Wait until every rank but the lost ones has stepped on from where it was held."""
        living = set(RANKS) - set(lost)

        async def ahead() -> bool:
            now = self.steps()
            return all(now[rank] >= held[rank] + AHEAD for rank in living)

        await until(f"steps beyond {held}", ahead)

    async def as_before(self, before: Condition, lost: Collection[int] = ()) -> None:
        """The same processes and connections, but for the lost ranks', and further steps."""
        await self.moved(before.steps, lost)
        now = self.condition()
        for node in NODES:
            gone = set(before.processes[node]) - set(now.processes[node])
            assert set(now.processes[node]) <= set(before.processes[node]), (before, now)
            assert len(gone) == len([r for r in lost if r // RANKS_PER_NODE == int(node[1])]), now
        if not lost:
            assert now.connections == before.connections

    async def clean_nodes(self) -> None:
        """Nothing is left of it on the nodes."""

        async def nothing() -> bool:
            return not any(self.left_on(node) for node in NODES)

        await until("clean nodes", nothing)

    async def clean(self) -> None:
        """Nothing is left of it, neither on the nodes nor in the store."""
        await self.clean_nodes()

        async def published() -> bool:
            return await self.unpublished() == set()

        await until("a clean store", published)

    async def commits(self) -> None:
        """Nothing is left of what failed, and the next checkpoint is a snapshot of one step."""
        self.go()
        await self.clean()
        await until("that nothing speaks against a checkpoint", self.no_findings)
        taken = await self.snapshot()
        assert {rank.boundary for worker in taken.workers for rank in worker.ranks} == {taken.step}


@dataclass(frozen=True)
class Clock:
    """From the moment a phase was reached, until the others run again."""

    phase: Phase
    began: float = field(default_factory=time.monotonic)

    def check(self, extra_s: float = 0.0) -> None:
        """They did within the phase's deadline and a second."""
        took_s = time.monotonic() - self.began
        limit_s = SECONDS[self.phase] + LET_GO_S + extra_s
        assert took_s < limit_s + SLACK_S, f"{self.phase}: {took_s:.1f} s of {limit_s:.0f} s"


async def outcome(action: Action) -> ActionEvent | AllstopError:
    """How it ended, whichever way."""
    try:
        return await action.ended()
    except AllstopError as error:
        return error


async def eventually(
    what: str, look: Callable[[], Awaitable[bool]], wait_s: float = WAIT_S
) -> None:
    """As `until`, for a look that may fail while nobody leads."""

    async def tried() -> bool:
        try:
            return await look()
        except AllstopError:
            return False

    await until(what, tried, wait_s)
