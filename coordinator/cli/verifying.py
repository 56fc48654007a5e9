"""Following a verification, and telling what it found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from rich.console import RenderableType
from rich.text import Text

from coordinator.api.values import VerifyEvent
from coordinator.api.words import bytes_text
from coordinator.cli.asking import client_of
from coordinator.cli.output import Output
from coordinator.core.errors import BugError, Damaged, LinkError

LINES_MAX = 20  # of broken things, for people


def verify_one(output: Output, snapshot: str) -> VerifyEvent:
    """Have one snapshot read to its end, telling how far it is."""

    async def whole() -> VerifyEvent:
        said = ""
        async with client_of(output) as client, aclosing(client.verify(snapshot)) as events:
            async for event in events:
                if event.last:
                    return event
                line = _line(event)
                if line != said:
                    output.note(line, style="dim")
                said = line
        raise BugError("the coordinator ended the stream without a last event", definite=False)

    return asyncio.run(whole())


def _line(event: VerifyEvent) -> str:
    bytes_done = ""
    if event.total_bytes:
        share = 10 * (10 * event.done_bytes // event.total_bytes)
        bytes_done = f", {share}% of {bytes_text(event.total_bytes)}"
    return f"{event.snapshot}: {event.verified} of {event.workers} workers read{bytes_done}"


def verified_view(event: VerifyEvent) -> RenderableType:
    """What was found, for people: the first thing that is broken comes first."""
    if not event.broken and not event.unread:
        return Text(f"{event.snapshot} is whole: {event.workers} workers read", style="green")
    lines = []
    for each in event.broken[:LINES_MAX]:
        file = f" of {each.file}" if each.file and each.file != each.name else ""
        shared = f"; also needed by {', '.join(each.sharers)}" if each.sharers else ""
        lines.append(f"  worker {each.worker}: {each.name}{file}: {each.what}{shared}")
    if len(event.broken) > LINES_MAX:
        lines.append(f"  … and {len(event.broken) - LINES_MAX} more")
    lines += [f"  not read: {each}" for each in event.unread]
    head = "is damaged" if event.broken else "could not be read whole"
    return Text("\n".join([f"{event.snapshot} {head}:", *lines]), style="red")


def outcome(events: Sequence[VerifyEvent]) -> int:
    """The exit code: of damage before that of what could not be read."""
    if any(event.broken for event in events):
        return Damaged.exit_code
    return LinkError.exit_code if any(event.unread for event in events) else 0
