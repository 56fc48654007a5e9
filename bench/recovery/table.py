"""Results as a table in Markdown: a row each, medians and ranges, also where allstop loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.recovery.counting import Spread

BEGIN, END = "<!-- recovery -->", "<!-- end of recovery -->"
HEADER = (
    "",
    "runs",
    "steps repeated a kill",
    "s from kill to first new step",
    "total s",
    "against the plain script",
    "s stopped for checkpoints",
    "lines for fault tolerance",
    "same bits at the end",
    "state of the dead worker",
)


def figure(spread: Spread | None, form: str = "{:.1f}") -> str:
    """Median and range; a dash without values."""
    if spread is None:
        return "-"
    median, least, most = (form.format(v) for v in (spread.median, spread.least, spread.most))
    return median if least == most else f"{median} ({least} to {most})"


def row(
    told: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], plain: Mapping[int, Any]
) -> list[str]:
    """One contender: `told` is what is known without a run, `plain` the plain runs by seed."""
    done = [run for run in runs if run["finished"]]
    kills = [kill for run in done for kill in run["recoveries"]]
    same = sum(same_bits(run, told["digest"]) for run in done)
    walls = [run["wall_s"] for run in done]
    ratios = [run["wall_s"] / plain[run["seed"]]["wall_s"] for run in done if run["seed"] in plain]
    return [
        told["title"],
        f"{len(done)} of {len(runs)}",
        figure(Spread.of([kill["repeated"] for kill in kills]), "{:.0f}"),
        figure(Spread.of([kill["new_s"] for kill in kills])),
        figure(Spread.of(walls)),
        figure(Spread.of(ratios), "{:.2f}"),
        figure(Spread.of([run["stopped_s"] for run in done])),
        str(told["lines"]),
        "-"
        if not done
        else "yes"
        if same == len(done)
        else "no"
        if not same
        else f"{same} of {len(done)}",
        told["state"],
    ]


def same_bits(run: Mapping[str, Any], digest: str) -> bool:
    """Whether a run ended with the very bits of the undisturbed one that has this digest."""
    return bool(digest) and run["digest"] == digest


def undisturbed_digest(found: Mapping[str, Any], name: str) -> str:
    """That of the contender's own run without kills; without such a run, the plain script's.

    Kills are drawn anew for each round, the training never: one run stands for all.
    """
    own = [run for run in found["undisturbed"] if run["contender"] == name]
    plain = [run for run in found["runs"] if run["contender"] == "plain"]
    return next((run["digest"] for run in (*own, *plain) if run["finished"]), "")


def markdown(found: Mapping[str, Any]) -> str:
    """The whole table, and below it who could not run and why, in their own words."""
    plain = {run["seed"]: run for run in found["runs"] if run["contender"] == "plain"}
    rows = [HEADER, ["---"] * len(HEADER)]
    for told in found["contenders"]:
        runs = [run for run in found["runs"] if run["contender"] == told["name"]]
        if runs:
            digest = undisturbed_digest(found, told["name"])
            rows.append(row({**told, "digest": digest}, runs, plain))
    lines = ["| " + " | ".join(each) + " |" for each in rows]
    for told in found["contenders"]:
        if told["left_out"]:
            lines += ["", f"{told['title']} did not run: {told['left_out']}"]
    return "\n".join(lines)


def whole(found: Mapping[str, Any]) -> str:
    """Everything there is to say: where and when, the table, and what it costs without kills."""
    machine, settings = found["machine"], found["settings"]
    where = (
        f"{found['date']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel'].split('-')[0]}, {machine['architecture']}; "
        f"{settings['kills']} kills a run, {settings['epochs']} epochs, "
        f"the shared folder in {settings['shared'].replace('disk', 'a disk')}"
    )
    lines = [f"* {line}" for line in undisturbed(found).splitlines()]
    quiet = ["", "Without any kill (one run each):", "", *lines] if lines else []
    return "\n".join([markdown(found), "", f"Played on {where}.", *quiet])


def put_into(page: str, found: Mapping[str, Any]) -> str:
    """The page with what stands between its marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{whole(found)}\n{end}{after}" if begin and end else page


def undisturbed(found: Mapping[str, Any]) -> str:
    """What each costs while nothing fails, a line each."""
    plain = undisturbed_digest(found, "plain")
    lines = []
    for told in found["contenders"]:
        for run in found["undisturbed"]:
            if run["contender"] == told["name"] and run["finished"]:
                bits = "the plain script's bits" if same_bits(run, plain) else "other bits"
                number = len(run["checkpoints"])
                stopped = f"{run['stopped_s']:.1f} s stopped in {number} checkpoints"
                lines.append(f"{told['title']}: {run['wall_s']:.1f} s, {stopped}, {bits}")
    return "\n".join(lines)
