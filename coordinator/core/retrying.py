"""What a recovery tries next: again and ever later, an older snapshot, the last resort, nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core import crash_loop
from coordinator.core.blame import Blame
from coordinator.core.job_policy import JobPolicy, LastResort, OnFailure, RecoveryState
from coordinator.core.model import Failure
from coordinator.core.story import Story

S = RecoveryState
RETRY_S = 1.0
RETRY_S_MAX = 60.0
UNANSWERED_S = 60.0  # a restore that was asked for has begun or was refused by then
EXCUSED_MAX = 20  # restores that fail, and not of their snapshot, before these are its tries too


@dataclass(frozen=True)
class Ask:
    """Hand in a request for a restore of the newest snapshot that is not among `skip`."""

    skip: tuple[str, ...]
    cause: str
    failed_on: tuple[str, ...] = ()  # nodes that are taken last
    scratch: bool = False  # start the job's commands from scratch


@dataclass(frozen=True)
class End:
    """End what is left of the job."""

    reason: str


Move = Ask | End


@dataclass
class Retrying(Story):
    """The tries of one job's recovery; whoever extends it says when they are made."""

    policy: JobPolicy
    moves: list[Move] = field(default_factory=list)
    began: float = 0.0  # of this recovery
    not_before: float = 0.0
    asked_at: float | None = None
    scratching: bool = False  # what was asked for last is a start from scratch
    delays: int = 0
    unasked: tuple[float, str] | None = None  # since when none could be asked for, and why
    excused: int = 0  # restores of this recovery that failed, and not of their snapshot
    doubted: str = ""  # a snapshot whose restore failed on a node, which may be at fault instead
    anew: bool = False  # somebody has started the job anew meanwhile
    doubt_since: float | None = None
    goes_on: bool = False  # the run that is given up has not been touched yet
    stands: str = ""  # why it is in its state

    @property
    def acts(self) -> bool:
        """Whether anything is done when the job fails."""
        return self.policy.on_failure is OnFailure.RESTORE

    def move(self, state: RecoveryState, text: str, now: float) -> None:
        """Go to a state, and tell why."""
        self.keep(state=state)
        self.goes_on = False
        if state is not S.RECOVERING:
            self.doubt_since = None
        if state in (S.UNSEEN, S.WATCHING, S.FINISHED):
            self.keep(why="")
        self.saw(text, now)
        self.stands = text

    def begin(self, now: float) -> None:
        """Another failure: whatever was tried before is of the past."""
        self.began, self.not_before, self.delays = now, now, 0
        self.excused, self.doubted, self.unasked = 0, "", None
        self.asked_at, self.anew, self.scratching = None, False, False

    def not_asked(self, failure: Failure, now: float) -> None:
        """It could not even be asked for, of something that is neither nodes nor snapshots."""
        since, why = self.unasked or (now, "")
        self.unasked = since, failure.what
        if failure.kind != "Busy" and why != failure.what:
            self.saw(f"a restore cannot be asked for: {failure.what}", now)
        if now - since > self.policy.wait_s:
            told = f"no restore could be asked for within {self.policy.wait_s:g} s"
            self.last_resort(f"{told}: {failure.what}", now)
            return
        self.again(now)

    def excuses(self, snapshot: str, blame: Blame, now: float) -> bool:
        """Whether a restore that failed is no try of its snapshot.

        On a node the first one is none: the next goes to another node, where there is one.
        """
        if blame.snapshot:
            doubted, self.doubted = self.doubted, snapshot
            return bool(blame.node) and doubted != snapshot
        waits = not blame.lost and now - self.began <= self.policy.wait_s
        self.excused += 1
        return waits or self.excused <= EXCUSED_MAX

    def skip(self, snapshot: str, now: float) -> bool:
        """Leave a snapshot behind; False where that was one too many."""
        if not snapshot or snapshot in self.record.skipped:
            return True
        self.put(crash_loop.left(self.record, snapshot))
        if self.record.left_behind > self.policy.tries:
            self.saw(f"{snapshot} is left behind", now)
            self.last_resort(f"{self.record.left_behind} snapshots have led nowhere", now)
            return False
        self.saw(f"{snapshot} is left behind; an older one is tried", now)
        return True

    def ask(self, now: float) -> None:
        """Have the newest snapshot restored that is not left behind."""
        self.asked_at, self.scratching = now, False
        self.moves.append(Ask(self.record.skipped, self.record.why, self.record.failed_on))

    def again(self, now: float) -> None:
        """Try once more, after a pause that grows."""
        self.not_before = now + min(RETRY_S_MAX, RETRY_S * 2 ** min(self.delays, 10))
        self.delays += 1

    def last_resort(self, why: str, now: float) -> None:
        """Nothing is left to restore, or nothing to restore it on."""
        cold = self.policy.last_resort is LastResort.COLD_START
        if cold and self.record.scratch < self.policy.tries:
            self.keep(scratch=self.record.scratch + 1)
            self.move(S.RECOVERING, f"{why}: it is started from scratch", now)
            self.asked_at, self.not_before, self.scratching = now, now + UNANSWERED_S, True
            self.moves.append(Ask((), self.record.why, self.record.failed_on, scratch=True))
            return
        self.give_up(why, now)

    def give_up(self, why: str, now: float) -> None:
        """Nothing more is tried; what was started anew meanwhile is left alone."""
        if self.anew:
            self.move(S.UNSEEN, f"{why}; it was started anew", now)
            return
        self.move(S.GIVEN_UP, f"given up, {why}", now)
        self.moves.append(End(f"its recovery was given up: {why}"))
