"""What an attempt and a restore have in common: members, rounds of orders, and who is awaited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from coordinator.core.commands import Announce, Command, SendOrder
from coordinator.core.errors import AllstopError
from coordinator.core.events import NodeLeft, NodeLost, OrderAnswered, WorkerExited
from coordinator.core.failures import listed
from coordinator.core.model import Failure, Phase, PhaseTiming, RankState
from coordinator.core.policy import Policy

S = TypeVar("S", bound=StrEnum)

FOREVER = float("inf")
NOT_SEEN = "it has not attached to this leader"  # why an heir takes a node for out of reach
NOTES_LIMIT = 16
CLOCK_DRIFT = 0.005  # by which the rates of two machines' monotonic clocks differ at most
DETAILS_LIMIT = 64  # of a failure: it is stored, and a thousand names help nobody
# Each announcement costs O(n): within one round of n answers there are at most so many of them, and
# where that is not every answer, they are so far apart that a person can see the difference.
PROGRESS_STEPS = 16
PROGRESS_INTERVAL_S = 0.1
NAMED_MAX = 64  # so many of the awaited are named to whoever watches, the others are counted


@dataclass(frozen=True)
class Member:
    """One worker of an action and the node it is on; frozen for the whole action."""

    worker: int
    node: str

    def __str__(self) -> str:
        return f"worker {self.worker} on {self.node or 'a node that has not attached yet'}"


@dataclass
class Round:
    """One phase: an order to every member, and who has not answered it yet."""

    phase: Phase
    sent_at: float
    deadline: float
    capped: bool  # the action's own deadline is the nearer one
    held_until: float  # when the first dead-man timer may run out; FOREVER: nothing is held
    expected: int
    awaited: dict[int, Member]
    whom: str = ""  # awaited instead of members: the store
    slowest: str = ""
    announced_at: float = 0.0

    @property
    def sure_until(self) -> float:
        """Until when no dead-man timer of this round can have run out, on a fast clock either."""
        return self.sent_at + (self.held_until - self.sent_at) * (1.0 - CLOCK_DRIFT)

    def take(self, worker: int) -> None:
        """An answer is in."""
        self.slowest = str(self.awaited.pop(worker))

    @property
    def complete(self) -> bool:
        """Whether every answer is in."""
        return not self.awaited and not self.whom

    def worth_announcing(self, now: float) -> bool:
        """Whether the last answer is one of the few per round that are announced."""
        done = self.expected - len(self.awaited)
        every = self.expected // PROGRESS_STEPS
        if every > 1 and (done % every or now - self.announced_at < PROGRESS_INTERVAL_S):
            return False
        self.announced_at = now
        return True


@dataclass
class Action(Generic[S]):
    """An attempt or a restore on its way; changed only by the handlers of its table."""

    FAILED_AS: ClassVar[type[AllstopError]]
    ENDS: ClassVar[frozenset[StrEnum]]

    id: str
    job: str
    epoch: int
    incarnation: int
    policy: Policy
    started: float
    deadline_s: float
    unix_s: float
    members: dict[int, Member]
    state: S
    reason: str
    failure: Failure | None = None
    rounds: dict[Phase, Round] = field(default_factory=dict)
    timings: list[PhaseTiming] = field(default_factory=list)
    seen: dict[int, tuple[RankState, ...]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)  # worker: why its node is out of reach
    notes: list[str] = field(default_factory=list)
    said: list[tuple[str, bool]] = field(
        default_factory=list
    )  # reason, ignored; drained by control
    by_node: dict[str, list[int]] = field(default_factory=dict)
    adopted: bool = False  # found in the store by a new leader, which can only bring it to an end
    ordered: bool = False  # orders went out: there is something to undo
    undone: set[int] = field(default_factory=set)  # workers that have answered UNDO
    held_until: float = FOREVER  # when the first hold of the newest order that holds may run out

    def __post_init__(self) -> None:
        for member in self.members.values():
            self.by_node.setdefault(member.node, []).append(member.worker)

    # -- what is asked of it -------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether it is in a state that nothing leaves."""
        return self.state in self.ENDS

    def next_wakeup(self) -> float | None:
        """The nearest deadline of the open rounds."""
        return min((r.deadline for r in self.rounds.values()), default=None)

    def overdue(self, now: float) -> list[Round]:
        """Open rounds whose deadline has come."""
        return [r for r in self.rounds.values() if r.deadline <= now]

    def workers_on(self, node: str) -> list[int]:
        """Members that are on a node."""
        return self.by_node.get(node, [])

    def concerns(self, node: str) -> bool:
        """Whether the loss of a node is anything to this action."""
        return node in self.by_node

    def cares_about_exit(self, event: WorkerExited) -> bool:
        """Whether the end of a worker is anything to this action."""
        member = self.members.get(event.worker)
        return (
            member is not None
            and member.node == event.node
            and event.incarnation == self.incarnation
        )

    def lose(self, event: NodeLost | NodeLeft) -> list[int]:
        """Mark a node's members as out of reach and return them."""
        workers = self.workers_on(event.node)
        for worker in workers:
            self.lost[worker] = event.reason
        return workers

    def in_reach(self) -> list[Member]:
        """Members whose node is not known to be out of reach."""
        return [m for m in self.members.values() if m.worker not in self.lost]

    def not_undone(self) -> tuple[int, ...]:
        """Workers that may have something left of this action, if it is to be undone."""
        return tuple(w for w in self.members if w not in self.undone) if self.ordered else ()

    @property
    def phase(self) -> str:
        """The phase that is under way, for errors; of several the one that was begun last."""
        return next((str(phase) for phase in reversed(self.rounds)), str(self.state))

    def observe(self, worker: int, ranks: tuple[RankState, ...]) -> None:
        """Remember what a shim last reported of a member's ranks; decides nothing."""
        if worker in self.members and ranks:
            self.seen[worker] = ranks

    # -- what its handlers do ------------------------------------------------------------------

    def ignore(self, reason: str) -> None:
        """Note that the event changed nothing, and why."""
        self.said.append((reason, True))

    def move(self, state: S, reason: str) -> None:
        """Go to a state (or stay) for a reason."""
        self.state = state
        self.reason = reason
        self.said.append((reason, False))

    def note(self, text: str) -> None:
        """Keep something that does not decide the outcome and belongs into its last sentence."""
        self.said.append((text, False))
        if len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)

    def with_notes(self, text: str) -> str:
        """A sentence followed by what was noted on the way."""
        return "; ".join([text, *self.notes])

    def open_round(
        self,
        phase: Phase,
        seconds: float,
        now: float,
        *,
        holds: bool = False,
        capped: bool = True,
        hold_extra_s: float = 0.0,
        members: Iterable[Member] | None = None,
        whom: str = "",
    ) -> Round:
        """Begin to wait for a phase: for the members given, all of them, or `whom` alone."""
        deadline = now + seconds
        total = self.started + self.deadline_s
        is_capped = capped and total < deadline
        deadline = max(now, total) if is_capped else deadline
        chosen = self.members.values() if members is None else members
        awaited = {} if whom else {m.worker: m for m in chosen}
        held_until = deadline + hold_extra_s + self.policy.margin_s if holds else FOREVER
        made = Round(phase, now, deadline, is_capped, held_until, len(awaited) or 1, awaited, whom)
        made.announced_at = now  # whoever opens a round announces it
        if holds:
            self.held_until = made.sure_until
        self.rounds[phase] = made
        return made

    def close_round(self, phase: Phase, now: float) -> None:
        """Stop waiting for a phase and keep how long it took."""
        ended = self.rounds.pop(phase, None)
        if ended is not None:
            self.timings.append(
                PhaseTiming(
                    phase=phase,
                    started_ms=round((ended.sent_at - self.started) * 1000),
                    took_ms=round((now - ended.sent_at) * 1000),
                    slowest=ended.slowest,
                )
            )

    def close_all(self, now: float) -> None:
        """Stop waiting for anything."""
        for phase in list(self.rounds):
            self.close_round(phase, now)

    def order(self, member: Member, sent: Round, now: float, **detail: Any) -> SendOrder:
        """The order of a round for one member."""
        return SendOrder(
            node=member.node,
            epoch=self.epoch,
            job=self.job,
            worker=member.worker,
            action=self.id,
            phase=sent.phase,
            deadline_s=sent.deadline - now,
            hold_s=0.0 if sent.held_until == FOREVER else sent.held_until - now,
            **detail,
        )

    def orders(self, sent: Round, now: float, **detail: Any) -> list[Command]:
        """The order of a round for everyone it awaits."""
        return [self.order(member, sent, now, **detail) for member in sent.awaited.values()]

    def accept(self, event: OrderAnswered, phase: Phase) -> Round | None:
        """The round that an answer belongs to, or None (noted) when it changes nothing.

        The answer is not taken yet: handlers check its content first.
        """
        if not self.is_of_member(event):
            return None
        sent = self.rounds.get(phase)
        if sent is None or event.worker not in sent.awaited:
            self.ignore(f"{phase} of {self.members[event.worker]} was answered or given up before")
            return None
        return sent

    def is_of_member(self, event: OrderAnswered) -> bool:
        """Whether an answer comes from the node that its worker is on; noted when it does not."""
        member = self.members.get(event.worker)
        if member is None or member.node != event.node:
            self.ignore(f"worker {event.worker} of this action is not on {event.node}")
            return False
        return True

    # -- what it tells -------------------------------------------------------------------------

    def pending_ranks(self, worker: int) -> tuple[RankState, ...]:
        """Ranks of a worker that are not parked, as last seen; all when that tells nothing."""
        ranks = self.seen.get(worker, ())
        return tuple(r for r in ranks if not r.parked) or ranks

    def announce(self, now: float, *, last: bool = False, **result: Any) -> Announce:
        """What to tell whoever watches: state, reason, and who is still awaited."""
        waiting = ((r, m) for r in self.rounds.values() for m in r.awaited.values())
        awaited = tuple(
            (m.worker, m.node, tuple(r.rank for r in self.pending_ranks(m.worker)), now - sent_at)
            for sent_at, m in ((r.sent_at, m) for r, m in islice(waiting, NAMED_MAX))
        )
        return Announce(
            action=self.id,
            state=str(self.state),
            reason=self.reason,
            elapsed_s=now - self.started,
            awaited=awaited,
            unnamed=sum(len(r.awaited) for r in self.rounds.values()) - len(awaited),
            expected=sum(r.expected for r in self.rounds.values()),
            last=last,
            **result,
        )

    def progress(self, sent: Round, now: float) -> list[Command]:
        """An announcement after an answer that completes nothing, now and then."""
        return [self.announce(now)] if sent.worth_announcing(now) else []

    def describe(self, member: Member) -> str:
        """An awaited member with the last boundary of each of its ranks."""
        ranks = self.pending_ranks(member.worker)
        if not ranks:
            return str(member)
        told = listed([f"rank {r.rank} last at step {r.boundary}" for r in ranks])
        return f"{member} ({told})"

    def _culprit(self, sent: Round) -> tuple[Member | None, int]:
        """Whom to name first: the rank that the others wait for, where one alone is behind."""
        members = list(sent.awaited.values())
        if sent.phase is Phase.PARK:
            seen = [(r.boundary, r.rank, m) for m in members for r in self.pending_ranks(m.worker)]
            lowest = min((boundary for boundary, _, _ in seen), default=0)
            behind = [(m, rank) for boundary, rank, m in seen if boundary == lowest]
            if len(behind) == 1:
                return behind[0]
        if not members:
            return None, -1
        ranks = self.pending_ranks(members[0].worker)
        return members[0], ranks[0].rank if len(ranks) == 1 else -1

    def late(self, sent: Round, now: float, kind: type[AllstopError]) -> Failure:
        """The failure of a round whose deadline has passed, naming everyone awaited."""
        members = list(sent.awaited.values())
        names = [self.describe(m) for m in members]
        first, rank = self._culprit(sent)
        limit = f", the deadline of the whole action ({self.deadline_s:g} s)" if sent.capped else ""
        return Failure(
            kind=kind.__name__,
            what=f"{sent.phase} was not answered within {now - sent.sent_at:.1f} s{limit}: "
            f"awaited {listed(names) or sent.whom}",
            job=self.job,
            worker=first.worker if first else -1,
            rank=rank,
            node=first.node if first else "",
            phase=str(sent.phase),
            advice="look at the named nodes and ranks, or allow more time with --deadline",
            definite=True,
            details=tuple(names[:DETAILS_LIMIT]),
        )
