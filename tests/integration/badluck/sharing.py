"""One deployment for all tests of a package, for as long as it is sound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

from tests.integration.badluck.kit import Pair

Kept = TypeVar("Kept", bound=Pair)


@asynccontextmanager
async def kept(make: Callable[[ExitStack], Kept]) -> AsyncIterator[Callable[[], Awaitable[Kept]]]:
    """Gives the one that runs, or a new one when the last test broke it.

    What `make` puts on the stack ends after what it has made.
    """
    with ExitStack() as stack:
        made: list[Kept] = []

        async def sound() -> Kept:
            if made and await made[-1].fit():
                return made[-1]
            if made:
                await made[-1].stop()
                stack.close()
            made.append(make(stack))
            await made[-1].start()
            return made[-1]

        yield sound
        if made:
            await made[-1].stop()
