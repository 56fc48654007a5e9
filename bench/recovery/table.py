"""Results as a table in Markdown: a row each, medians and ranges, also where allstop loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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
    "statements for fault tolerance",
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
    told: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    plain: Mapping[int, Any],
    digests: Set[str],
) -> list[str]:
    """One contender: `told` is what is known without a run, `plain` the plain runs by seed,
    `digests` what runs without kills end with.
    """
    done = [run for run in runs if run["finished"]]
    kills = [kill for run in done for kill in run["recoveries"] if kill["new_s"] >= 0]
    same = sum(run["digest"] in digests for run in done)
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
        str(told["statements"]),
        "-"
        if not done
        else "yes"
        if same == len(done)
        else "no"
        if not same
        else f"{same} of {len(done)}",
        told["state"],
    ]


def undisturbed_digests(found: Mapping[str, Any], name: str) -> frozenset[str]:
    """What the contender's own runs without kills end with; without any, the plain script's.

    More than one: it does not train alike each time, and any of them counts as its bits.
    """
    own = {run["digest"] for run in found["undisturbed"] if run["contender"] == name}
    plain = {run["digest"] for run in found["runs"] if run["contender"] == "plain"}
    return frozenset((own - {""}) or (plain - {""}))


def trouble(found: Mapping[str, Any]) -> list[str]:
    """Runs that did not finish, or were hit less often than was asked, a line each."""
    lines, wanted = [], found["settings"]["kills"]
    titles = {told["name"]: told["title"] for told in found["contenders"]}
    for run in found["runs"]:
        who = f"{titles.get(run['contender'], run['contender'])}, round {run['seed']}"
        if not run["finished"]:
            lines.append(f"{who}: {run['why'].splitlines()[0] if run['why'] else 'not finished'}")
        elif run["contender"] != "plain" and len(run["recoveries"]) != wanted:
            lines.append(f"{who}: {len(run['recoveries'])} of {wanted} nodes were lost")
    return lines


def markdown(found: Mapping[str, Any]) -> str:
    """The whole table, and below it who could not run and why, in their own words."""
    plain = {run["seed"]: run for run in found["runs"] if run["contender"] == "plain"}
    rows = [HEADER, ["---"] * len(HEADER)]
    for told in found["contenders"]:
        runs = [run for run in found["runs"] if run["contender"] == told["name"]]
        if runs:
            rows.append(row(told, runs, plain, undisturbed_digests(found, told["name"])))
    lines = ["| " + " | ".join(each) + " |" for each in rows]
    for told in found["contenders"]:
        if told["left_out"]:
            lines += ["", f"{told['title']} did not run: {told['left_out']}"]
    for line in trouble(found):
        lines += ["", line]
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
    quiet = ["", "Without any kill:", "", *lines] if lines else []
    return "\n".join([markdown(found), "", f"Played on {where}.", *quiet])


def put_into(page: str, found: Mapping[str, Any]) -> str:
    """The page with what stands between its marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{whole(found)}\n{end}{after}" if begin and end else page


def undisturbed(found: Mapping[str, Any]) -> str:
    """What each costs while nothing fails, a line each; medians of its runs."""
    plain = undisturbed_digests(found, "plain")
    lines = []
    for told in found["contenders"]:
        name = told["name"]
        runs = [run for run in found["undisturbed"] if run["contender"] == name]
        done = [run for run in runs if run["finished"]]
        if not done:
            continue
        digests = {run["digest"] for run in done}
        bits = "the plain script's bits" if digests <= plain else "other bits"
        if len(digests) > 1:
            bits += f", {len(digests)} different ends in {len(done)} runs"
        wall = figure(Spread.of([run["wall_s"] for run in done]))
        stopped = figure(Spread.of([run["stopped_s"] for run in done]))
        number = figure(Spread.of([len(run["checkpoints"]) for run in done]), "{:.0f}")
        lines.append(
            f"{told['title']}: {wall} s, {stopped} s stopped in {number} checkpoints, {bits}"
        )
    return "\n".join(lines)
