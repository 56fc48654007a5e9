"""When a node is lost, and which: drawn from a seed, the same for every contender of a round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_S, MOST_S = 8.0, 14.0


@dataclass(frozen=True)
class Kill:
    """One node that loses power.

    Attributes:
        after_s: seconds of training before it: since the first step of the job, or since the
            first new step after the kill before, so that every kill hits a job that trains.
        pick: which of the nodes that carry ranks just then, in order of their names.
    """

    after_s: float
    pick: int

    def victim(self, busy: Sequence[str]) -> str:
        """The node that is hit; `busy` must not be empty."""
        return sorted(busy)[self.pick % len(busy)]


def draw(seed: int, kills: int, least_s: float = LEAST_S, most_s: float = MOST_S) -> list[Kill]:
    """The kills of one round."""
    chance = random.Random(seed)
    return [
        Kill(round(chance.uniform(least_s, most_s), 3), chance.randrange(1 << 16))
        for _ in range(kills)
    ]
