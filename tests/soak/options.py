"""What a soak is told, and the numbers that it goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.core.job_policy import JobPolicy, OnFailure, When
from coordinator.core.kept import Retention
from tests.chaos.options import JOB, ChaosOptions

STEPS_PER_EPOCH = 46  # of the example: 1500 images, two ranks, 16 a step and rank
LEAST_S = 5.0  # between checkpoints
FIRST_S = 60.0  # until the first snapshot: before it there is nothing to go back to
END_S = 240.0  # from the killer's end until the job is well again and trains
STEP_S = 0.25  # allowed for each step that is left then, without pauses
GONE_S = 60.0  # until a second copy of a worker on a node that has come back is killed
RETENTION = Retention(keep_last=4)  # so that the store stays small


@dataclass(frozen=True)
class SoakOptions(ChaosOptions):
    """How long, with what chance, and how often somebody is taken."""

    minutes: float = 20.0
    pause_s: float = 0.15
    mtbf_s: float = 60.0  # of everything together

    def __post_init__(self) -> None:
        """The job has more steps than it comes to while the killer is at work."""
        epochs = math.ceil(self.minutes * 60 / self.pause_s / STEPS_PER_EPOCH)
        object.__setattr__(self, "epochs", epochs)  # the class is frozen

    @property
    def steps(self) -> int:
        """The job's last step."""
        return self.epochs * STEPS_PER_EPOCH

    @property
    def policy(self) -> JobPolicy:
        """All that is ever asked for."""
        return JobPolicy(
            JOB,
            When.AUTO,
            mtbf_s=self.mtbf_s,
            least_s=LEAST_S,
            on_failure=OnFailure.RESTORE,
            grace_s=1.0,
            wait_s=300.0,
        )
