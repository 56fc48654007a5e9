"""The drain of a node: begun, followed, and shown to people."""

from __future__ import annotations

import asyncio

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.api.client import OperatorClient
from coordinator.cli.asking import client_of
from coordinator.cli.output import Output
from coordinator.cli.tables import table
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import Refused, RestoreFailed, Where

POLL_S = 0.5
_WORDS = {
    DrainState.DRAINING: "is being drained",
    DrainState.DRAINED: "is drained and empty",
    DrainState.FAILED: "could not be drained, and takes workers as before",
    DrainState.UNDRAINING: "takes workers again, once what was stopped is back",
    DrainState.UNDRAINED: "takes workers",
}


def followed(
    output: Output, node: str, *, deadline_s: float, why: str, detach: bool
) -> DrainRecord:
    """Begin a drain and, unless `detach`, wait for its end.

    Raises RestoreFailed where a job could not be moved, Refused where it was called off.
    """

    async def whole() -> DrainRecord:
        async with client_of(output) as client:
            record = await client.drain(node, deadline_s=deadline_s, why=why)
            while record.state is DrainState.DRAINING and not detach:
                await asyncio.sleep(POLL_S)
                newer = await _now(client, node)
                for line in _news(record, newer):
                    output.note(line)
                record = newer
            return record

    record = asyncio.run(whole())
    if record.state is DrainState.FAILED:
        raise RestoreFailed(
            f"{node} is not empty: {record.reason}",
            where=Where(node=node),
            advice="remove the reason and drain it again; it takes workers as before",
        )
    if record.state in (DrainState.UNDRAINING, DrainState.UNDRAINED):
        raise Refused(f"the drain of {node} was called off", where=Where(node=node))
    return record


async def _now(client: OperatorClient, node: str) -> DrainRecord:
    for view in await client.nodes():
        if view.facts.node == node and view.drain is not None:
            return view.drain
    return DrainRecord(node, DrainState.UNDRAINED)


def _news(before: DrainRecord, after: DrainRecord) -> list[str]:
    known = {each.job: each.step for each in before.jobs}
    return [
        f"job {each.job} is {each.step}{f': {each.why}' if each.why else ''}"
        for each in after.jobs
        if known.get(each.job) is not each.step
    ]


def view(record: DrainRecord) -> RenderableType:
    """One line, and a row for each job."""
    line = Text(f"{record.node} {_WORDS[record.state]}")
    if not record.jobs:
        return line
    rows = table("JOB", "STATE", "SNAPSHOT", "WHY")
    for each in record.jobs:
        rows.add_row(each.job, str(each.step), each.snapshot or "-", each.why or "-")
    return Group(line, rows)
