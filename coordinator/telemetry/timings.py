"""Where the time of workers goes, gathered from the shims' answers until an action has ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from allstop.v1 import shim_pb2

from coordinator.codec import from_proto, member_of
from coordinator.core.model import Phase
from coordinator.core.timelines import Arrival, Lap, Timeline, WorkerTiming

SLOWEST_KEPT = 256  # of one phase: a timeline is one value in etcd, which takes 1.5 MiB
ACTIONS_MAX = 64  # that have not ended; of more the oldest is forgotten


@dataclass
class _Gathered:
    """What is known of one action."""

    phases: dict[Phase, dict[int, WorkerTiming]] = field(default_factory=dict)  # by worker
    left_out: int = 0

    def add(self, timing: WorkerTiming) -> None:
        """Keep it, the newest of each worker; now and then the quick ones go."""
        kept = self.phases.setdefault(timing.phase, {})
        kept[timing.worker] = timing
        if len(kept) >= 2 * SLOWEST_KEPT:
            self.left_out += len(kept) - SLOWEST_KEPT
            self.phases[timing.phase] = {each.worker: each for each in _slowest(kept)}

    def timeline(self, job: str, action: str) -> Timeline:
        """All of it, by phase, the slowest first."""
        slowest = {phase: _slowest(kept) for phase, kept in self.phases.items()}
        cut = sum(len(kept) - len(slowest[phase]) for phase, kept in self.phases.items())
        timings = tuple(each for phase in Phase for each in slowest.get(phase, ()))
        return Timeline(job, action, timings, self.left_out + cut)


class Timings:
    """The answers of all actions of one leadership that have not ended."""

    def __init__(self) -> None:
        self._actions: OrderedDict[str, _Gathered] = OrderedDict()

    def answered(self, node: str, result: shim_pb2.OrderResult) -> None:
        """A shim has answered an order; called for each answer, late ones too."""
        gathered = self._actions.get(result.action)
        if gathered is None:
            gathered = self._actions[result.action] = _Gathered()
            if len(self._actions) > ACTIONS_MAX:
                self._actions.popitem(last=False)
        gathered.add(
            WorkerTiming(
                phase=member_of(Phase, result.phase, "phase of OrderResult"),
                worker=result.worker,
                node=node,
                took_ms=result.took_ms,
                laps=tuple(from_proto(each, Lap) for each in result.laps),
                arrivals=tuple(from_proto(each, Arrival) for each in result.arrivals),
                failed=result.HasField("failure"),
            )
        )

    def ended(self, job: str, action: str) -> Timeline:
        """The action has ended: what is known of it, which is forgotten here."""
        return self._actions.pop(action, _Gathered()).timeline(job, action)


def _slowest(kept: dict[int, WorkerTiming]) -> list[WorkerTiming]:
    return sorted(kept.values(), key=lambda each: (-each.took_ms, each.worker))[:SLOWEST_KEPT]
