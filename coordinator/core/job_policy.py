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


@dataclass(frozen=True)
class JobPolicy:
    """When a job is saved by itself."""

    job: str
    when: When = When.NEVER
    cut: Cut = Cut.STEP  # how the ranks come to rest
    interval_s: float = 0.0  # seconds: from the end of one checkpoint to the next
    interval_steps: int = 0  # steps: from the step of one to the step of the next
    mtbf_s: float = 0.0  # auto: expected time between failures of the job, before any is seen
    budget: float = 0.0  # auto: share of the job's time that checkpoints may take; 0: any
    least_s: float = 60.0  # auto: never more often than this
    most_s: float = DAY_S  # auto: never more seldom, where the budget allows that
    set_unix_s: float = 0.0  # when it was set, by the coordinator's clock

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
    return policy
