"""`allstop top`"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb

if TYPE_CHECKING:
    from rich.console import Group


@verb(
    examples=(
        "allstop top",
        "allstop top --once",
        "allstop top -o json",
    ),
    exits=(*ASKING, 130),
)
@option("--once", is_flag=True, help="Say how things are now, and end.")
@asking
@click.pass_obj
def top(output: Output, once: bool) -> None:
    """Show all jobs and what runs of them, as it changes, until Ctrl-C.

    With `-o json` each change is one line of JSON.
    """
    asyncio.run(_follow(output, once))


async def _follow(output: Output, once: bool) -> None:
    from rich.live import Live

    from coordinator.cli.asking import client_of
    from coordinator.page.feed import feeding

    live = Live(console=output.data, auto_refresh=False)
    async with client_of(output) as client, feeding(client) as feed:
        now = await feed.look()  # raises where nobody answers, instead of trying for ever
        if once:
            output.emit(now, lambda: view_of(now))
            return
        with live if not output.json else nullcontext():
            async for state in feed.states():
                if state is None:
                    continue
                if output.json:
                    output.emit(state, lambda: "")
                else:
                    live.update(view_of(state), refresh=True)


def view_of(state: dict[str, Any]) -> Group:
    """Jobs as a table, below it what runs, phase by phase."""
    from rich.console import Group
    from rich.text import Text

    from coordinator.api.words import duration_text
    from coordinator.cli.tables import table

    rows = table(
        "JOB", "STATE", "STEP", "RANKS", "PARKED", "SNAPSHOT", "NODES",
        right=("STEP", "RANKS", "PARKED"),
    )  # fmt: skip
    for job in state["jobs"]:
        ranks = [rank for worker in job["workers"] for rank in worker["ranks"]]
        age_s = job["latest_age_s"]
        rows.add_row(
            job["job"],
            job["state"],
            str(job["step"] or "-"),
            str(len(ranks)),
            str(sum(parked for _, _, parked in ranks) or "-"),
            "none" if age_s is None else f"{duration_text(max(1, age_s))} ago",
            " ".join(worker["node"] for worker in job["workers"]),
        )
    parts: list[Any] = [Text(state["problem"], style="red")] if state["problem"] else []
    parts.append(rows)
    for live in state["live"].values():
        parts.append(Text(f"\n{live['action']}", style="bold"))
        for row in live["rows"]:
            ended_ms = row["ended_ms"] if row["ended_ms"] is not None else live["elapsed_ms"]
            took = duration_text((ended_ms - row["started_ms"]) / 1000)
            waiting = "; ".join(row["awaited"])
            text = f"waiting for {waiting}" if waiting else row["reason"]
            parts.append(Text(f"  {row['state']:<13} {took:>8}  {text}", overflow="ellipsis"))
    lost = [node for node in state["nodes"] if node["state"] == "lost"]
    parts += [Text(f"{node['node']} is lost: {node['reason']}", style="red") for node in lost]
    return Group(*parts)
