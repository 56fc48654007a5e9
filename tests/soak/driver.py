"""Set the policy, let the killer work, and watch the job come to its end by itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from coordinator.api.values import Story
from coordinator.core.errors import AllstopError
from coordinator.core.job_policy import RecoveryState
from lab.errors import LabError
from tests.chaos.driver import DEFECT
from tests.chaos.history import History
from tests.chaos.options import CLEAN_S, JOB, NODES
from tests.chaos.world import NeverCame, until
from tests.soak.killer import Killer, draw
from tests.soak.options import END_S, FIRST_S, GONE_S, RETENTION, STEP_S, SoakOptions
from tests.soak.world import SoakWorld

LOOK_S = 1.0
ASK_S = 60.0
ENDED_WELL = "all workers ended with exit code 0"


@dataclass
class Window:
    """When the killer was at work, in seconds of the diaries' clock."""

    begin_ns: int = 0
    end_ns: int = 0


class Driver:
    """Drives one soak; `play` returns when the job has ended."""

    def __init__(self, world: SoakWorld, options: SoakOptions, history: History) -> None:
        self.world = world
        self.options = options
        self.history = history
        self.killer = Killer(world, history)
        self.window = Window()
        self.story: Story | None = None

    async def play(self) -> None:
        """Everything; raises NeverCame when the job does not come to its end."""
        seconds = self.options.minutes * 60
        kills = draw(self.options.seed, seconds, self.options.mtbf_s)
        await self.ask()
        await until("the first snapshot", self.is_saved, FIRST_S)
        self.history.note("begin", f"from here on nobody asks for anything; {len(kills)} kills")
        self.window.begin_ns = time.time_ns()
        watchers = [asyncio.create_task(work) for work in (self.revive(), self.watch())]
        try:
            await self.killer.work(kills, seconds)
            self.window.end_ns = time.time_ns()
            self.history.note("calm", "everybody is back, and the job may run as fast as it can")
            await self.single("after the last return")
            self.world.set_pace(0.0)
            left = self.options.steps - min(self.world.diaries.last().values())
            await until("the job's end", self.is_finished, END_S + STEP_S * left, LOOK_S)
        finally:
            await self.end_of(watchers)
            await self.tell_story()
        await self.nothing_left()

    async def ask(self) -> None:
        """The policy, and which snapshots stay."""

        async def set_both() -> bool:
            try:
                await self.world.client.set_policy(self.options.policy)
                await self.world.client.set_retention(JOB, RETENTION)
            except AllstopError:
                return False
            return True

        await until("that the policy is taken", set_both, ASK_S)

    async def is_saved(self) -> bool:
        """Whether there is a snapshot to go back to."""
        try:
            return bool(await self.world.reader.snapshots(JOB))
        except AllstopError:
            return False

    async def is_finished(self) -> bool:
        """Whether the job is known to have ended by itself; raises NeverCame if it was given up."""
        await self.tell_story()
        state = self.story.recovery.state if self.story is not None else None
        if state is RecoveryState.GIVEN_UP:
            raise NeverCame("its recovery was given up, so the job's end")
        return state is RecoveryState.FINISHED

    async def tell_story(self) -> None:
        """Keep what the coordinators tell of the job."""
        with contextlib.suppress(AllstopError, TimeoutError):
            async with asyncio.timeout(15):
                self.story = await self.world.client.story(JOB)

    # -- meanwhile -----------------------------------------------------------------------------

    async def revive(self) -> None:
        """What ends though nobody has killed it is started again, as a service manager would."""
        while True:
            for name, code in self.world.ended().items():
                if name in self.killer.away or not self.world.host(name).alive:
                    continue
                words = f"{name} ended by itself with exit code {code}"
                self.history.note("revived", f"    {words} and is started again")
                if name not in NODES or code in (DEFECT, *range(-64, 0)):
                    self.history.violation(f"{words}: {self.world.last_words(name)}")
                with contextlib.suppress(LabError):  # it was just taken
                    await asyncio.to_thread(self.world.start_again, name)
            await asyncio.sleep(LOOK_S)

    async def watch(self) -> None:
        """Where the job is, and that no worker runs twice once its nodes are back."""
        twice_since: float | None = None
        state = ""
        while True:
            view = await self.world.job()
            if view is not None:
                whole = len(view.nodes) == view.job.workers
                homes = frozenset(view.nodes)
                self.killer.homes = homes if whole else self.killer.homes | homes
                if view.state != state:
                    state = view.state
                    self.history.note("state", f"    {state} at {self.world.diaries.last()}")
            copies = await asyncio.to_thread(self.world.copies)
            twice = any(len(nodes) > 1 for nodes in copies.values())
            now = time.monotonic()
            if not twice or self.killer.away:  # who is out of reach cannot be told
                twice_since = None
            elif twice_since is None:
                twice_since = now
            elif now - twice_since > GONE_S:
                self.history.violation(f"everybody is back, and workers run twice: {copies}")
            await asyncio.sleep(LOOK_S)

    async def single(self, when: str) -> None:
        """No worker has two trees."""

        async def once() -> bool:
            copies = await asyncio.to_thread(self.world.copies)
            return all(len(nodes) == 1 for nodes in copies.values())

        try:
            await until("that no worker runs twice", once, GONE_S, LOOK_S)
        except NeverCame:
            self.history.violation(f"{when} workers run twice: {self.world.copies()}")

    async def end_of(self, watchers: list[asyncio.Task[None]]) -> None:
        """They end; what one of them died of is a fault of the harness, and said."""
        for task in watchers:
            task.cancel()
        for result in await asyncio.gather(*watchers, return_exceptions=True):
            if isinstance(result, Exception):
                self.history.violation(f"the harness failed while it watched: {result!r}")

    # -- the end -------------------------------------------------------------------------------

    async def nothing_left(self) -> None:
        """The job is over on every node: no tree of it, no lock, nothing staged."""

        async def left() -> dict[str, list[str]]:
            found = {name: self.world.left_on(name) for name in NODES}
            for worker, nodes in self.world.copies().items():
                for name in nodes:
                    found[name].append(f"a tree of worker {worker}")
            return {name: lines for name, lines in found.items() if lines}

        async def none() -> bool:
            return not await left()

        try:
            await until("that nothing is left", none, CLEAN_S, 0.5)
        except NeverCame:
            self.history.violation(f"the job has ended, and there is left: {await left()}")
        lines = [line.text for line in self.story.lines] if self.story is not None else []
        if not lines or lines[-1] != ENDED_WELL:
            self.history.violation(f"the job has not ended by itself: {lines[-1:]}")
