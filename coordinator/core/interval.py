"""How far apart checkpoints should be, from what one costs and how often the job fails.

Young (1974) and Daly ("A higher order estimate of the optimum checkpoint interval for restart
dumps", 2006, equations 20 and 37). Both suppose failures that know no past; that the answer is
near the best one for other failures too is what `tests/unit/core/test_interval_traces.py` measures.
Times are in seconds. An interval is from the end of one checkpoint to the beginning of the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.core.errors import BadRequest

DAY_S = 86_400.0
PRIOR_WEIGHT = 1.0  # the prior counts as much as one failure seen
EXPONENT_MAX = 700.0  # of e, before a float overflows


@dataclass(frozen=True)
class Costs:
    """What one checkpoint and one failure cost the job."""

    checkpoint_s: float  # by how much one checkpoint makes the job later
    latency_s: float = 0.0  # from the cut until it can be restored
    restart_s: float = 0.0  # from a failure until the job takes steps again
    attempt_s: float = 0.0  # from the request until the next one may begin

    def __post_init__(self) -> None:
        if min(self.checkpoint_s, self.latency_s, self.restart_s, self.attempt_s) < 0:
            raise BadRequest("costs cannot be negative")


@dataclass(frozen=True)
class Watched:
    """For how long somebody was watched, and how often it failed in that time."""

    seconds: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class Bounds:
    """What the operator allows."""

    least_s: float = 60.0
    most_s: float = DAY_S
    budget: float = 0.0  # share of the job's time that checkpoints may take; 0: any

    def __post_init__(self) -> None:
        if not 0 < self.least_s <= self.most_s:
            raise BadRequest(
                f"an interval of at least {self.least_s:g} s and at most {self.most_s:g} s "
                "cannot be kept",
                advice="the least must be above 0 and not above the most",
            )
        if not 0 <= self.budget < 1:
            raise BadRequest(
                f"a budget of {self.budget:g} is no share of the time",
                advice="give a percentage below 100",
            )


@dataclass(frozen=True)
class Interval:
    """The interval, and the numbers behind it."""

    seconds: float
    mtbf_s: float
    young_s: float
    daly_s: float
    bound: str  # least, most, budget, attempt; empty: none of them was reached
    lost_s_per_day: float  # expected: checkpoints, work done again, restarts


def mtbf(prior_s: float, nodes: Mapping[str, Watched], own: Watched) -> float:
    """Mean time between failures of a job on these nodes.

    The rates of its nodes add up, and its own (a rank that crashed) on top; each is what has been
    seen, weighed against the prior as a gamma distribution would: the more has been seen, the less
    the prior counts. A node that fails often takes its rate with it when it is replaced.
    """
    if not prior_s > 0:
        raise BadRequest("the expected time between failures must be above 0")
    share = PRIOR_WEIGHT / max(1, len(nodes))
    prior = PRIOR_WEIGHT * prior_s
    rate = own.failures / (prior + own.seconds)
    if not nodes:
        rate += share / (prior + own.seconds)
    for node in nodes.values():
        rate += (share + node.failures) / (prior + node.seconds)
    return 1.0 / rate


def young(checkpoint_s: float, mtbf_s: float) -> float:
    """The first-order optimum."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly(checkpoint_s: float, mtbf_s: float) -> float:
    """The higher-order optimum; where a checkpoint costs more than 2 M, M itself."""
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    half = checkpoint_s / (2.0 * mtbf_s)
    return young(checkpoint_s, mtbf_s) * (1.0 + math.sqrt(half) / 3.0 + half / 9.0) - checkpoint_s


def lost_per_day(interval_s: float, costs: Costs, mtbf_s: float) -> float:
    """Seconds of each day that are not progress, by Daly's complete model (equation 20).

    A failure between a cut and its commit loses what lies before the cut too, on average the
    latency more: it is counted with the restart.
    """
    again = min((costs.restart_s + costs.latency_s) / mtbf_s, EXPONENT_MAX)
    span = min((interval_s + costs.checkpoint_s) / mtbf_s, EXPONENT_MAX)
    log_wall = math.log(mtbf_s) + again + math.log(math.expm1(span))
    return DAY_S * (1.0 - min(1.0, interval_s * math.exp(-log_wall)))


def at_least_s(costs: Costs, budget: float) -> float:
    """The shortest interval with which checkpoints take no more than this share of the time."""
    return costs.checkpoint_s * (1.0 - budget) / budget if budget else 0.0


def best(costs: Costs, mtbf_s: float, bounds: Bounds) -> Interval:
    """Daly's interval within the bounds; of those that hold, the one that asks for most counts."""
    wanted = daly(costs.checkpoint_s, mtbf_s)
    floors = {"least": bounds.least_s, "attempt": costs.attempt_s}
    if bounds.budget:
        floors["budget"] = at_least_s(costs, bounds.budget)
    name = max(floors, key=lambda each: floors[each])
    seconds, bound = wanted, ""
    if seconds > bounds.most_s:
        seconds, bound = bounds.most_s, "most"
    if seconds < floors[name]:  # also above `most`: a budget is a promise, a most is a wish
        seconds, bound = floors[name], name
    return Interval(
        seconds=seconds,
        mtbf_s=mtbf_s,
        young_s=young(costs.checkpoint_s, mtbf_s),
        daly_s=wanted,
        bound=bound,
        lost_s_per_day=lost_per_day(seconds, costs, mtbf_s),
    )
