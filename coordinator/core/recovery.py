"""One job's way back after its run has ended: what is tried, and when it is given up.

    UNSEEN      the job was seen whole                              -> WATCHING
    WATCHING    the run has failed, and surely so: ask              -> RECOVERING
                it ended by itself, or was stopped                  -> FINISHED
    RECOVERING  it was restored                                     -> WATCHING
                failed: again, later; too often: an older snapshot
                no nodes can take it                                -> WAITING
                it cannot even be asked for: again, up to `wait_s`
                no snapshot is left, or too many were left behind,
                and no last resort                                  -> GIVEN_UP
                so too, but somebody has started the job anew       -> UNSEEN
    WAITING     nodes came: ask                                     (-> RECOVERING, as it begins)
                none came in time, and no last resort               -> GIVEN_UP
    GIVEN_UP    a policy is set anew                                -> WATCHING
    any         it is whole again, whoever did that                 -> WATCHING

Looked at about once a second with how the job stands (`Standing`), and told of its own restores.
Everything it decides is a line of the job's story. Times are monotonic seconds of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.core import crash_loop
from coordinator.core.blame import Blame
from coordinator.core.failures import listed
from coordinator.core.job_policy import (
    JobPolicy,
    RecoveryState,
    in_words,
)
from coordinator.core.model import Failure, RestoreRecord, RestoreState
from coordinator.core.retrying import UNANSWERED_S, Move, Retrying
from coordinator.core.standing import Pace, Standing

S = RecoveryState
SETTLE_S = 1.0  # after a crash, for the others that died of it to be told
NODES_S = 5.0  # between two looks for nodes
UNSEEN_S = 10.0  # that a job may be starting, before it is said that it is not watched
WAITED_S = 30.0  # of waiting for nodes may be lost with a leader
OLD_RUN = "OldRunUnseen"
NO_NODES = frozenset({"NoPlan", OLD_RUN, "NotReady"})


@dataclass
class Recovery(Retrying):
    """The recovery of one job."""

    hung_s: float = 30.0  # without a step: less is no hang, however quick the steps are
    step: int = 0  # seen last while it ran
    nodes: int = 0
    lacking: str = ""  # why no nodes could take it, and what may help
    lacking_kind: str = ""
    hung_at: Mapping[int, int] = field(default_factory=dict)  # ranks that are hung, and where

    # -- what is told ----------------------------------------------------------------------------

    def look(self, standing: Standing, now: float) -> list[Move]:
        """See how the job stands; returns what is to be done, at most one thing."""
        self.moves = []
        if self.acts:
            _LOOKS[self.record.state](self, standing, now)
        self.nodes = standing.nodes
        if standing.whole and not standing.busy:
            self.step = standing.step
        return self.moves

    def ended(self, workers: tuple[int, ...], incarnation: int) -> None:
        """These have ended with 0: a later leader may find them nowhere, and nothing is amiss."""
        if workers and (workers, incarnation) != (self.record.ended, self.record.ended_in):
            self.keep(ended=workers, ended_in=incarnation)

    def stopped(self, how: str, now: float) -> None:
        """The job has been stopped on purpose."""
        if self.record.state is not S.FINISHED:
            self.move(S.FINISHED, how, now)

    def left_stopped(self, why: str, now: float) -> None:
        """It was stopped to be moved, and nobody has brought it back."""
        self.moves = []
        if self.record.state is S.FINISHED:
            self._fail(why, Standing(), now, itself=False)

    def set(self, policy: JobPolicy, now: float) -> None:
        """An operator has set a policy; what was given up before is begun anew by it."""
        self.policy = policy
        self.saw(f"the policy is set: {in_words(policy)}", now)
        if not self.acts or not policy.hung:
            self.hung_at = {}
        if not self.acts:
            self.asked_at = None
        if self.record.state is S.UNSEEN:
            self.doubt_since, self.stands = None, ""
        if self.acts and self.record.state is S.GIVEN_UP:
            self.put(crash_loop.begun_anew(self.record))
            self.move(S.WATCHING, "with that, what was given up is tried again", now)

    def condemned(self, why: str, standing: Standing, now: float) -> None:
        """Give up a run that goes on, for no fault of its own; it is touched once a restore begins.

        Nothing while something has it, or while it is being recovered anyway.
        """
        if standing.busy or not standing.whole or self.record.state not in (S.UNSEEN, S.WATCHING):
            return
        self.begin(now)
        self.keep(why=why)
        self.move(S.RECOVERING, f"it is given up at step {standing.step}: {why}", now)
        self.goes_on = True
        self.ask(now)

    def started_anew(self) -> None:
        """A new run of the job begins, and not by a restore."""
        self.anew = self.record.state in (S.RECOVERING, S.WAITING)

    def committed(self, snapshot: str, step: int) -> None:
        """The job got as far as another snapshot; 0: the step is not known."""
        self.put(crash_loop.committed(self.record, snapshot, step))

    def restore_begun(self, snapshot: str, now: float) -> None:
        """The restore that was asked for has begun."""
        self.keep(snapshot=snapshot)
        self.goes_on, self.unasked = False, None
        if self.record.state is not S.RECOVERING:
            self.move(S.RECOVERING, f"{snapshot} is restored", now)

    def refused(self, failure: Failure, now: float) -> None:
        """The restore that was asked for was refused; nothing was changed."""
        if self.record.state not in (S.RECOVERING, S.WAITING) or not self.acts:
            return
        self.asked_at = None
        if failure.kind == "NotFound" or failure.kind in NO_NODES:
            self.unasked = None
        if self.goes_on:
            self.move(S.WATCHING, f"it goes on where it is: {failure.what}", now)
        elif failure.kind == "NotFound" and self.scratching:
            kept = "its commands are kept with its snapshots alone"
            self.give_up(f"it cannot be started from scratch, {kept}: {failure.what}", now)
        elif failure.kind == "NotFound":
            self.last_resort(f"there is no snapshot left to restore: {failure.what}", now)
        elif failure.kind in NO_NODES:
            self._await_nodes(failure, now)
        else:
            self.not_asked(failure, now)

    def restored(self, record: RestoreRecord, now: float, blame: Blame) -> None:
        """A restore of the job has ended, whoever asked for it; `blame`: where it failed."""
        self.asked_at = None
        if record.state is RestoreState.RUNNING:
            what = "was started from scratch" if record.cold else f"runs from {record.snapshot}"
            self.keep(snapshot=record.snapshot, tries=0)
            self.hung_at = {}
            if self.record.state is not S.WATCHING:
                self.move(S.WATCHING, f"the job {what} ({record.restore})", now)
            return
        if self.record.state is not S.RECOVERING:
            return
        why = record.failure.what if record.failure is not None else record.reason
        if not self.acts:
            self.saw(f"{record.restore} failed, and is left at that: {why}", now)
            return
        if blame.node:
            self.put(crash_loop.failed_on(self.record, blame.node))
        if self.excuses(record.snapshot, blame, now):
            rather = f", perhaps of {blame.node}" if blame.snapshot else ", and not of its snapshot"
            self.saw(f"{record.restore} failed{rather}: {why}", now)
            self.again(now)
            return
        tries = self.record.tries + 1
        self.keep(tries=tries)
        self.saw(f"{record.restore} failed, try {tries} of {self.policy.tries}: {why}", now)
        if tries >= self.policy.tries and not self.skip(record.snapshot, now):
            return
        self.again(now)

    def _await_nodes(self, failure: Failure, now: float) -> None:
        """Nobody can take it, or only an operator can say whether the old run has ended."""
        told = f"{failure.what}; {failure.advice}" if failure.kind == OLD_RUN else failure.what
        again, self.lacking = failure.kind == self.lacking_kind, told
        self.lacking_kind = failure.kind
        if self.record.state is not S.WAITING:
            self.began = self.began if self.record.scratch else now
            self.keep(waited_s=now - self.began)
            self.move(S.WAITING, f"waits for nodes, {self.policy.wait_s:g} s at most: {told}", now)
        elif not again:
            self.move(S.WAITING, f"still waits for nodes: {told}", now)
        self.not_before = now + NODES_S

    # -- looks, by state -------------------------------------------------------------------------

    def _unseen(self, standing: Standing, now: float) -> None:
        if standing.whole:
            self.move(S.WATCHING, "the job runs and is watched", now)
            return
        missing = (*standing.crashed, *standing.gone)
        if standing.busy or not missing:
            self.doubt_since = None
            return
        self.doubt_since = now if self.doubt_since is None else self.doubt_since
        if now - self.doubt_since >= UNSEEN_S and not self.stands:
            self.stands = (
                f"the job is not whole, and is brought back by itself only once it was: "
                f"{'; '.join(missing)}; `allstop restore {self.record.job}` brings it back now"
            )
            self.saw(self.stands, now)

    def _watching(self, standing: Standing, now: float) -> None:
        if standing.busy:
            return
        if standing.whole:
            self.doubt_since = None
            self._look_for_hung(standing, now)
            return
        if standing.workers and len(standing.ended) == standing.workers:
            self.move(S.FINISHED, "all workers ended with exit code 0", now)
            return
        if standing.on_purpose:
            self.move(S.FINISHED, "its shims were told to end", now)
            return
        trouble = standing.crashed or standing.gone
        if not trouble:  # some have ended well, and the others are about to
            self._look_for_hung(standing, now)
            return
        self.doubt_since = now if self.doubt_since is None else self.doubt_since
        sure = standing.crashed and not standing.taken_away  # others may be told to end too
        patience_s = SETTLE_S if sure else self.policy.grace_s
        if now - self.doubt_since >= patience_s:
            why = "; ".join((*standing.crashed, *standing.gone))
            self._fail(why, standing, now, itself=not standing.gone)

    def _look_for_hung(self, standing: Standing, now: float) -> None:
        late = [pace for pace in standing.paces if self._is_late(pace, standing)]
        if not late:
            return
        most = max(late, key=lambda pace: pace.still_s)
        usual_s = max(most.usual_s, standing.usual_s)
        told = f"no step for {most.still_s:.0f} s, usually one in {usual_s:.1f} s"
        if len(late) < len(standing.paces):
            told = f"rank {listed([str(pace.rank) for pace in late])}: {told}"
        told += f"; {standing.behind}" if standing.behind else ""
        self.hung_at = {pace.rank: pace.step for pace in late}
        self._fail(told, standing, now, itself=True)

    def _is_late(self, pace: Pace, standing: Standing) -> bool:
        """By the job's usual step, or by the rank's own where that takes longer."""
        if not self.policy.hung or not standing.usual_s:
            return False
        usual_s = max(pace.usual_s, standing.usual_s)
        return pace.still_s > max(self.hung_s, self.policy.hung * usual_s)

    def _well(self, standing: Standing) -> bool:
        """Whether it goes on by itself: a job that is hung is whole all the time."""
        if not standing.whole or standing.busy:
            return False
        steps = {pace.rank: pace.step for pace in standing.paces}
        return all(steps.get(rank, step) != step for rank, step in self.hung_at.items())

    def _recovering(self, standing: Standing, now: float) -> None:
        if standing.busy:
            self.asked_at = self.unasked = None
            return
        if self._well(standing) and self.asked_at is None:
            self.move(S.WATCHING, "the job is whole again by itself", now)
            return
        if self.asked_at is not None and now - self.asked_at < UNANSWERED_S:
            return
        if now >= self.not_before:
            self.ask(now)

    def _waiting(self, standing: Standing, now: float) -> None:
        if self._well(standing):
            self.move(S.WATCHING, "the job is whole again by itself", now)
            return
        if standing.busy:
            return
        waited_s = now - self.began
        if waited_s > self.policy.wait_s:
            told = f"no nodes that can take it within {self.policy.wait_s:g} s"
            self.last_resort(f"{told}: {self.lacking}" if self.lacking else told, now)
            return
        if waited_s - self.record.waited_s >= min(WAITED_S, self.policy.wait_s / 10):
            self.keep(waited_s=waited_s)
        asked = self.asked_at is not None and now - self.asked_at < UNANSWERED_S
        if not asked and (now >= self.not_before or standing.nodes > self.nodes):
            self.ask(now)

    def _ended(self, standing: Standing, now: float) -> None:
        if self._well(standing):
            self.put(crash_loop.begun_anew(self.record))
            self.move(S.WATCHING, "the job runs again and is watched", now)

    # -- what follows ----------------------------------------------------------------------------

    def _fail(self, why: str, standing: Standing, now: float, *, itself: bool) -> None:
        """The run is over: count it where the job failed itself, and ask for a restore."""
        self.begin(now)
        if standing.taken_away:  # says nothing of the step that it was at
            told = f"the run was ended on purpose at step {self.step}: {standing.taken_away}"
            self.keep(why=standing.taken_away)
            self.move(S.RECOVERING, told, now)
            self.ask(now)
            return
        step = (standing.crash_step if itself else 0) or self.step
        if itself:
            self.put(crash_loop.crashed(self.record, step, why))
        self.keep(why=why)
        self.move(S.RECOVERING, f"the run has ended at step {step}: {why}", now)
        crashes, loop_step = self.record.crashes, self.record.crash_step
        if not itself or crashes < 2:
            self.ask(now)
            return
        place = f"step {loop_step}" if step == loop_step else f"step {loop_step} or before"
        self.saw(f"a crash loop: it has ended {crashes} times at {place}", now)
        too_often = crashes > self.policy.tries  # the first was no try of ours
        if too_often and not self.skip(self.record.snapshot, now):
            return
        self.delays = crashes - 2
        self.again(now)


_LOOKS: Mapping[RecoveryState, Callable[[Recovery, Standing, float], None]] = {
    S.UNSEEN: Recovery._unseen,
    S.WATCHING: Recovery._watching,
    S.RECOVERING: Recovery._recovering,
    S.WAITING: Recovery._waiting,
    S.GIVEN_UP: Recovery._ended,
    S.FINISHED: Recovery._ended,
}
