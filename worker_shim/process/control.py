"""The shim's side of the control page: raising a hold, reading boundaries, releasing.

It lives here and not in `worker_shim.hook` because it raises allstop's errors and speaks of trees,
and nothing of that may be imported inside a rank.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from coordinator.core.errors import BugError, DeadlinePassed, DriverError, Where
from coordinator.core.model import RankState
from worker_shim.hook.page import (
    FLAG_NO_STEPS,
    HEADER_BYTES,
    HEADER_FIELDS,
    MAGIC,
    SLOT_BYTES,
    SLOT_FIELDS,
    STATE_BROKEN,
    STATE_HELD,
    page_bytes,
)
from worker_shim.hook.slot import HOLD, INCARNATION, SLOTS, TARGET, TEAR_DOWN, Slot, same_start
from worker_shim.nccl.port import RankCommunicators
from worker_shim.process.barrier import memory_barrier
from worker_shim.process.clocks import start_seen_by
from worker_shim.process.port import Tree, unheard
from worker_shim.process.waiting import Endings

SLOTS_DEFAULT = 62  # fills 8 KiB; one slot per local rank
POLL_S = 0.001
LOOK_S = 0.1  # how often a wait looks for ranks that will never park


class ControlPage:
    """One worker's page, mapped by the shim. Only the shim writes the header."""

    def __init__(self, path: Path) -> None:
        """Map a page that is there; raises DriverError when it cannot be or is none of ours."""
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise DriverError(
                f"cannot map the control page {path}: {error}",
                advice="the worker's run directory must be on a local file system with room",
            ) from error
        self._words = memoryview(self._map).cast("Q")
        if self._words[0] != MAGIC:
            self.close()
            raise DriverError(f"{path} is not a control page of allstop")

    @classmethod
    def create(cls, path: Path, slots: int = SLOTS_DEFAULT, *, incarnation: int = 0) -> ControlPage:
        """Make an empty page; one that is there is replaced, never cut: ranks may map it."""
        return cls.write_anew(path, {"slots": slots, "incarnation": incarnation}, ())

    @classmethod
    def write_anew(
        cls, path: Path, page: Mapping[str, int], slots: Sequence[Mapping[str, int]]
    ) -> ControlPage:
        """Make the page with every field as `snapshot` gave it: before a restore.

        The file appears whole or not at all. Raises DriverError when it cannot be written.
        """
        content = _encode(page, slots)
        temporary = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.chmod(0o666)  # a worker may drop to another user
            temporary.replace(path)
        except OSError as error:
            raise DriverError(
                f"cannot write the control page {path}: {error.strerror}",
                advice="give the run directory room and write permission",
            ) from error
        return cls(path)

    def __enter__(self) -> ControlPage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the page; the file stays, since the ranks use it."""
        self._words.release()
        self._map.close()

    # -- the hold --------------------------------------------------------------------------------

    @property
    def hold(self) -> int:
        """Generation of the present hold; 0: none."""
        return int(self._words[HOLD])

    @property
    def target(self) -> int:
        """Boundary at which the ranks park; 0: not known yet."""
        return int(self._words[TARGET])

    @property
    def world_size(self) -> int:
        """World size as the ranks told it; 0: no rank has loaded the hook."""
        return max((slot.get("world_size") for slot in self._claimed()), default=0)

    async def raise_hold(self, generation: int) -> None:
        """Raise the flag and wait until no rank can have missed it.

        After this no rank passes the boundary that follows the one `ranks` shows for it: each
        publishes its boundary before it reads the flag. `generation` is greater than 0 and not
        one used before in this incarnation. Raising the same hold again changes nothing.
        """
        if generation <= 0:
            raise BugError(f"a hold's generation must be positive, not {generation}")
        if self.hold == generation:
            return
        self._words[TARGET] = 0
        self._words[HOLD] = generation
        await memory_barrier()

    def set_target(self, target: int) -> None:
        """Tell the held ranks where to park; raises BugError when no hold is raised."""
        if not self.hold or target <= 0:
            raise BugError(f"target {target} set while hold is {self.hold}")
        self._words[TARGET] = target

    def tear_down(self) -> None:
        """Tell the parked ranks to destroy their communicators; every rank of the job is parked."""
        self._words[TEAR_DOWN] = self.hold

    @property
    def tearing_down(self) -> bool:
        """Whether ranks of this hold were told so: they build them anew when they are let go."""
        return self.hold != 0 and int(self._words[TEAR_DOWN]) == self.hold

    def communicators(self) -> tuple[RankCommunicators, ...]:
        """How the communicators of each living rank stand."""
        return tuple(
            RankCommunicators(
                rank=slot.get("rank_plus_1") - 1,
                pid=slot.get("pid"),
                state=slot.get("communicators"),
                result=slot.get("nccl_result"),
            )
            for slot in self._claimed()
        )

    def release(self) -> None:
        """Lower the flag: ranks that are held or parked go on at once. Safe to repeat."""
        self._words[HOLD] = 0
        self._words[TARGET] = 0

    def set_incarnation(self, incarnation: int) -> None:
        """Say in which incarnation of the job the ranks are; 0: no coordinator has said yet."""
        self._words[INCARNATION] = incarnation

    async def wait_parked(
        self,
        tree: Tree | None = None,
        *,
        known: tuple[RankState, ...] = (),
        deadline_s: float,
        arrived: Callable[[int], object] = unheard,
    ) -> tuple[RankState, ...]:
        """Wait until every rank is parked at the target; return them.

        Ranks are those of `ranks(tree)` at the beginning, and those `known` before. Raises
        DeadlinePassed naming the ranks awaited and where each is, and DriverError at once when one
        ended, ran past the target or its hook met an error. The hold stays raised: the caller
        decides. `arrived` is told the number of each rank once, when it is seen parked.
        """
        generation, target = self.hold, self.target
        if not generation or not target:
            raise BugError(f"waiting for ranks to park with hold {generation}, target {target}")
        awaited = {rank.pid: rank.rank for rank in (*known, *self.ranks(tree))}
        missing = set(awaited)
        deadline = time.monotonic() + deadline_s
        next_look = 0.0
        with Endings(awaited) as endings:
            while True:
                # Who ended first is only known for a moment: a launcher then ends all the others.
                if ended := endings.seen():
                    raise _ended(ended, awaited)
                now = time.monotonic()
                if now >= next_look:
                    self._check(awaited, target)
                    next_look = now + LOOK_S
                parked = self._parked(generation, target)
                for pid in missing & parked:
                    missing.discard(pid)
                    arrived(awaited[pid])
                if awaited and awaited.keys() <= parked:
                    return self.ranks(tree)
                if now >= deadline:
                    raise self._not_parked(tree, target, deadline_s)
                await asyncio.sleep(POLL_S)

    # -- what the ranks say ----------------------------------------------------------------------

    def ranks(self, tree: Tree | None = None) -> tuple[RankState, ...]:
        """Every living rank, by number.

        With `tree`, also the ranks that exist as processes (RANK in their environment) but have
        not loaded the hook: boundary -1. Of several processes of one rank the oldest counts.
        """
        seen = {state.rank: state for state in map(self._state, self._claimed())}
        for process in tree.processes if tree is not None else ():
            if process.rank >= 0 and process.rank not in seen:
                seen[process.rank] = RankState(
                    rank=process.rank,
                    local_rank=process.local_rank,
                    pid=process.pid,
                    boundary=-1,
                )
        return tuple(seen[rank] for rank in sorted(seen))

    def snapshot(self) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
        """Every field of header and claimed slots, as the manifest keeps them."""
        page = {name: int(self._words[at]) for at, name in enumerate(HEADER_FIELDS)}
        slots = tuple(
            {"slot": slot.number, **{name: slot.get(name) for name in SLOT_FIELDS}}
            for slot in self._claimed(living_only=False)
        )
        return page, slots

    def refresh_starts(self) -> None:
        """After a restore: same pids, new start times, or another process would take the slots."""
        for slot in self._claimed(living_only=False):
            started = start_seen_by(slot.get("pid"))
            if started:
                slot.put("start", started)

    def _claimed(self, *, living_only: bool = True) -> list[Slot]:
        count = min(int(self._words[SLOTS]), (len(self._map) - HEADER_BYTES) // SLOT_BYTES)
        slots = [Slot(self._words, number) for number in range(count)]
        return [
            slot
            for slot in slots
            if slot.get("pid")
            and (not living_only or same_start(start_seen_by(slot.get("pid")), slot.get("start")))
        ]

    def _state(self, slot: Slot) -> RankState:
        hold = self.hold
        return RankState(
            rank=slot.get("rank_plus_1") - 1,
            local_rank=slot.get("local_rank"),
            pid=slot.get("pid"),
            boundary=slot.get("boundary"),
            parked=hold != 0 and slot.get("parked") == hold,
            no_steps=bool(slot.get("flags") & FLAG_NO_STEPS),
        )

    def _parked(self, generation: int, target: int) -> set[int]:
        """Pids of the ranks that wait at the target now."""
        return {
            slot.get("pid")
            for slot in self._claimed(living_only=False)
            if slot.get("parked") == generation and slot.get("boundary") == target
        }

    def _check(self, awaited: Mapping[int, int], target: int) -> None:
        """Raise for what no waiting can mend."""
        for slot in self._claimed():
            if slot.get("pid") not in awaited:
                continue
            where = Where(rank=slot.get("rank_plus_1") - 1)
            if slot.get("boundary") > target:
                raise DriverError(
                    f"the rank is at boundary {slot.get('boundary')}, past the target {target}",
                    where=where,
                    advice="its steps are not those of the other ranks: does it alone call step()?",
                )
            if slot.get("state") == STATE_BROKEN:
                raise DriverError(
                    "the hook in this rank met an error and withdrew; the rank runs on",
                    where=where,
                    advice="a failed device synchronisation is the usual cause: see the rank's log",
                )

    def _not_parked(self, tree: Tree | None, target: int, waited_s: float) -> DeadlinePassed:
        held = {s.get("pid") for s in self._claimed() if s.get("state") == STATE_HELD}
        late = [rank for rank in self.ranks(tree) if not rank.parked]
        lines = tuple(_whereabouts(rank, rank.pid in held) for rank in late)
        return DeadlinePassed(
            f"{len(late)} rank(s) did not park at step {target} within {waited_s:.1f} s: "
            + "; ".join(lines),
            where=Where(rank=late[0].rank if len(late) == 1 else None),
            advice="a longer deadline helps if steps are slow; a rank without a hook needs"
            " `from worker_shim.hook import step` or a torch optimizer",
            details=lines,
        )


def _ended(pids: Sequence[int], ranks: Mapping[int, int]) -> DriverError:
    names = [f"rank {ranks[pid]} (pid {pid})" for pid in pids]
    return DriverError(
        f"{', '.join(names)} ended while it was to park",
        where=Where(rank=ranks[pids[0]]),
        advice="the worker is ending or restarting its ranks: look at its log, then try again",
        details=tuple(names),
    )


def _whereabouts(rank: RankState, held: bool) -> str:
    if rank.boundary < 0:
        return f"rank {rank.rank} (pid {rank.pid}) has not loaded the hook"
    if rank.boundary == 0:
        return f"rank {rank.rank} (pid {rank.pid}) has not finished a step yet"
    doing = "is held" if held else "is still running"
    return f"rank {rank.rank} (pid {rank.pid}) {doing} after step {rank.boundary}"


def _encode(page: Mapping[str, int], slots: Sequence[Mapping[str, int]]) -> bytes:
    header = {"slots": max(len(slots), 1), **page, "magic": MAGIC}
    content = bytearray(page_bytes(header["slots"]))
    words = memoryview(content).cast("Q")
    for at, name in enumerate(HEADER_FIELDS):
        words[at] = header.get(name, 0)
    for number, fields in enumerate(slots):
        slot = Slot(words, fields.get("slot", number))
        for name in SLOT_FIELDS:
            slot.put(name, fields.get(name, 0))
    words.release()
    return bytes(content)
