"""Whether a checkpoint can end in the time it is given, judged by the last ones of its job.

The fastest of them counts: a request is refused only when even that would not have fitted, in all
or in one phase. Nothing is held for a checkpoint that is bound to be given up. Each refusal forgets
the slowest of them: one slow checkpoint, be it for a disk that is repaired by now or for a change
of leader, does not refuse all later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.core.errors import NotReady, Where
from coordinator.core.model import AttemptRecord, AttemptState, Cut, Phase
from coordinator.core.policy import Policy

RECENT = 5  # committed attempts of a job that count

# Which deadline of the policy is for which phase; RESUME, COMMIT and STOP give nothing up.
DEADLINES: Mapping[Phase, str] = {
    Phase.HOLD: "hold_s",
    Phase.PARK: "park_s",
    Phase.GPU_LOCK: "gpu_lock_s",
    Phase.GPU_SAVE: "gpu_save_s",
    Phase.DUMP: "dump_s",
    Phase.PERSIST: "persist_s",
}


@dataclass(frozen=True)
class _Taken:
    """How long one committed attempt took, in seconds."""

    cut: Cut
    in_all: float  # from the request to the last byte stored
    phases: Mapping[Phase, float]


class Pace:
    """The last committed attempts of each job; of jobs above the limit the oldest go."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[str, deque[_Taken]] = {}

    def note(self, record: AttemptRecord) -> None:
        """An attempt has ended; those that were not committed tell nothing."""
        if record.state is not AttemptState.COMMITTED:
            return
        phases = {t.phase: t.took_ms / 1000 for t in record.timings if t.phase in DEADLINES}
        ends = [t.started_ms + t.took_ms for t in record.timings if t.phase in DEADLINES]
        if not ends:
            return
        of_job = self._taken.setdefault(record.job, deque(maxlen=RECENT))
        of_job.append(_Taken(record.cut, max(ends) / 1000, phases))
        while len(self._taken) > self._limit:
            self._taken.pop(next(iter(self._taken)))

    def copy(self) -> Pace:
        """One to judge by whose refusals leave this one as it is."""
        made = Pace(self._limit)
        made._taken = {job: deque(taken, RECENT) for job, taken in self._taken.items()}
        return made

    def check(self, job: str, cut: Cut, policy: Policy, deadline_s: float) -> None:
        """Raise NotReady with the numbers when the last attempts say that it cannot fit.

        What it was judged by is then a little less.
        """
        taken = [each for each in self._taken.get(job, ()) if each.cut is cut]
        if not taken:
            return
        problems = []
        least = min(each.in_all for each in taken)
        if least > deadline_s:
            problems.append(_told("they", [e.in_all for e in taken], deadline_s, "in all"))
        for phase, name in DEADLINES.items():
            of_phase = [each.phases[phase] for each in taken if phase in each.phases]
            allowed_s = getattr(policy, name)
            if of_phase and min(of_phase) > allowed_s:
                problems.append(_told(str(phase), of_phase, allowed_s, "for it"))
        if problems:
            self._taken[job].remove(max(taken, key=lambda each: each.in_all))
            count = "checkpoint" if len(taken) == 1 else f"{len(taken)} checkpoints"
            raise NotReady(
                f"it cannot end in the time allowed, by the last {count} of {job}: "
                + "; ".join(problems),
                where=Where(job=job, phase=str(Phase.PREFLIGHT)),
                advice=f"allow more with --deadline or --phase-deadline (they took at least "
                f"{least:.1f} s in all)",
                details=tuple(problems),
            )


def _told(what: str, took_s: list[float], allowed_s: float, place: str) -> str:
    low, high = min(took_s), max(took_s)
    took = f"{low:.1f} s" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} s"
    return f"{what} took {took}, and {allowed_s:g} s are allowed {place}"
