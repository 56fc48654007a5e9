"""The cluster under test, and how each part of it is started, broken and mended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.view import JobView
from coordinator.store.election import Election
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.reading import Reader
from lab import Lab
from lab.deployment import PORT, STAGING, Deployment
from lab.errors import LabError
from lab.etcd import EtcdCluster
from lab.host import Host
from tests.chaos.history import History
from tests.chaos.options import (
    BUSY,
    COORDINATORS,
    JOB,
    LEASE_S,
    MEMBERS,
    NODES,
    POLICY,
    RANKS,
    SPARES,
    STAGING_BYTES,
    START_S,
    ChaosOptions,
)
from tests.chaos.steps import Diaries
from tests.chaos.training import environment, torchrun

PROGRAMS = Path(__file__).with_name("programs")
POLL_S = 0.1
END_S = 40.0
LAST_WORDS_CHARS = 1500
ROOM_LEFT_BYTES = 8 << 20  # in a staging that is full


class NeverCame(Exception):
    """Something that must come did not come in time."""


async def until(
    what: str, look: Callable[[], Awaitable[Any]], wait_s: float, poll_s: float = POLL_S
) -> Any:
    """Look again and again until the answer is true and return it; raises NeverCame."""
    deadline = time.monotonic() + wait_s
    while not (found := await look()):
        if time.monotonic() >= deadline:
            raise NeverCame(f"{what} did not come within {wait_s:g} s")
        await asyncio.sleep(poll_s)
    return found


class World:
    """Three coordinators, three etcd members, two busy nodes and a spare, and the job on them."""

    def __init__(self, lab: Lab, root: Path, criu: str, options: ChaosOptions, history: History):
        self.lab = lab
        self.root = root
        self.criu = criu
        self.options = options
        self.history = history
        self.etcd = EtcdCluster(lab, root / "etcd", MEMBERS)
        coordinators = [f"{lab.hosts[name].address}:{PORT}" for name in COORDINATORS]
        self.deployment = Deployment(lab, root, coordinators=coordinators)
        self.diaries = Diaries(root / "steps", RANKS)
        self.kv = EtcdKeyValue(EtcdOptions(self.etcd.sockets))
        self.reader = Reader(self.kv)
        self.client = OperatorClient([self.deployment.replica_socket(n) for n in COORDINATORS])
        self.monitors: dict[str, subprocess.Popen[Any]] = {}
        self.ghosts: dict[str, subprocess.Popen[Any]] = {}

    # -- its life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and wait until every rank steps; raises NeverCame."""
        for name in ("criu", "logs", "locks"):
            (self.root / name).mkdir()
        for name in MEMBERS:
            self.etcd.start(name)
        await until("etcd", self.etcd_answers, START_S)
        for name in COORDINATORS:
            self.start_coordinator(name)
        await until("a leader", self.leads, START_S)
        for name in NODES:
            self.furnish(name)
        for name in SPARES:
            self.start_spare(name)
        for index, name in enumerate(BUSY):
            self.start_worker(name, index)
        await until("the first steps", self._steps_begin, START_S)
        await until("the coordinator's word of them", self.settled, START_S)

    async def close(self) -> None:
        """Close the clients; what else there is ends with the lab."""
        await self.client.close()
        await self.kv.close()

    def start_coordinator(self, name: str) -> None:
        """Start a coordinator, or start it again."""
        policy = [word for name, n in POLICY.items() for word in ("--policy", f"{name}={n}s")]
        self.deployment.start_replica(
            self.lab.hosts[name], self.etcd.endpoints, "--lease", f"{LEASE_S:g}s", *policy
        )

    def furnish(self, name: str) -> None:
        """Give a node a staging of limited size, and see when its network is locked."""
        host = self.host(name)
        host.run(["mkdir", "-p", str(STAGING)])
        size = f"size={STAGING_BYTES},mode=0700"
        host.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(STAGING)])
        stamp = [sys.executable, "-EsSP", str(PROGRAMS / "locks.py")]
        with (self.root / "locks" / name).open("ab") as diary:
            self.monitors[name] = host.popen(stamp, stdout=diary, stderr=subprocess.DEVNULL)

    def start_spare(self, name: str) -> None:
        """A shim without a worker; what an earlier one left on the node it ends."""
        self._choose_criu(name)
        self.deployment.start_spare(self.host(name))

    def start_worker(self, name: str, worker: int) -> None:
        """A shim with a worker of the job."""
        self._choose_criu(name)
        self.deployment.start_worker(
            self.host(name),
            JOB,
            workers=len(BUSY),
            worker=worker,
            argv=self.argv(worker),
            env=environment(),
        )

    def argv(self, worker: int) -> list[str]:
        """The job's own command on the node of that worker."""
        pause = str(self.options.pause_s)
        return torchrun(self.options, self.lab, worker, self.diaries.directory, pause)

    def _choose_criu(self, name: str) -> None:
        path = self.root / "criu" / f"{name}.sh"
        if not path.exists():
            tell, diary = self.root / "criu" / f"{name}.tell", self.root / "criu" / name
            words = f"{PROGRAMS / 'criu.sh'} {tell} {diary} {self.criu}"
            path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            path.chmod(0o755)
        self.deployment.options = ("--criu", str(path))

    def ended(self) -> dict[str, int]:
        """Exit codes of what has ended by itself: whatever a fault has killed was started again."""
        kinds = (self.deployment.shims, self.deployment.replicas, self.etcd.processes)
        processes = [each for kind in kinds for each in kind.items()]
        return {name: int(code) for name, p in processes if (code := p.poll()) is not None}

    def start_again(self, name: str) -> None:
        """As a service manager would; a shim comes back as a spare."""
        if name in self.deployment.replicas:
            self.start_coordinator(name)
        elif name in self.etcd.processes:
            self.etcd.start(name)
        else:
            self.start_spare(name)

    def last_words(self, name: str) -> str:
        """The end of what one of allstop's processes printed."""
        log = self.deployment.log(name)
        return log.read_text(errors="replace")[-LAST_WORDS_CHARS:] if log.exists() else ""

    # -- breaking and mending ------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """The host of that name, as it is now."""
        return self.lab.hosts[name]

    def process(self, name: str) -> subprocess.Popen[Any]:
        """allstop's or etcd's process on that host."""
        for kind in (self.deployment.replicas, self.deployment.shims, self.etcd.processes):
            if name in kind:
                return kind[name]
        raise KeyError(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to it; one that has ended gets none."""
        with contextlib.suppress(LabError, ProcessLookupError):
            os.kill(self.host(name).pid_of(self.process(name)), number)

    def kill(self, name: str) -> None:
        """SIGKILL it and wait for its end."""
        self.signal(name, signal.SIGKILL)
        self.process(name).wait(20)

    def end(self, name: str) -> None:
        """SIGTERM, and wait for an orderly end."""
        self.signal(name, signal.SIGTERM)
        try:
            self.process(name).wait(END_S)
        except subprocess.TimeoutExpired:
            self.history.violation(f"{name} does not end within {END_S:g} s of SIGTERM")
            self.kill(name)

    def raise_ghost(self, name: str) -> None:
        """A leader of the past takes the place of a coordinator that is gone; one is enough."""
        if name in self.ghosts:
            return
        host = self.host(name)
        line = [sys.executable, "-m", "tests.chaos.ghost", f"{host.address}:{PORT}", JOB]
        with (self.root / "ghosts").open("ab") as told:
            self.ghosts[name] = host.popen(line, stdout=told, stderr=subprocess.DEVNULL)

    def lay_ghost(self, name: str) -> None:
        """End it."""
        ghost = self.ghosts.pop(name, None)
        if ghost is not None:
            ghost.terminate()
            ghost.wait(20)

    def power_on(self, name: str) -> None:
        """A node that lost its power comes back with its disk, as a spare."""
        self.lab.add_host(name)
        self.furnish(name)
        self.start_spare(name)

    def tell_criu(self, name: str, *words: str) -> None:
        """What happens to dumps and restores of a node from now on; see programs/criu.sh."""
        text = " ".join(words) + "\n" if words else ""
        (self.root / "criu" / f"{name}.tell").write_text(text)

    def fill_staging(self, name: str) -> None:
        """Leave next to no room in a node's staging."""
        used = self.host(name).run(["df", "--output=used", "-B1", str(STAGING)]).stdout.split()[-1]
        self._staging_of(name, int(used) + ROOM_LEFT_BYTES)

    def empty_staging(self, name: str) -> None:
        """Give it its room again."""
        self._staging_of(name, STAGING_BYTES)

    def _staging_of(self, name: str, size_bytes: int) -> None:
        how = f"remount,size={size_bytes}"
        self.host(name).run(["mount", "-o", how, str(STAGING)])

    # -- what is seen --------------------------------------------------------------------------

    async def etcd_answers(self) -> bool:
        """Whether a quorum of etcd answers."""
        try:
            await self.reader.job_names()
        except AllstopError:
            return False
        return True

    async def leads(self) -> bool:
        """Whether some coordinator answers operators."""
        return await self.views() is not None

    async def leader(self) -> str:
        """The name of the leader; empty when nobody leads or etcd does not answer."""
        try:
            found = await Election(self.kv, "onlooker").leader()
        except AllstopError:
            return ""
        return found.name if found is not None else ""

    async def views(self) -> tuple[JobView, ...] | None:
        """All jobs as an operator sees them; None while nobody leads."""
        try:
            async with asyncio.timeout(15):
                return await self.client.jobs()
        except (AllstopError, TimeoutError):
            return None

    async def job(self) -> JobView | None:
        """The job as an operator sees it; None while it is not known."""
        return next((view for view in await self.views() or () if view.job.job == JOB), None)

    async def job_nodes(self) -> set[str]:
        """Nodes with a worker of the job; all of them where nobody can tell."""
        view = await self.job()
        return set(NODES if view is None else view.nodes)

    async def settled(self) -> bool:
        """Whether the coordinator sees every worker of the job and each rank's steps."""
        view = await self.job()
        ranks = [rank for worker in view.workers for rank in worker.ranks] if view else []
        return (
            view is not None
            and view.state == "running"
            and len(ranks) == len(RANKS)
            and all(rank.boundary > 0 for rank in ranks)
        )

    async def _steps_begin(self) -> bool:
        ended = [n for n, shim in self.deployment.shims.items() if shim.poll() is not None]
        if ended:
            raise NeverCame(f"the shims {ended} ended at the start")
        return min(self.diaries.last().values()) > 2

    def left_on(self, name: str) -> list[str]:
        """What no attempt may leave on a node: locks, stopped tasks, staging, a CRIU."""
        script = (
            "nft list tables | grep allstop; "
            f"find {STAGING} -mindepth 3 -maxdepth 3 ! -execdir test -e '{{}}/kept' ';' "
            "-printf 'staged: %P\\n'; "
            "grep -lE '^State:\\s[Tt]' /proc/[0-9]*/status | sed 's/^/stopped: /'; "
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -oE 'dump --tre[e] [0-9]+'"
        )
        done = self.host(name).run(["sh", "-c", script], check=False)
        return [line for line in done.stdout.splitlines() if line]
