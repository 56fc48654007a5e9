"""Following a deletion or a collection, and telling what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict

from rich.console import RenderableType
from rich.text import Text

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.api.words import bytes_text
from coordinator.cli.asking import client_of
from coordinator.cli.output import Output
from coordinator.cli.progress import progress
from coordinator.core.errors import BugError
from coordinator.core.failures import listed
from coordinator.core.kept import Cleaned

FOLLOW_S = 2 * 3600.0
WAITING = "WAITING"  # it goes on by itself, when its store is in reach


def follow_cleaning(
    output: Output, begin: Callable[[OperatorClient], AsyncGenerator[ActionEvent, None]]
) -> ActionEvent:
    """Follow a cleaning to its end, or to where it can only wait; raises its failure."""
    shown = progress(output.people)

    async def whole() -> ActionEvent:
        async with (
            asyncio.timeout(FOLLOW_S),
            client_of(output) as client,
            aclosing(begin(client)) as events,
        ):
            end: ActionEvent | None = None
            async for event in events:
                shown.update(event)
                end = event
                if event.state == WAITING:
                    break
            if end is None:
                raise BugError("the coordinator ended the stream without a word", definite=False)
            return end

    with shown:
        return asyncio.run(whole())


def told(event: ActionEvent) -> dict[str, object]:
    """For programs."""
    cleaned = event.cleaned or Cleaned()
    return {"action": event.action, "state": event.state, **asdict(cleaned)}


def cleaned_view(job: str, event: ActionEvent) -> RenderableType:
    """What was removed, or would be, for people."""
    cleaned = event.cleaned or Cleaned()
    if event.state == WAITING:
        return Text(f"{job}: being deleted and restored no more; its bytes are {event.reason}")
    would = "would go" if cleaned.dry_run else "are gone"
    lines = [f"{job}: {cleaned.objects} objects {would}, {bytes_text(cleaned.freed_bytes)}"]
    if cleaned.snapshots:
        lines.append(f"  deleted: {listed(list(cleaned.snapshots))}")
    if cleaned.attempts:
        lines.append(f"  left by attempts that are over: {listed(list(cleaned.attempts))}")
    if cleaned.unknown:
        names = listed(list(cleaned.unknown))
        lines.append(f"  not of this control plane, left alone without --unknown: {names}")
    return Text("\n".join(lines))
