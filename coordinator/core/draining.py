"""Drains of all nodes: admitted or refused, recorded before anything is stopped, then carried out.

See `drain` for the rules of one. What it asks for goes through admission like any request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from coordinator.core import drain_events, events
from coordinator.core.admission import admit_attempt
from coordinator.core.cluster import FRESH, NOT_ALIVE, NOT_READY, Cluster
from coordinator.core.commands import (
    Announce,
    AskCheckpoint,
    AskRestore,
    Command,
    PutDrain,
    Refuse,
    RefuseNotice,
)
from coordinator.core.drain import Drain, Move, Sight, Stop
from coordinator.core.drain_events import NoticeKind
from coordinator.core.drain_records import DrainedJob, DrainRecord, DrainState, cause_of
from coordinator.core.errors import AllstopError, BadRequest, Busy, NotFound, NotReady, Where
from coordinator.core.evacuation import require_nodes
from coordinator.core.failures import failure_of, listed
from coordinator.core.known import ATTACHED, Job
from coordinator.core.model import AttemptRecord, AttemptState, Cut, RestoreRecord
from coordinator.core.pace import Pace
from coordinator.core.policy import Policy
from coordinator.core.running import Running

CALLED_OFF = frozenset({DrainState.UNDRAINING, DrainState.UNDRAINED})
WAITS_S = 86400.0  # for jobs that cannot be stopped yet, where no deadline was given


@dataclass(frozen=True)
class Means:
    """What a drain is admitted by."""

    pace: Pace
    policy: Policy
    epoch: int


@dataclass
class _New:
    """A drain that is not in the store yet."""

    drain: Drain
    asked: list[str] = field(default_factory=list)  # requests that wait for that

    def told(self, event: drain_events.DrainStored | drain_events.DrainUnstored) -> bool:
        """Whether that is its first write, and none of an earlier drain of the node."""
        return event.requested_unix_s == self.drain.record.requested_unix_s


class Draining:
    """Drains by node; the caller looks about once a second."""

    def __init__(
        self,
        cluster: Cluster,
        running: Running,
        note: Callable[[str], None],
        cut: Callable[[str], Cut],
        means: Means,
        stranded: Callable[[str, str, float], list[Command]],
    ) -> None:
        """`cut`: how a job's ranks come to rest; `stranded` takes over what is left stopped."""
        self._cluster = cluster
        self._running = running
        self._note = note
        self._cut = cut
        self._means = means
        self._stranded = stranded
        self._drains: dict[str, Drain] = {}
        self._asked: dict[str, list[str]] = {}  # to call off, by node; they wait for the store
        self._new: dict[str, _New] = {}
        self._stops: dict[tuple[str, str], tuple[str, float]] = {}  # by cause and job
        self._unix_less_now = 0.0
        self._sure_at = 0.0  # before this, a job that is not known may be on its way

    def adopt(
        self,
        records: Iterable[DrainRecord],
        ended: Iterable[AttemptRecord],
        unix_less_now: float,
        now: float,
    ) -> None:
        """Take over what the store holds; `unix_less_now`: the wall clock's lead over ours."""
        self._unix_less_now = unix_less_now
        self._sure_at = now + self._means.policy.adopt_s
        for record in records:
            self._drains[record.node] = Drain(record, unix_less_now)
        for attempt in ended:
            self._remember(attempt)
        self._refuse_workers()

    def records(self) -> Mapping[str, DrainRecord]:
        """Where each drain stands, by node."""
        return {name: drain.record for name, drain in self._drains.items()}

    @property
    def acts(self) -> bool:
        """Whether there is anything to look at."""
        return any(each.acts or each.changed or self._over(each) for each in self._drains.values())

    # -- requests --------------------------------------------------------------------------------

    def requested(self, event: drain_events.DrainRequested, now: float) -> list[Command]:
        """Admit a drain, or raise a kind of Refused with every reason; nothing is stopped by it.

        One that is on its way, or has emptied the node, is joined.
        """
        known, new = self._drains.get(event.node), self._new.get(event.node)
        if new is not None:
            new.asked.append(event.request)
            self._join(new.drain, event, now)
            return []
        if known is not None and known.refuses:
            self._join(known, event, now)
            return [*self._kept(known), self._told(event.request, known.record)]
        if known is not None and known.acts:
            raise Busy(
                f"the drain of {event.node} is being called off, and jobs of it are put back",
                where=Where(node=event.node),
                advice="try again once `allstop nodes` does not show it any more",
            )
        jobs = self._require(event, now)
        deadline = event.unix_s + (event.deadline_s or WAITS_S)
        record = DrainRecord(
            event.node,
            why=event.why,
            reason=f"jobs to be moved: {listed(jobs)}" if jobs else "nothing runs on it",
            requested_unix_s=event.unix_s,
            deadline_unix_s=deadline,
            jobs=tuple(DrainedJob(job) for job in jobs),
            session=event.session,
        )
        self._unix_less_now = max(0.0, event.unix_s - now)
        self._new[event.node] = _New(Drain(record, self._unix_less_now), [event.request])
        self._note(f"{event.node} is to be drained: {record.reason}")
        return [PutDrain(record)]

    def _require(self, event: drain_events.DrainRequested, now: float) -> list[str]:
        """Jobs that are on the node; raises what speaks against moving them away."""
        node = self._cluster.nodes.get(event.node)
        if node is None:
            raise NotFound(
                f"no node {event.node!r} is known",
                where=Where(node=event.node),
                advice="`allstop nodes` lists them",
            )
        if node.state != ATTACHED:
            raise NotReady(
                f"{event.node} is {node.state}: {node.reason}",
                where=Where(node=event.node),
                advice="nothing on it can be saved; `allstop restore JOB` puts its jobs elsewhere",
            )
        if not 0 <= event.deadline_s < float("inf"):
            raise BadRequest(f"a deadline of {event.deadline_s} s makes no sense")
        there = [job for job in self._cluster.jobs.values() if self.sight(job, event.node).placed]
        for job in there:
            self._require_time(job, event, now)
        require_nodes(self._cluster, there, event)
        return [job.name for job in there]

    def _require_time(self, job: Job, event: drain_events.DrainRequested, now: float) -> None:
        """The checkpoint would be admitted, were it asked for now; a busy job is asked later.

        So is one that is not whole, where the node goes all the same.
        """
        policy, cut = self._means.policy, self._cut(job.name)
        # a notice is told again by whoever told it: what it is judged by does not wear out
        pace = self._means.pace.copy() if event.notice else self._means.pace
        sight = self.sight(job, event.node)
        try:
            if sight.busy or (event.notice and not sight.whole):
                pace.check(job.name, cut, policy, event.deadline_s or policy.attempt_s)
                return
            asked = events.CheckpointRequested(
                job.name, "", cut, stop=True, deadline_s=event.deadline_s, unix_s=event.unix_s
            )
            admit_attempt(self._cluster, pace, asked, self._means.epoch, policy, now)
        except AllstopError as error:
            raise error.at(job=job.name) from None

    def _join(self, drain: Drain, event: drain_events.DrainRequested, now: float) -> None:
        if event.deadline_s:
            drain.hurry(now + event.deadline_s + drain.unix_less_now)
        if not event.session:  # whoever asks is not told again once that shim is gone
            drain.keep()
        else:
            drain.told_by(event.session)

    def on_its_way(self, node: str) -> bool:
        """Whether a node is being drained already; one that is DRAINED has nothing to lose."""
        known = self._drains.get(node)
        return node in self._new or (
            known is not None and known.record.state is DrainState.DRAINING
        )

    def hurry(self, node: str, deadline_s: float, now: float, session: str = "") -> list[Command]:
        """A node goes sooner than was said when its drain began, or another shim of it says so."""
        new, drain = self._new.get(node), self._drains.get(node)
        drain = new.drain if new is not None else drain
        if drain is None:
            return []
        if deadline_s:
            drain.hurry(now + deadline_s + drain.unix_less_now)
        drain.told_by(session)
        return self._kept(drain) if new is None else []  # else written when its first write is

    def undrain(self, event: drain_events.UndrainRequested) -> list[Command]:
        """The node takes workers again; raises NotFound where it was not drained."""
        if event.node in self._new:
            raise Busy(
                f"the drain of {event.node} is just being recorded",
                where=Where(node=event.node),
                advice="try again in a moment",
            )
        drain = self._drains.get(event.node)
        if drain is None:
            raise NotFound(f"{event.node} is not drained", where=Where(node=event.node))
        drain.undrain("called off")
        self._asked.setdefault(event.node, []).append(event.request)
        return self._kept(drain)

    def stored(self, event: drain_events.DrainStored) -> list[Command]:
        """A state of a drain is in the store: whoever asked is told, and a new drain begins."""
        new = self._new.get(event.node)
        if new is not None and new.told(event):
            self._drains[event.node] = self._new.pop(event.node).drain
            self._refuse_workers()
            told = [self._told(asked, new.drain.record) for asked in new.asked]
            return [*told, *self._kept(new.drain)]
        if event.state not in CALLED_OFF:
            return []
        drain = self._drains.get(event.node)
        record = drain.record if drain is not None else DrainRecord(event.node)
        if event.state == DrainState.UNDRAINED:
            record = replace(record, state=DrainState.UNDRAINED)
            if drain is not None and drain.record.state is DrainState.UNDRAINED:
                self._drains.pop(event.node)
        return [self._told(asked, record) for asked in self._asked.pop(event.node, [])]

    def unstored(self, event: drain_events.DrainUnstored) -> list[Command]:
        """It is not in the store: a new drain does not begin, a later state is written again."""
        new = self._new.get(event.node)
        if new is not None and new.told(event):
            refused: list[Command] = [Refuse(asked, event.failure) for asked in new.asked]
            record = self._new.pop(event.node).drain.record
            if record.session:
                why = event.failure.what
                refused.append(RefuseNotice(event.node, NoticeKind.DRAIN, why, again=True))
            return refused
        drain = self._drains.get(event.node)
        if drain is not None:
            drain.changed = True
        if event.state not in CALLED_OFF:
            return []
        return [Refuse(asked, event.failure) for asked in self._asked.pop(event.node, [])]

    # -- what is told ----------------------------------------------------------------------------

    def attempt_ended(self, record: AttemptRecord, now: float) -> list[Command]:
        """Whoever asked for it."""
        self._remember(record)
        return self._each(lambda drain: drain.attempt_ended(record, now), now)

    def checkpoint_refused(
        self, event: events.CheckpointRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """Whoever asked for it."""
        failure = failure_of(error)
        return self._one(
            event.drain, lambda drain: drain.stop_refused(event.job, failure, now), now
        )

    def restore_refused(
        self, event: events.RestoreRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """Whoever asked for it."""
        failure = failure_of(error)
        return self._one(
            event.drain, lambda drain: drain.move_refused(event.job, failure, now), now
        )

    def unready(self, event: events.RestoreUnready, now: float) -> list[Command]:
        """What a restore needs could not even be read."""
        return self._one(
            event.drain, lambda drain: drain.move_refused(event.job, event.failure, now), now
        )

    def restore_ended(self, record: RestoreRecord, now: float) -> list[Command]:
        """Whoever asked for it."""
        return self._each(lambda drain: drain.restore_ended(record, now), now)

    def look(self, now: float) -> list[Command]:
        """See how every node and job stands, and do what follows."""
        commands: list[Command] = []
        for name, drain in list(self._drains.items()):
            if name in self._new:
                continue  # over, and about to be replaced
            if self._over(drain):
                drain.undrain("the shim that was told to go is replaced by another")
            if not drain.acts:
                commands += self._kept(drain)
                continue
            sights = {
                job.name: self.sight(job, name, drain)
                for job in self._cluster.jobs.values()
                if now >= job.sure_at or self._whole(job)
            }
            missing = [each.job for each in drain.record.jobs if each.job not in sights]
            if missing and now < self._sure_at:
                continue  # a new leader waits for who may be on the way
            drain.look(sights, now)
            commands += self._kept(drain)
        return commands

    # -- pieces ----------------------------------------------------------------------------------

    def _over(self, drain: Drain) -> bool:
        """Whether the shim whose notice began it is gone, its workers too, and another is there."""
        session, node = drain.record.session, self._cluster.nodes.get(drain.record.node)
        if not session or not drain.refuses or node is None or node.state != ATTACHED:
            return False
        lives = (w.incarnation != FRESH and w.state not in NOT_ALIVE for w in node.workers.values())
        return node.session != session and not any(lives)

    def _one(self, node: str, tell: Callable[[Drain], None], now: float) -> list[Command]:
        drain = self._drains.get(node)
        if drain is None:
            return []
        drain.moves = []
        tell(drain)
        commands = self._kept(drain)
        left, drain.stranded = drain.stranded, []
        return commands + [each for job, why in left for each in self._stranded(job, why, now)]

    def _each(self, tell: Callable[[Drain], None], now: float) -> list[Command]:
        return [each for node in list(self._drains) for each in self._one(node, tell, now)]

    def _kept(self, drain: Drain) -> list[Command]:
        """What a drain has decided: the record first."""
        commands: list[Command] = []
        if drain.changed:
            drain.changed = False
            self._note(f"{drain.cause}: {drain.record.state}, {drain.record.reason}")
            commands.append(PutDrain(drain.record))
            self._refuse_workers()
        for move in drain.moves:
            commands.append(self._asking(drain, move))
        drain.moves = []
        return commands

    def _asking(self, drain: Drain, move: Stop | Move) -> Command:
        node = drain.record.node
        if isinstance(move, Move):
            return AskRestore(
                move.job,
                (),
                drain.cause,
                snapshot=move.snapshot,
                drain=node,
                anywhere=move.anywhere,
            )
        plenty = move.deadline_s >= self._means.policy.attempt_s
        return AskCheckpoint(
            move.job,
            self._cut(move.job),
            drain.cause,
            stop=True,
            deadline_s=0.0 if plenty else move.deadline_s,
            drain=node,
        )

    def _refuse_workers(self) -> None:
        refusing = {name: drain.refuses for name, drain in self._drains.items() if drain.refuses}
        self._cluster.drained.clear()
        self._cluster.drained.update(refusing)

    def _remember(self, record: AttemptRecord) -> None:
        if record.state is AttemptState.COMMITTED and record.stop and record.cause:
            self._stops[record.cause, record.job] = (record.attempt, record.requested_unix_s)

    def _whole(self, job: Job) -> bool:
        states = self._cluster.alive(job)
        well = not any(state.state in NOT_READY for state in states)
        return bool(states) and len(states) == job.workers and well and not job.beginning

    def sight(self, job: Job, node: str, drain: Drain | None = None) -> Sight:
        """How a job stands, as far as a drain of that node wants to know."""
        whole = self._whole(job)
        here = any(at == node for at, _ in self._cluster.of_job(job.name))
        maybe = any(
            at == node and self._cluster.standing(job, worker) in ("alive", "lost")
            for worker, at in job.places.items()
        )
        stopped = ""
        if drain is not None and not whole:
            snapshot, unix_s = self._stops.get((cause_of(node), job.name), ("", 0.0))
            if snapshot == job.latest and unix_s >= drain.record.requested_unix_s:
                stopped = snapshot
        return Sight(
            busy=bool(self._running.of_job(job.name)) or job.beginning,
            whole=whole,
            placed=here or maybe,
            stopped=stopped,
        )

    def _told(self, request: str, record: DrainRecord) -> Command:
        return Announce(request, str(record.state), record.reason, 0.0, last=True)
