"""Whatever an interruption finds its work at, it ends as interrupted."""

import asyncio
import os
import signal

import pytest

from lab.demo.run import interruptible
from lab.errors import LabError


async def waits() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(30)


async def finds_it_gone() -> None:
    try:
        await waits()
    finally:
        raise LabError("the host is gone")


async def does_not_notice() -> None:
    try:
        await waits()
    except asyncio.CancelledError:
        return


@pytest.mark.parametrize("work", [waits, finds_it_gone, does_not_notice])
def test_it_ends_as_interrupted(work) -> None:  # type: ignore[no-untyped-def]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
        asyncio.run(interruption.obeyed_by(work()))
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_errors_stay_what_they_are() -> None:
    async def fails() -> None:
        raise LabError("no room")

    with pytest.raises(LabError, match="no room"), interruptible() as interruption:
        asyncio.run(interruption.obeyed_by(fails()))
