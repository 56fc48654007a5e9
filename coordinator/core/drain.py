"""The drain of one node: each job on it is stopped with a checkpoint and restored on other nodes.

    WAITING     it is whole and nothing has it: ask for a checkpoint that stops it  -> STOPPING
                nothing of it is on the node any more                              -> MOVED
                no time is left                                                    -> STAYED
    STOPPING    the snapshot is committed: ask for its restore on other nodes      -> MOVING
                it was given up: again, bounded                                    -> WAITING
                too often                                                          -> STAYED
    MOVING      it runs elsewhere                                                  -> MOVED
                no nodes can take it, or two tries have failed                     -> RETURNING
    RETURNING   it runs again                                                      -> STAYED
                failed: again, later; too often                                    -> STRANDED

Looked at about once a second with how each job stands (`Sight`), and told of attempts and restores.
What is asked for is found again by a new leader: by looking, not by what was remembered. Times are
monotonic seconds of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from coordinator.core.drain_records import (
    DrainedJob,
    DrainRecord,
    DrainState,
    DrainStep,
    cause_of,
)
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Failure,
    RestoreRecord,
    RestoreState,
)

S = DrainStep
ENDS = frozenset({S.MOVED, S.STAYED, S.STRANDED})
UNDER_WAY = frozenset({S.STOPPING, S.MOVING, S.RETURNING})
REFUSING = frozenset({DrainState.DRAINING, DrainState.DRAINED})
STOPS_MAX = 3  # checkpoints of a job that fail
MOVES_MAX = 2  # restores on other nodes that fail
RETURNS_MAX = 5
RETRY_S = 1.0
RETRY_S_MAX = 30.0
HURRY_S = 1.0  # notices of one end of a node differ by less
UNANSWERED_S = 60.0  # what was asked for has begun or was refused by then
NO_OTHERS = frozenset({"NoPlan"})


@dataclass(frozen=True)
class Sight:
    """How a job stands at one look, as far as a drain wants to know."""

    busy: bool = False  # an attempt or a restore has it
    whole: bool = False  # every worker lives and is in reach
    placed: bool = False  # a worker of it is on the node, or may be
    stopped: str = ""  # the snapshot that this drain has stopped it with, while it does not run


@dataclass(frozen=True)
class Stop:
    """Ask for a checkpoint that stops a job."""

    job: str
    deadline_s: float  # 0: none of its own


@dataclass(frozen=True)
class Move:
    """Ask for the restore of a stopped job; `anywhere`: nodes that are drained too."""

    job: str
    snapshot: str
    anywhere: bool


@dataclass
class _Asked:
    """What this leader has asked for; another one looks."""

    at: float | None = None
    not_before: float = 0.0


@dataclass
class Drain:
    """One drain; `record` is what outlives the leader."""

    record: DrainRecord
    unix_less_now: float = 0.0
    changed: bool = False
    moves: list[Stop | Move] = field(default_factory=list)
    stranded: list[tuple[str, str]] = field(default_factory=list)  # jobs, and why
    _asked: dict[str, _Asked] = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """What its attempts and restores say of why they were asked for."""
        return cause_of(self.record.node)

    @property
    def refuses(self) -> str:
        """Why the node takes no workers; empty: it does."""
        if self.record.state not in REFUSING:
            return ""
        is_ = "is being drained" if self.record.state is DrainState.DRAINING else "is drained"
        return f"it {is_}{f': {self.record.why}' if self.record.why else ''}"

    @property
    def acts(self) -> bool:
        """Whether there is anything left to do."""
        return self.record.state in (DrainState.DRAINING, DrainState.UNDRAINING)

    def step(self, job: str) -> DrainStep | None:
        """Where a job of it stands."""
        found = self._job(job)
        return found.step if found is not None else None

    # -- what is told ----------------------------------------------------------------------------

    def look(self, sights: Mapping[str, Sight], now: float) -> list[Stop | Move]:
        """See how the jobs on the node stand, and those of the record; returns what is to be asked.

        A job that came to the node meanwhile has to go too.
        """
        self.moves = []
        if not self.acts:
            return []
        if self.record.state is DrainState.DRAINING:
            known = {each.job for each in self.record.jobs}
            new = tuple(DrainedJob(j) for j, s in sights.items() if s.placed and j not in known)
            if new:
                self._keep(jobs=(*self.record.jobs, *new))
        for each in self.record.jobs:
            if each.step not in ENDS:
                _LOOKS[each.step](self, each, sights.get(each.job, Sight()), now)
        self._settle()
        return self.moves

    def hurry(self, deadline_unix_s: float) -> None:
        """There is less time than was said at first, by a second at least."""
        before = self.record.deadline_unix_s
        if self.record.state is DrainState.DRAINING and (
            not before or deadline_unix_s < before - HURRY_S
        ):
            self._keep(deadline_unix_s=deadline_unix_s)

    def told_by(self, session: str) -> None:
        """Another shim of the node says that it goes: the drain ends with that one."""
        if self.record.session and session not in ("", self.record.session):
            self._keep(session=session)

    def keep(self) -> None:
        """It holds whatever becomes of the shim whose notice began it."""
        if self.record.session:
            self._keep(session="")

    def undrain(self, why: str) -> None:
        """Called off: what has not been stopped stays, what has is put back, here if need be."""
        left = tuple(each for each in self.record.jobs if each.step in UNDER_WAY)
        state = DrainState.UNDRAINING if left and self.acts else DrainState.UNDRAINED
        self._keep(state=state, jobs=left, reason=why)

    def attempt_ended(self, record: AttemptRecord, now: float) -> None:
        """An attempt has ended; only this drain's own ones tell anything."""
        job = self._job(record.job)
        if job is None or record.cause != self.cause or job.step not in (S.STOPPING, S.WAITING):
            return
        if record.state is AttemptState.COMMITTED and record.stop:
            self._begin_move(job, record.attempt, now)
            return
        why = record.failure.what if record.failure is not None else record.reason
        self._stop_failed(job, why, now)

    def stop_refused(self, name: str, failure: Failure, now: float) -> None:
        """The checkpoint that was asked for was refused; nothing was changed."""
        job = self._job(name)
        if job is None or job.step is not S.STOPPING:
            return
        if failure.kind == "Busy":
            self._wait(job, now + RETRY_S)
            return
        self._stop_failed(job, failure.what, now)

    def move_refused(self, name: str, failure: Failure, now: float) -> None:
        """The restore that was asked for was refused, or could not be asked for."""
        job = self._job(name)
        if job is None:
            return
        if failure.kind == "Busy":
            self._again(job, now, 0)
        else:
            self._move_failed(job, failure.what, now, for_good=failure.kind in NO_OTHERS)

    def restore_ended(self, record: RestoreRecord, now: float) -> None:
        """A restore of the job has ended; where it runs is seen at the next look."""
        job = self._job(record.job)
        if job is None or record.state is RestoreState.RUNNING or record.cause != self.cause:
            return
        why = record.failure.what if record.failure is not None else record.reason
        self._move_failed(job, why, now)

    # -- looks, by step --------------------------------------------------------------------------

    def _waiting(self, job: DrainedJob, sight: Sight, now: float) -> None:
        if self.record.state is DrainState.UNDRAINING:
            self._put(replace(job, step=S.STAYED))
        elif sight.busy:
            self._in_time(job, now, "something else had the job until then")
        elif sight.stopped:
            self._begin_move(job, sight.stopped, now)
        elif not sight.placed:
            self._put(replace(job, step=S.MOVED, why=""))
        elif not self._in_time(job, now, "it was not whole until then"):
            return
        elif sight.whole and now >= self._of(job.job).not_before:
            left = self._left_s(now)
            self._put(replace(job, step=S.STOPPING))
            self._of(job.job).at = now
            self.moves.append(Stop(job.job, left or 0.0))

    def _in_time(self, job: DrainedJob, now: float, why: str) -> bool:
        left = self._left_s(now)
        if left is None or left > 0:
            return True
        self._put(replace(job, step=S.STAYED, why=job.why or f"its time is up; {why}"))
        return False

    def _stopping(self, job: DrainedJob, sight: Sight, now: float) -> None:
        if self._awaited(job, sight, now):
            return
        if sight.stopped:
            self._begin_move(job, sight.stopped, now)
        else:
            self._wait(job, now)

    def _moving(self, job: DrainedJob, sight: Sight, now: float) -> None:
        if self._awaited(job, sight, now):
            return
        if sight.whole:
            back = sight.placed and self.record.state is DrainState.DRAINING
            self._put(replace(job, step=S.STAYED if back else S.MOVED))
        elif now >= self._of(job.job).not_before:
            self._ask(job, now)

    def _returning(self, job: DrainedJob, sight: Sight, now: float) -> None:
        if self._awaited(job, sight, now):
            return
        if sight.whole:
            self._put(replace(job, step=S.STAYED))
        elif now >= self._of(job.job).not_before:
            self._ask(job, now)

    # -- what follows ----------------------------------------------------------------------------

    def _awaited(self, job: DrainedJob, sight: Sight, now: float) -> bool:
        """Whether what was asked for runs, or may still begin."""
        asked = self._of(job.job)
        if sight.busy:
            asked.at = None
            return True
        return asked.at is not None and now - asked.at < UNANSWERED_S and not sight.whole

    def _begin_move(self, job: DrainedJob, snapshot: str, now: float) -> None:
        moved = replace(job, step=S.MOVING, snapshot=snapshot, tries=0, why="")
        self._put(moved)
        self._asked[job.job] = _Asked()
        self._ask(moved, now)

    def _ask(self, job: DrainedJob, now: float) -> None:
        self._of(job.job).at = now
        self.moves.append(Move(job.job, job.snapshot, anywhere=job.step is S.RETURNING))

    def _stop_failed(self, job: DrainedJob, why: str, now: float) -> None:
        tries = job.tries + 1
        if tries >= STOPS_MAX:
            self._put(replace(job, step=S.STAYED, why=why, tries=tries))
            return
        self._wait(replace(job, why=why, tries=tries), now + RETRY_S * 2**tries)

    def _wait(self, job: DrainedJob, not_before: float) -> None:
        self._asked[job.job] = _Asked(not_before=not_before)
        self._put(replace(job, step=S.WAITING))

    def _move_failed(
        self, job: DrainedJob, why: str, now: float, *, for_good: bool = False
    ) -> None:
        tries = job.tries + 1
        if job.step is S.MOVING and (for_good or tries >= MOVES_MAX):
            self._put(replace(job, step=S.RETURNING, why=why, tries=0))
            self._again(job, now, 0)
        elif job.step is S.RETURNING and tries >= RETURNS_MAX:
            told = f"{job.why}; and it could not be put back: {why}"
            self._put(replace(job, step=S.STRANDED, why=told, tries=tries))
            self.stranded.append((job.job, told))
        elif job.step in (S.MOVING, S.RETURNING):
            first = job.why if job.step is S.RETURNING else why
            self._put(replace(job, why=first, tries=tries))
            self._again(job, now, tries)

    def _again(self, job: DrainedJob, now: float, tries: int) -> None:
        wait_s = min(RETRY_S_MAX, RETRY_S * 2**tries) if tries else 0.0
        self._asked[job.job] = _Asked(not_before=now + wait_s)

    def _settle(self) -> None:
        """All jobs have come to an end: so has the drain."""
        jobs = self.record.jobs
        if any(each.step not in ENDS for each in jobs):
            return
        if self.record.state is DrainState.UNDRAINING:
            self._keep(state=DrainState.UNDRAINED)
            return
        stayed = [each for each in jobs if each.step is not S.MOVED]
        if not stayed:
            self._keep(state=DrainState.DRAINED, reason="nothing runs on it")
            return
        told = "; ".join(
            f"job {each.job} {'stayed' if each.step is S.STAYED else 'is stopped'}: {each.why}"
            for each in stayed
        )
        self._keep(state=DrainState.FAILED, reason=told)

    # -- the record ------------------------------------------------------------------------------

    def _left_s(self, now: float) -> float | None:
        """Seconds up to the deadline; None: there is none."""
        if not self.record.deadline_unix_s:
            return None
        return self.record.deadline_unix_s - (now + self.unix_less_now)

    def _of(self, job: str) -> _Asked:
        return self._asked.setdefault(job, _Asked())

    def _job(self, name: str) -> DrainedJob | None:
        return next((each for each in self.record.jobs if each.job == name), None)

    def _put(self, job: DrainedJob) -> None:
        self._keep(jobs=tuple(job if each.job == job.job else each for each in self.record.jobs))

    def _keep(self, **fields: object) -> None:
        self.record = replace(self.record, **fields)  # type: ignore[arg-type]
        self.changed = True


_LOOKS: Mapping[DrainStep, Callable[[Drain, DrainedJob, Sight, float], None]] = {
    S.WAITING: Drain._waiting,
    S.STOPPING: Drain._stopping,
    S.MOVING: Drain._moving,
    S.RETURNING: Drain._returning,
}
