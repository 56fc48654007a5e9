"""One run: start a contender's job, pull plugs as the schedule says, and stamp its steps."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.recovery.contender import NODES, SPARE, Contender, Stage
from bench.recovery.counting import Recovery, recovery, stopped_s
from bench.recovery.schedule import Kill
from bench.recovery.watching import Seen, Watch
from lab.cluster import Lab
from lab.demo.run import own_directories
from lab.errors import CommandFailed, HostGone
from lab.memory import in_memory

POLL_S = 0.01
START_S = 240.0  # to the first step
SILENCE_S = 150.0  # without any new step, after which a run is given up
RETURN_S = 1.0  # after the first new step the lost node is up again
RUN_S = 900.0
SHARED_BYTES = 8 << 30
IN_FLIGHT_S = 0.25  # lines come so late at the most, after the last process of a node is gone
COMMANDS = "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p; echo; done 2>/dev/null"


@dataclass
class Run:
    """What one run showed. Times are seconds since its first step."""

    contender: str
    seed: int
    finished: bool = False
    why: str = ""  # where it did not finish
    wall_s: float = 0.0
    start_s: float = 0.0  # from the first command to the first step
    digest: str = ""
    accuracy: float = 0.0
    stopped_s: float = 0.0
    checkpoints: list[int] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    course: list[tuple[float, int]] = field(default_factory=list)  # second, step; thinned

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)


def play(
    contender: Contender, kills: Sequence[Kill], *, seed: int, epochs: int, memory: bool = False
) -> Run:
    """Play one run to its end and leave nothing behind. Raises nothing that a job does.

    With `memory` the shared directory is a tmpfs, in a mount namespace of this run's own.
    """
    root = Path(tempfile.mkdtemp(prefix="allstop-recovery-", dir="/var/tmp"))
    shared, names = root / "shared", [*NODES, SPARE]
    shared.mkdir()
    held = in_memory(shared, SHARED_BYTES) if memory else nullcontext()
    try:
        with held, Lab(root / "lab", names, private=own_directories(root)) as lab:
            return _Play(contender, list(kills), Stage(lab, shared, epochs), seed).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Play:
    def __init__(self, contender: Contender, kills: list[Kill], stage: Stage, seed: int) -> None:
        self.contender, self.kills, self.stage = contender, kills, stage
        self.watch = Watch(lambda: contender.logs(stage), restored=contender.restores_logs)
        self.seen: list[Seen] = []
        self.lost: list[
            tuple[str, float, float]
        ] = []  # node, when, and when its last line was read
        self.found = Run(contender.name, seed)
        self.highest = 0
        self.last_new = 0.0  # when the last step was done that nobody had done before
        self.trains_since = 0.0  # the first step, or the first new one after a kill; 0: not yet
        self.away = ""  # the node that is to return

    def run(self) -> Run:
        begun = self.last_new = time.monotonic()
        self.contender.start(self.stage)
        while not self.result():
            self.look()
            if why := self.given_up(begun):
                self.found.why = f"{why}\n{self.stage.last_words()}"
                break
            self.act()
            time.sleep(POLL_S)
        ended = time.monotonic()
        self.look()
        self.tell(begun, ended)
        return self.found

    def result(self) -> dict[str, Any]:
        """What the job has written at its end; empty while it is not there, or not whole."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.stage.result.read_text()))
        return {}

    def look(self) -> None:
        for one in self.watch.poll():
            self.seen.append(one)
            if not one.saved and one.step > self.highest:
                self.highest, self.last_new = one.step, one.at
                self.trains_since = self.trains_since or one.at

    def given_up(self, begun: float) -> str:
        now = time.monotonic()
        if not self.seen and now > begun + START_S:
            return f"no step within {START_S:g} s"
        if now > self.last_new + SILENCE_S:
            return f"no new step for {SILENCE_S:g} s"
        if now > begun + RUN_S:
            return f"not finished within {RUN_S:g} s"
        return ""

    def act(self) -> None:
        """Return a node, or lose one, when it is time."""
        if not self.trains_since:
            return
        since = time.monotonic() - self.trains_since
        if self.away and since >= RETURN_S:
            self.stage.add_empty_host(self.away)
            self.contender.returned(self.stage, self.away)
            self.away = ""
        elif not self.away and self.kills and since >= self.kills[0].after_s:
            self.kill(self.kills[0])

    def kill(self, kill: Kill) -> None:
        busy = self.busy()
        if not busy:
            return
        self.kills.pop(0)
        node = kill.victim(busy)
        self.look()
        killed_at = time.monotonic()
        self.stage.host(node).power_off()
        self.away, self.trains_since = node, 0.0
        self.contender.lost(self.stage, node)
        self.look_in_flight()
        self.lost.append((node, killed_at, time.monotonic()))

    def look_in_flight(self) -> None:
        """Lines that were on their way at the kill are of no new step."""
        deadline = time.monotonic() + IN_FLIGHT_S
        while time.monotonic() < deadline:
            self.look()
            self.trains_since = 0.0
            time.sleep(POLL_S)

    def busy(self) -> list[str]:
        """Hosts that carry ranks now."""
        rank = re.compile(self.contender.ranks)
        found = []
        for name, host in self.stage.lab.hosts.items():
            with suppress(CommandFailed, HostGone):
                if host.alive and rank.search(host.run(["sh", "-c", COMMANDS], check=False).stdout):
                    found.append(name)
        return found

    def tell(self, begun: float, ended: float) -> None:
        found, first = self.found, next((s.at for s in self.seen if not s.saved), begun)
        found.start_s, found.wall_s = first - begun, ended - first
        if result := self.result():
            found.finished = True
            found.digest, found.accuracy = result["digest"], result["accuracy"]
        found.checkpoints = [one.step for one in self.seen if one.saved]
        found.checkpoints += self.contender.checkpoints(self.stage)
        times = [at for _, at, _ in self.lost]
        borders = [*times, ended + 1]
        outages: list[tuple[float, float]] = []
        for (node, at, quiet_at), until in zip(self.lost, borders[1:], strict=True):
            parked = self.contender.restores_logs
            back = recovery(self.seen, node, at, quiet_at, until, parked=parked)
            found.recoveries.append(back)
            outages.append((at, at + back.resumed_s if back.resumed_s > 0 else until))
        found.stopped_s = stopped_s(self.seen, found.checkpoints, outages)
        found.course = thinned([(one.at - first, one.step) for one in self.seen if not one.saved])


def thinned(course: Sequence[tuple[float, int]], every_s: float = 0.5) -> list[tuple[float, int]]:
    """Enough of a course to draw it: a point each half second, and both ends of every jump."""
    kept: list[tuple[float, int]] = []
    for index, (at, step) in enumerate(course):
        back = index + 1 < len(course) and (
            course[index + 1][1] <= step or course[index + 1][0] - at > every_s
        )
        came_back = index > 0 and (
            course[index - 1][1] >= step or at - course[index - 1][0] > every_s
        )
        edge = index in (0, len(course) - 1)
        if edge or back or came_back or at - kept[-1][0] >= every_s:
            kept.append((round(at, 3), step))
    return kept
