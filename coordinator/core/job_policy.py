"""When a job is saved by itself, and what was seen of its failures, as etcd keeps them.

`records.proto` has a message of the same name and fields for each dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.errors import BadRequest
from coordinator.core.interval import DAY_S, Bounds
from coordinator.core.model import Cut

STEPS_MAX = 1 << 40


class When(StrEnum):
    """What decides that a checkpoint is due."""

    NEVER = "never"  # only who asks for one
    SECONDS = "seconds"
    STEPS = "steps"
    AUTO = "auto"  # from what one costs and how often the job fails


class OnFailure(StrEnum):
    """What is done when a job's run ends that should not have."""

    LEAVE = "leave"  # nothing
    RESTORE = "restore"  # its last good snapshot


class LastResort(StrEnum):
    """What is done when no snapshot can be restored."""

    STOP = "stop"  # what is left of the job
    COLD_START = "cold_start"  # its own commands, from scratch


class RecoveryState(StrEnum):
    """Where the recovery of a job stands."""

    UNSEEN = "UNSEEN"  # the job was never seen whole
    WATCHING = "WATCHING"  # it runs, or it is not yet sure that it does not
    RECOVERING = "RECOVERING"  # a restore is asked for, or runs
    WAITING = "WAITING"  # for nodes that can take it
    GIVEN_UP = "GIVEN_UP"
    FINISHED = "FINISHED"  # it ended by itself, or was stopped on purpose


@dataclass(frozen=True)
class JobPolicy:
    """When a job is saved by itself, and what is done when it fails."""

    job: str
    when: When = When.NEVER
    cut: Cut = Cut.STEP  # how the ranks come to rest
    interval_s: float = 0.0  # seconds: from the end of one checkpoint to the next
    interval_steps: int = 0  # steps: from the step of one to the step of the next
    mtbf_s: float = 0.0  # auto: expected time between failures of the job, before any is seen
    budget: float = 0.0  # share of the job's time that checkpoints may take; 0: any
    least_s: float = 60.0  # auto: never more often than this
    most_s: float = DAY_S  # auto: never more seldom, where the budget allows that
    set_unix_s: float = 0.0  # when it was set, by the coordinator's clock
    on_failure: OnFailure = OnFailure.LEAVE
    tries: int = 3  # restores of one snapshot that fail, or crashes after it, before an older one
    grace_s: float = 5.0  # for a node that is out of reach to come back
    wait_s: float = 600.0  # for nodes that can take the job
    hung: float = 0.0  # no step for so many usual steps is a failure; 0: never
    last_resort: LastResort = LastResort.STOP

    @property
    def acts(self) -> bool:
        """Whether anything is done by itself."""
        return self.when is not When.NEVER or self.on_failure is not OnFailure.LEAVE

    @property
    def bounds(self) -> Bounds:
        """What auto may choose from; raises BadRequest."""
        return Bounds(self.least_s, self.most_s, self.budget)


@dataclass(frozen=True)
class NodeHistory:
    """For how long a node had a worker of the job, and how often that ended the run."""

    node: str
    watched_s: float
    failures: int


@dataclass(frozen=True)
class JobHistory:
    """What was seen of a job's failures under all leaders."""

    job: str
    watched_s: float = 0.0  # it ran
    failures: int = 0  # it ended by itself: a worker crashed on a node that is well
    nodes: tuple[NodeHistory, ...] = ()  # that had a worker of it, the last to have had one last
    step_s: float = 0.0  # what a step usually took; 0: not known


@dataclass(frozen=True)
class StoryLine:
    """One thing that was done for a job by itself, or decided."""

    unix_s: float
    text: str


@dataclass(frozen=True)
class JobRecovery:
    """Where the recovery of a job stands, and what it did, under all leaders."""

    job: str
    state: RecoveryState = RecoveryState.UNSEEN
    why: str = ""  # what ended the run, while it is not back
    snapshot: str = ""  # that is being restored, or was restored last
    tries: int = 0  # restores of it that have failed
    crashes: int = 0  # how often the job has ended at `crash_step` or before, and got no further
    crash_step: int = 0
    skipped: tuple[str, ...] = ()  # snapshots that are left behind
    story: tuple[StoryLine, ...] = ()  # the last lines, oldest first
    suspects: tuple[str, ...] = ()  # snapshots of runs that have not got further than `crash_step`
    left_behind: int = 0  # how many snapshots were, since a run last got further
    scratch: int = 0  # starts from scratch since then
    ended: tuple[int, ...] = ()  # workers that ended with 0; their shims may have left since
    ended_in: int = 0  # the incarnation that these were of
    failed_on: tuple[str, ...] = ()  # nodes where restores failed, since a run last got further
    waited_s: float = 0.0  # WAITING: for how long, at least; without a leader no time passes


def check(policy: JobPolicy) -> JobPolicy:
    """The policy, or BadRequest saying what of it makes no sense."""
    if policy.when is When.SECONDS and not 0 < policy.interval_s <= 366 * DAY_S:
        raise BadRequest(
            f"a checkpoint every {policy.interval_s:g} s makes no sense",
            advice="give an interval above zero, such as --every 10m",
        )
    if policy.when is When.STEPS and not 0 < policy.interval_steps <= STEPS_MAX:
        raise BadRequest(
            f"a checkpoint every {policy.interval_steps} steps makes no sense",
            advice="give a number of steps above zero",
        )
    if policy.when is When.AUTO:
        if not 0 < policy.mtbf_s < float("inf"):
            raise BadRequest(
                "auto needs to know how often the job is expected to fail",
                advice="give the expected time between failures, such as --mtbf 12h",
            )
        _ = policy.bounds
    _ = Bounds(budget=policy.budget)
    if policy.budget and policy.when is When.NEVER:
        raise BadRequest(
            "a budget means nothing for a job that is not saved by itself",
            advice="give --every, --every-steps or --auto with it",
        )
    if not 0 < policy.tries <= 100:
        raise BadRequest(f"{policy.tries} tries make no sense", advice="give 1 to 100")
    if not (0 <= policy.grace_s <= DAY_S and 0 <= policy.wait_s <= 366 * DAY_S):
        raise BadRequest(
            f"to wait {policy.grace_s:g} s and {policy.wait_s:g} s for nodes makes no sense"
        )
    if policy.hung and not 2 <= policy.hung <= 1e6:
        raise BadRequest(
            f"a rank that is late by {policy.hung:g} steps is not hung",
            advice="give at least 2, better 10 or more",
        )
    return policy


def in_words(policy: JobPolicy) -> str:
    """A policy in a few words, for stories."""
    words = {
        When.NEVER: "saved only when somebody asks",
        When.SECONDS: f"saved every {policy.interval_s:g} s",
        When.STEPS: f"saved every {policy.interval_steps} steps",
        When.AUTO: f"saved as often as it pays (MTBF {policy.mtbf_s:g} s expected)",
    }[policy.when]
    budget = f", in at most {100 * policy.budget:.3g} % of its time" if policy.budget else ""
    after = {
        OnFailure.LEAVE: "left alone when it fails",
        OnFailure.RESTORE: "restored when it fails",
    }[policy.on_failure]
    return f"{words}{budget}; {after}"
