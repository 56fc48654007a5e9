"""Round after round: a checkpoint or a restore, faults in the middle, and what must follow."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from coordinator.core.errors import AllstopError, NotFound, OldRunUnseen
from coordinator.core.model import RestoreState, Snapshot
from coordinator.store.keys import Keys
from coordinator.store.kv import Range
from lab.errors import LabError
from tests.chaos import faults, images
from tests.chaos.action import Action, follow
from tests.chaos.faults import KINDS, Fault
from tests.chaos.history import History
from tests.chaos.options import (
    ACTION_S,
    CLEAN_S,
    JOB,
    NODES,
    RANKS,
    SOUND_S,
    UNVERIFIED_MAX,
    VERIFY_STEPS,
    ChaosOptions,
)
from tests.chaos.world import NeverCame, World, until

AT_WAIT_S = 15.0  # for the state in which a fault is to happen
RESTORES = 0.35  # of all rounds, while there is a snapshot that was not restored yet
HURRIES = 0.12  # of all checkpoints
RESTORES_AGAIN = 0.1
STEPS_ON = 4  # so many further steps of each rank show that the job runs
DEFECT = 70  # exit code of a defect of allstop itself
RESTORE_TRIES = 6
RESTORE_PAUSE_S = 5.0
PAST_CLEAR = {"CLEARING", "RESTORING", "RELEASING", "RUNNING"}


class Driver:
    """Drives one run; `play` returns when the time is over and everything has been checked."""

    def __init__(self, world: World, options: ChaosOptions, history: History) -> None:
        self.world = world
        self.options = options
        self.history = history
        self.injected: dict[str, int] = {}
        self.snapshots: dict[str, Snapshot] = {}  # committed, by id, oldest first
        self.verified: dict[str, int] = {}  # snapshot -> incarnation in which it went on
        self.kept: list[str] = []  # snapshots whose images are still there
        self.killed = False  # in this round a fault has killed a worker of the job
        self.homes: set[str] = set()  # where the job's workers were before this round

    async def play(self) -> None:
        """All rounds, then everything is mended, and each snapshot that is left is restored."""
        deadline = time.monotonic() + self.options.minutes * 60
        await self.round(0, [])
        if not self.snapshots:
            raise NeverCame("the first checkpoint, which nobody disturbed, did not commit")
        number = 1
        while time.monotonic() < deadline:
            chance = random.Random(f"{self.options.seed}/{number}")
            verb = self.choose_verb(chance)
            count = 2 if chance.random() < 0.25 else 1
            await self.round(
                number,
                [faults.choose(chance, verb, self.options.only) for _ in range(count)],
                verb,
                chance,
            )
            number += 1
        self.history.note("end", "the time is over: everything is mended, and must work")
        before = len(self.snapshots)
        await self.round(number, [])
        if len(self.snapshots) == before:
            self.history.violation("when everything is mended a checkpoint does not commit")
        for snapshot in self.unverified():
            number += 1
            await self.round(number, [], "restore", wanted=snapshot)

    def choose_verb(self, chance: random.Random) -> str:
        """Mostly checkpoints, but no more images than there is room for."""
        drawn = chance.random()
        full = len(self.unverified()) >= UNVERIFIED_MAX
        share = RESTORES if self.unverified() else RESTORES_AGAIN
        return "restore" if full or drawn < share else "checkpoint"

    def choose_deadline_s(self, verb: str, chance: random.Random | None) -> float:
        """Now and then somebody is in a hurry."""
        if chance is None or verb != "checkpoint" or chance.random() >= HURRIES:
            return 0.0
        deadline_s = round(chance.uniform(0.5, 5.0), 1)
        self.history.note("hurry", f"    it has {deadline_s} s for all")
        return deadline_s

    def unverified(self) -> list[str]:
        """Snapshots that were not restored yet, oldest first."""
        return [name for name in self.snapshots if name not in self.verified]

    # -- one round -----------------------------------------------------------------------------

    async def round(
        self,
        number: int,
        planned: list[Fault],
        verb: str = "checkpoint",
        chance: random.Random | None = None,
        wanted: str = "",
    ) -> None:
        """One action and its faults; afterwards everything is mended and the job runs."""
        snapshot = wanted
        if verb == "restore" and not snapshot:
            snapshot = (chance or random.Random(0)).choice(self.unverified() or self.kept)
        plan = "; ".join(map(str, planned)) or "nobody disturbs it"
        self.history.note("round", f"[{number}] {verb} {snapshot}: {plan}", number=number)
        self.killed, self.homes = False, await self.world.job_nodes()
        action = Action(verb, snapshot, self.choose_deadline_s(verb, chance))
        await asyncio.gather(
            follow(action, self.world.client, self.history),
            *(self.inflict(fault, action) for fault in planned),
        )
        await self.settle(action)

    async def inflict(self, fault: Fault, action: Action) -> None:
        """One fault, from its time on; it is mended before this returns."""
        with contextlib.suppress(TimeoutError):
            if fault.at:
                async with asyncio.timeout(AT_WAIT_S):
                    await action.reached(fault.at)
        await asyncio.sleep(fault.after_s)
        kind, target = KINDS[fault.kind], await faults.resolve(self.world, fault)
        state = action.states[-1] if action.states else "none yet"
        self.history.note(
            "fault", f"  ! {fault.kind} {target} (it is {state})", kind=fault.kind, target=target
        )
        self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
        if kind.kills:
            self.killed = self.killed or await self.has_worker(target)
        try:
            if fault.kind == "operator_abort" and action.id:
                async with asyncio.timeout(30):
                    await self.world.client.abort(action.id, "chaos")
            await faults.in_thread(kind.break_, self.world, target)
            await asyncio.sleep(fault.lasts_s)
        except (AllstopError, LabError, TimeoutError) as error:
            self.history.note("fault fails", f"    {fault.kind} {target}: {error}")
        finally:
            await self.mend(fault, target)

    async def mend(self, fault: Fault, target: str) -> None:
        """Its end; a host that another fault has switched off needs none."""
        try:
            await faults.in_thread(KINDS[fault.kind].mend, self.world, target)
        except LabError as error:
            self.history.note("mending fails", f"    {fault.kind} {target}: {error}")
        self.history.note("mended", f"  . {fault.kind} {target} is over", target=target)

    async def has_worker(self, node: str) -> bool:
        """Whether the job has a worker there; where nobody can tell, it is assumed.

        While a restore is under way the job is nowhere yet, and what it is to replace still runs.
        """
        return node in self.homes | await self.world.job_nodes()

    # -- what must follow ----------------------------------------------------------------------

    async def settle(self, action: Action) -> None:
        """Everything is whole again, what was begun has ended, the job runs, nothing is left."""
        await self.all_revived()
        await self.all_ended(action)
        await self.learn_snapshots()
        if await self.must_run(action):
            if not await self.runs(SOUND_S):
                self.history.hurts(
                    f"after {action.verb} {action.id} the job did not go on within {SOUND_S:g} s "
                    f"though no worker was killed; it is at {self.world.diaries.last()}"
                )
                await self.bring_back()
        elif not await self.runs(10.0):
            await self.bring_back()
        await self.verify(action)
        await self.nothing_left(action)

    async def all_revived(self) -> None:
        """Every process is there, etcd and a leader answer."""
        for name, code in self.world.ended().items():
            words = f"{name} ended by itself with exit code {code}"
            self.history.note("revived", f"    {words} and is started again")
            if name not in NODES or code in (DEFECT, *range(-64, 0)):
                self.history.violation(f"{words}: {self.world.last_words(name)}")
            await asyncio.to_thread(self.world.start_again, name)
        try:
            await until("etcd", self.world.etcd_answers, SOUND_S)
            await until("a leader", self.world.leads, SOUND_S)
        except NeverCame as error:
            self.history.violation(f"everything was mended, but {error}")

    async def all_ended(self, action: Action) -> None:
        """No attempt and no restore is left half-way."""

        async def none() -> bool:
            try:
                loaded = await self.world.reader.load()
            except AllstopError:
                return False
            return not loaded.attempts and not loaded.restores

        try:
            await until("the end of what was begun", none, ACTION_S, 0.3)
        except NeverCame:
            self.history.violation(f"{action.verb} {action.id} never ended: {await self.open()}")

    async def open(self) -> str:
        """What is not ended, for a violation."""
        loaded = await self.world.reader.load()
        return "; ".join(
            f"{getattr(record, 'attempt', '') or getattr(record, 'restore', '')} is "
            f"{record.state}: {record.reason}"
            for record in (*loaded.attempts, *loaded.restores)
        )

    async def learn_snapshots(self) -> None:
        """Look for what was committed since the last look, and check its images."""
        for found in await self.world.reader.snapshots(JOB):
            if found.snapshot in self.snapshots:
                continue
            snapshot = await self.world.reader.snapshot(found.snapshot, JOB)
            self.snapshots[snapshot.snapshot] = snapshot
            self.kept.append(snapshot.snapshot)
            text = f"    snapshot {snapshot.snapshot}, step {snapshot.step}"
            self.history.note("committed", text)
            checked = await asyncio.to_thread(images.check, self.world.deployment.store, snapshot)
            for wrong in checked.wrong:
                self.history.violation(f"snapshot {snapshot.snapshot}: {wrong}")
            self.history.note(
                "images", snapshot=snapshot.snapshot, dump_s=checked.dump_s, bytes=checked.bytes
            )

    async def must_run(self, action: Action) -> bool:
        """Whether the job has to go on by itself: nobody killed a worker, no restore cleared it."""
        if self.killed:
            return False
        if action.verb == "checkpoint":
            return True
        states = set(action.states) | set(await self.restore_states(action.id))
        return "RUNNING" in states or not states & PAST_CLEAR

    async def restore_states(self, restore: str) -> list[str]:
        """Every state that etcd ever had of a restore, newest first."""
        states: list[str] = []
        key, revision = Keys().restore(JOB, restore) if restore else "", 0
        while key:
            found = (await self.world.kv.read(Range(key, revision=revision))).found[0]
            if not found:
                break
            states.append(images.state_in(found[0].value))
            revision = found[0].mod_revision - 1
        return states

    async def runs(self, wait_s: float) -> bool:
        """Whether every rank takes some further steps, and the coordinator knows of all."""
        before = self.world.diaries.counts()

        async def ahead() -> bool:
            now = self.world.diaries.counts()
            return all(now[rank] >= before[rank] + STEPS_ON for rank in RANKS)

        try:
            await until("steps", ahead, wait_s)
            await until("all workers", self.world.settled, max(20.0, wait_s))
        except NeverCame:
            return False
        return True

    async def bring_back(self) -> None:
        """Restore until the job runs; it must work, since nothing is broken now."""
        sure = False
        for _ in range(RESTORE_TRIES):
            snapshot = (self.unverified() or self.kept)[-1]
            self.history.note("bring back", f"    the job is brought back from {snapshot}")
            action = Action("restore", snapshot, old_run_ended=sure)
            await follow(action, self.world.client, self.history)
            await self.all_ended(action)
            sure = isinstance(action.error, OldRunUnseen)  # that it does not run was seen
            if "RUNNING" in action.states and await self.runs(SOUND_S):
                await self.verify(action)
                return
            await self.all_revived()
            await asyncio.sleep(RESTORE_PAUSE_S)
        self.history.violation(
            f"everything was mended, but {RESTORE_TRIES} restores did not bring the job back"
        )
        raise NeverCame("the job cannot be brought back")

    async def verify(self, action: Action) -> None:
        """A restored snapshot must go on at its own step, on every rank, for some steps."""
        if action.verb != "restore" or not action.id or action.snapshot in self.verified:
            return
        try:
            record = (await self.world.reader.show(action.id, JOB)).restore
        except NotFound:  # its leader was killed before it had recorded it
            return
        if record is None or record.state is not RestoreState.RUNNING:
            return

        async def went_on() -> bool:
            steps = self.world.diaries.look().values()
            return all(
                sum(step.incarnation == record.incarnation for step in own) >= VERIFY_STEPS
                for own in steps
            )

        try:
            await until("steps of the restored job", went_on, 3.0 if self.killed else SOUND_S)
        except NeverCame as error:
            if not self.killed:
                self.history.violation(f"{action.id} of {action.snapshot} runs, but {error}")
            return
        first = {
            rank: next(s.step for s in own if s.incarnation == record.incarnation)
            for rank, own in self.world.diaries.look().items()
        }
        step = self.snapshots[action.snapshot].step
        if set(first.values()) != {step}:
            self.history.violation(f"{action.id}: the ranks go on at {first}, not at {step}")
        self.verified[action.snapshot] = record.incarnation
        self.history.note("verified", f"    {action.snapshot} was restored and goes on")
        await self.forget_images()

    async def forget_images(self) -> None:
        """Snapshots that were restored are deleted, for room; the newest stays for an emergency.

        What the others share with them has to stay: each of those is restored later.
        """
        newest = next(reversed(self.snapshots))
        gone = [name for name in self.kept if name in self.verified and name != newest]
        if not gone:
            return
        self.history.note("delete", f"    {', '.join(gone)} are deleted")
        action = Action("delete", snapshots=tuple(gone))
        await follow(action, self.world.client, self.history)
        if action.error is not None:
            self.history.violation(f"nothing is broken, but a delete failed: {action.error}")
            return
        self.kept = [name for name in self.kept if name not in gone]

    async def nothing_left(self, action: Action) -> None:
        """Neither lock nor stopped task nor staged image nor CRIU on any node."""

        async def left() -> dict[str, list[str]]:
            found = {}
            for name in NODES:
                if lines := await asyncio.to_thread(self.world.left_on, name):
                    found[name] = lines
            return found

        async def none() -> bool:
            return not await left()

        try:
            await until("that nothing is left", none, CLEAN_S, 0.5)
        except NeverCame:
            what = await left()
            if what:
                self.history.violation(f"after {action.verb} {action.id} there is left: {what}")
