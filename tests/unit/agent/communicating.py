"""A page whose ranks have communicators: the test says how each stands in it."""

from __future__ import annotations

import asyncio

from tests.unit.agent.fakes import RANK, FakePage
from tests.unit.agent.rig import Rig
from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_GOING_DOWN,
    COMMUNICATORS_NONE,
    COMMUNICATORS_REBUILDING,
    COMMUNICATORS_UP,
)
from worker_shim.nccl.launching import KVS_FILE
from worker_shim.nccl.port import RankCommunicators


class Page(FakePage):
    """Ranks 0 and 1 of four, which destroy and rebuild as they are told.

    Those in `stuck` do not get to the end of it, those in `blind` have not seen that they are told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world_size = 4
        self.stands = {0: COMMUNICATORS_UP, 1: COMMUNICATORS_UP}
        self.results = {0: 0, 1: 0}
        self.stuck: set[int] = set()
        self.blind: set[int] = set()
        self.torn = 0
        self.let_go_with: dict[int, int] = {}
        self.pids = {0: RANK, 1: RANK + 1}

    @property
    def tearing_down(self) -> bool:  # type: ignore[override]
        return self.hold != 0 and self.torn == self.hold

    def tear_down(self) -> None:
        self.torn = self.hold
        for rank, state in self.stands.items():
            if state == COMMUNICATORS_UP and rank not in self.blind:
                stuck = rank in self.stuck
                self.stands[rank] = COMMUNICATORS_GOING_DOWN if stuck else COMMUNICATORS_DOWN

    def release(self) -> None:
        self.let_go_with = dict(self.stands)
        if self.tearing_down:
            for rank, state in self.stands.items():
                if state != COMMUNICATORS_NONE and rank not in self.stuck:
                    self.stands[rank] = COMMUNICATORS_UP
        super().release()

    def prepared(self, rank: int) -> None:
        """The rank's destroying has ended after it was let go: it rebuilds, as the hook does."""
        assert self.stands[rank] == COMMUNICATORS_GOING_DOWN
        assert self.hold == 0
        self.stands[rank] = COMMUNICATORS_REBUILDING

    def communicators(self) -> tuple[RankCommunicators, ...]:
        return tuple(
            RankCommunicators(rank, self.pids[rank], state, self.results[rank])
            for rank, state in self.stands.items()
        )


async def until_written(rig: Rig) -> str:
    """What the file says, once it is there."""
    path = rig.worker.directory / KVS_FILE
    async with asyncio.timeout(5):
        while not path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return path.read_text()
