"""What shims are told by others: that their node is about to go, or that its jobs are to be saved.

    DRAIN       the node is emptied, see `draining`; where it cannot be, its jobs are saved at least
    CHECKPOINT  its jobs are saved, and go on; one that something has is saved after that
    STOP        its jobs are saved and stopped; one that something has is left to the next telling
    END         its shim ends now: the runs of its jobs were ended on purpose, nothing has failed

The same notice again changes nothing. What asks for more than can be done is refused at once, and
the shim is told why. Where that is so only as things stand the shim tells it again, and it is
tried again once a node is free that was not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core import events
from coordinator.core.cluster import NOT_ALIVE, Cluster
from coordinator.core.commands import AskCheckpoint, AskDrain, Command, RefuseNotice
from coordinator.core.drain_events import DrainRequested, DrainUnready, NoticeGiven, NoticeKind
from coordinator.core.draining import Draining
from coordinator.core.errors import AllstopError, Busy, NoPlan
from coordinator.core.known import ATTACHED
from coordinator.core.model import Cut
from coordinator.core.policy import Policy

K = NoticeKind
STANDS_S = 300.0  # a notice that is not told again for so long is another one when it is


@dataclass
class _Refused:
    """A notice of a drain that cannot be followed as things stand."""

    reason: str
    told_at: float
    free: frozenset[str] | None  # nodes without workers then; None: tried whenever it is told


@dataclass(frozen=True)
class _Save:
    """A checkpoint that waits until nothing else has its job."""

    node: str
    why: str
    until: float
    deadline: bool  # whether `until` is the notice's own


class Noticing:
    """Notices of all nodes; what it remembers is remembered by the shims too."""

    def __init__(
        self,
        cluster: Cluster,
        draining: Draining,
        note: Callable[[str], None],
        cut: Callable[[str], Cut],
        policy: Policy,
    ) -> None:
        """`cut`: how a job's ranks come to rest."""
        self._cluster = cluster
        self._draining = draining
        self._note = note
        self._cut = cut
        self._policy = policy
        self._refused: dict[tuple[str, str, str], _Refused] = {}  # by node, its shim, and why
        self._saves: dict[str, _Save] = {}  # by job

    # -- what is told ----------------------------------------------------------------------------

    def given(self, event: NoticeGiven, now: float) -> list[Command]:
        """A shim says what it was told."""
        node, why, deadline_s = event.node, event.why, event.deadline_s
        if event.kind is K.END:
            for told in self._cluster.taken_away(node, why):
                self._note(told)
            return []
        if event.kind is not K.DRAIN:
            return self._save(node, why, deadline_s, now, stop=event.kind is K.STOP)
        if self._draining.on_its_way(node):
            return self._draining.hurry(node, deadline_s, now, self._session(node))
        known = self._standing(node, why, now)
        if known is not None and known.free is not None:
            known.told_at, free = now, self._free()
            if free <= known.free:
                known.free = free
                return [RefuseNotice(node, K.DRAIN, known.reason, again=True)]
        if known is None:
            self._note(f"{node} is about to go{_within(deadline_s)}: {why}")
        return [AskDrain(node, deadline_s, why, self._session(node))]

    def drain_begins(self, event: DrainRequested) -> None:
        """What was refused before is done after all."""
        self._refused.pop((event.node, self._session(event.node), event.why), None)

    def drain_unready(self, event: DrainUnready) -> list[Command]:
        """What the drain of a node needs could not be read; its shim tells it again."""
        self._note(f"{event.node} cannot be drained yet: {event.failure.what}")
        if not event.session:
            return []
        return [RefuseNotice(event.node, K.DRAIN, event.failure.what, again=True)]

    def drain_refused(
        self, event: DrainRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """It cannot be emptied: where it goes all the same, its jobs are saved at least, once."""
        if not event.notice or event.node not in self._cluster.nodes:
            return []
        known = self._standing(event.node, event.why, now)
        for key in [key for key, each in self._refused.items() if now - each.told_at > STANDS_S]:
            self._refused.pop(key)
        free = self._free() if isinstance(error, NoPlan) else None
        key = (event.node, self._session(event.node), event.why)
        self._refused[key] = _Refused(error.what, now, free)
        commands: list[Command] = []
        if event.session:
            again = isinstance(error, NoPlan | Busy)
            commands.append(RefuseNotice(event.node, K.DRAIN, error.what, again))
        if known is None:
            why = f"{event.node} goes: {event.why}"
            commands += self._save(event.node, why, event.deadline_s, now)
        return commands

    def checkpoint_refused(
        self, event: events.CheckpointRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """One that a notice asked for; a job that something else has is asked for again."""
        if not event.notice:
            return []
        if isinstance(error, Busy):
            if not event.stop:
                self._later(event.job, event.notice, event.cause, event.deadline_s, now)
            return []
        kind = K.STOP if event.stop else K.CHECKPOINT
        return [RefuseNotice(event.notice, kind, f"job {event.job}: {error.what}")]

    # -- what waits ------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._saves)

    def look(self, now: float) -> list[Command]:
        """See whether jobs that are to be saved can be."""
        commands: list[Command] = []
        for name, save in list(self._saves.items()):
            job = self._cluster.jobs.get(name)
            sight = self._draining.sight(job, save.node) if job is not None else None
            if sight is None or not sight.placed:
                self._saves.pop(name)
            elif now >= save.until:
                self._saves.pop(name)
                why = f"job {name}: it was busy, or not whole, until its time was up"
                commands.append(RefuseNotice(save.node, K.CHECKPOINT, why))
            elif sight.whole and not sight.busy:
                self._saves.pop(name)
                left_s = save.until - now if save.deadline else 0.0
                commands.append(self._ask(name, save.node, save.why, left_s))
        return commands

    # -- pieces ----------------------------------------------------------------------------------

    def _save(
        self, node: str, why: str, deadline_s: float, now: float, *, stop: bool = False
    ) -> list[Command]:
        commands: list[Command] = []
        for job in self._cluster.jobs.values():
            sight = self._draining.sight(job, node)
            if sight.placed and not sight.busy and (stop or sight.whole):
                commands.append(self._ask(job.name, node, why, deadline_s, stop=stop))
            elif sight.placed and not stop:
                self._later(job.name, node, why, deadline_s, now)
        return commands

    def _later(self, job: str, node: str, why: str, deadline_s: float, now: float) -> None:
        self._note(f"job {job} is saved once it is whole and nothing else has it: {why}")
        until = now + (deadline_s or self._policy.attempt_s)
        self._saves[job] = _Save(node, why, until, deadline=deadline_s > 0)

    def _ask(
        self, job: str, node: str, why: str, deadline_s: float, *, stop: bool = False
    ) -> AskCheckpoint:
        plenty = deadline_s >= self._policy.attempt_s
        return AskCheckpoint(
            job,
            self._cut(job),
            why,
            stop=stop,
            deadline_s=0.0 if plenty else deadline_s,
            notice=node,
        )

    def _standing(self, node: str, why: str, now: float) -> _Refused | None:
        """That notice, where it was refused and is told again."""
        known = self._refused.get((node, self._session(node), why))
        return known if known is not None and now - known.told_at <= STANDS_S else None

    def _session(self, node: str) -> str:
        known = self._cluster.nodes.get(node)
        return known.session if known is not None else ""

    def _free(self) -> frozenset[str]:
        """Nodes in reach that may take workers and have none."""
        return frozenset(
            name
            for name, node in self._cluster.nodes.items()
            if node.state == ATTACHED
            and name not in self._cluster.drained
            and all(state.state in NOT_ALIVE for state in node.workers.values())
        )


def _within(deadline_s: float) -> str:
    return f", in {deadline_s:.0f} s" if deadline_s else ""
