"""Following a checkpoint or restore to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.cli.asking import client_of
from coordinator.cli.output import Output
from coordinator.cli.progress import Progress, progress
from coordinator.cli.records import whole_view
from coordinator.core.errors import AllstopError, BugError, DeadlinePassed

Events = AsyncGenerator[ActionEvent, None]

FOLLOW_S = 2 * 3600.0  # for an action whose deadline is the coordinator's own
GRACE_S = 60.0  # by which we outwait the coordinator's deadline, for its undo


def follow(
    output: Output,
    begin: Callable[[OperatorClient], Events],
    *,
    deadline_s: float = 0.0,
    to_the_end: bool = True,
) -> int:
    """Begin (or join) an action, show its progress and its end, and return the exit code.

    Without `to_the_end` it says the action's id as soon as it has begun, and leaves.

    Ctrl-C leaves it running and says how to go on. Raises AllstopError when nothing began.
    """
    if not to_the_end:
        return _begin(output, begin)
    limit_s = deadline_s + GRACE_S if deadline_s else FOLLOW_S
    shown = progress(output.people)
    try:
        with shown:
            end, error = asyncio.run(_to_the_end(output, begin, shown, limit_s))
    except KeyboardInterrupt:
        if action := shown.board.action:
            output.note(f"{action} goes on: `allstop watch {action}`, `allstop abort {action}`")
        raise
    records = {
        name: asdict(record)
        for name in ("attempt", "snapshot", "restore")
        if (record := getattr(end, name)) is not None
    }
    if error is not None:
        output.error(error, action=end.action, **records)
        return error.exit_code
    output.emit(
        {"action": end.action, **records},
        lambda: whole_view(end.snapshot, end.attempt, end.restore),
    )
    return 0


def _begin(output: Output, begin: Callable[[OperatorClient], Events]) -> int:
    """Begin it and leave at its first word; raises AllstopError when nothing began."""

    async def first() -> ActionEvent:
        async with (
            asyncio.timeout(GRACE_S),
            client_of(output) as client,
            aclosing(begin(client)) as events,
        ):
            async for event in events:
                return event
        raise BugError("the coordinator ended the stream without a word", definite=False)

    event = asyncio.run(first())
    output.emit(
        {"action": event.action, "state": event.state, "reason": event.reason},
        lambda: f"{event.action} {event.state}: `allstop watch {event.action}` follows it",
    )
    return 0


async def _to_the_end(
    output: Output, begin: Callable[[OperatorClient], Events], shown: Progress, limit_s: float
) -> tuple[ActionEvent, AllstopError | None]:
    """The last event, and the error that the action ended with.

    Raises DeadlinePassed when no end came within `limit_s`, and the client's error when the
    action was refused or the coordinators were lost.
    """
    end: ActionEvent | None = None
    try:
        async with (
            asyncio.timeout(limit_s),
            client_of(output) as client,
            aclosing(begin(client)) as events,
        ):
            async for event in events:
                shown.update(event)
                end = event if event.last else end
    except AllstopError as error:
        if end is None:
            raise
        return end, error
    except TimeoutError:
        action = shown.board.action
        raise DeadlinePassed(
            f"no end of {action or 'the request'} was seen in {limit_s:g} s",
            advice=f"`allstop show {action}` tells how it stands" if action else "",
            definite=False,
        ) from None
    if end is None:
        raise BugError("the coordinator ended the stream without a last event", definite=False)
    return end, None
