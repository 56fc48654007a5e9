"""A driver that is not ready yet is tried again, and then it is the node's engine."""

from __future__ import annotations

import asyncio

from coordinator.core.errors import SetupError
from worker_shim.cuda.fake import FakeCuda
from worker_shim.cuda.late import late
from worker_shim.cuda.none import NoCuda
from worker_shim.cuda.port import CudaDriver

WAIT_S = 10.0


async def test_it_is_tried_until_it_can_be_used() -> None:
    answers: list[CudaDriver | Exception] = [NoCuda("not yet"), SetupError("odd"), FakeCuda()]
    asked = 0

    async def opening() -> CudaDriver:
        nonlocal asked
        asked += 1
        answer = answers[asked - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    cuda = late(NoCuda("cuInit: system not yet initialized"), opening, again_s=0.001)
    assert (cuda.engine, cuda.trouble) == ("", "cuInit: system not yet initialized")
    async with asyncio.timeout(WAIT_S):
        while not cuda.engine:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    assert asked == len(answers)
    assert cuda.engine == FakeCuda.engine
    assert cuda.moves
    await cuda.close()


async def test_its_end_ends_the_trying() -> None:
    asked = asyncio.Event()

    async def opening() -> CudaDriver:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    cuda = late(NoCuda("not yet"), opening, again_s=0.0)
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
        await cuda.close()
    assert cuda.engine == ""
