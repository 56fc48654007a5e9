"""`python -m bench.recovery [--runs N] [--only NAME]`: play the proof and print what it shows.

Every run is written to the results at once, so that a bench that is cut off has told what it saw.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.recovery import picture, table
from bench.recovery.allstop_policy import Allstop
from bench.recovery.contender import REPOSITORY, Contender
from bench.recovery.counting import statements
from bench.recovery.playing import play
from bench.recovery.ray_train import RayTrain
from bench.recovery.schedule import draw
from bench.recovery.torchft_groups import NIGHTLY, RELEASE, Torchft
from bench.recovery.torchrun_alone import Plain, TorchrunAlone
from coordinator.core.errors import SetupError
from lab.demo.run import interruptible
from lab.memory import free_memory_bytes, total_memory_bytes

RESULTS = REPOSITORY / "bench" / "results"
OFTEN, SELDOM = 2, 10  # epochs between two snapshot files: about one second, and five
EVERY_S = 5.0
MEMORY_MIN_BYTES = 14 << 30  # the jobs, their images twice, and snapshots


def contenders() -> list[Contender]:
    """All of them, anew: one object plays one run."""
    return [
        Plain(),
        TorchrunAlone(OFTEN),
        TorchrunAlone(SELDOM),
        Torchft(RELEASE),
        Torchft(NIGHTLY),
        RayTrain(SELDOM),
        Allstop(EVERY_S),
    ]


def anew(name: str) -> Contender:
    """A contender for the next run."""
    return next(one for one in contenders() if one.name == name)


class Bench:
    """What was found so far, and where it is kept."""

    def __init__(self, options: argparse.Namespace, say: Console) -> None:
        self.options, self.say = options, say
        self.path = options.output
        self.memory = free_memory_bytes() >= MEMORY_MIN_BYTES
        self.found: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "settings": {
                "epochs": options.epochs,
                "kills": options.kills,
                "shared": "memory" if self.memory else "disk",
            },
            "contenders": [],
            "undisturbed": [],
            "runs": [],
        }
        if options.add and self.path.exists():
            before = json.loads(self.path.read_text())
            if before["settings"] != self.found["settings"]:
                raise SystemExit(f"{self.path} has other settings: {before['settings']}")
            self.found = before

    def run(self) -> dict[str, Any]:
        """Each contender once without kills, then all rounds."""
        names = [one.name for one in contenders() if self.ready(one)]
        if self.options.undisturbed:
            for name in names:
                if name != "plain":
                    self.play(name, self.options.seed, 0, "undisturbed")
        for seed in range(self.options.seed, self.options.seed + self.options.runs):
            for name in names:
                self.play(name, seed, 0 if name == "plain" else self.options.kills, "runs")
        return self.found

    def ready(self, one: Contender) -> bool:
        """Prepare it, and note why where that fails."""
        if self.options.only and one.name not in self.options.only:
            return False
        left_out = ""
        self.say.print(f"preparing: {one.title}", style="dim")
        try:
            one.prepare()
        except SetupError as error:
            left_out = str(error)
            self.say.print(f"{one.title}: left out, {error}")
        about = {
            "name": one.name,
            "title": one.title,
            "state": one.state,
            "statements": statements(one.script.read_text()),
            "left_out": left_out,
        }
        order = [each.name for each in contenders()]
        others = [each for each in self.found["contenders"] if each["name"] != one.name]
        known = sorted([*others, about], key=lambda each: order.index(each["name"]))
        self.found["contenders"] = known
        return not left_out

    def play(self, name: str, seed: int, kills: int, where: str) -> None:
        """One run; its course is told in a line."""
        drawn, epochs = draw(seed, kills), self.options.epochs
        run = play(anew(name), drawn, seed=seed, epochs=epochs, memory=self.memory)
        self.found[where].append(run.to_fields())
        ended = f"{run.wall_s:.1f} s" if run.finished else run.why
        back = ", ".join(f"{one.new_s:.1f} s" for one in run.recoveries)
        self.say.print(
            f"{name}, seed {seed}, {kills} kills: {ended}; new steps after {back or '-'}"
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text_of(self.found))


def text_of(found: dict[str, Any]) -> str:
    """JSON with a line for each run, so that two results can be compared."""
    parts = []
    for name, value in found.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(one) for one in value)
            parts.append(f'"{name}": [\n{lines}\n]')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def machine() -> dict[str, Any]:
    """The machine in words, without its name."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(total_memory_bytes() / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "architecture": platform.machine(),
    }


def main() -> None:
    """Play, or show what was played: a table on stdout, a picture beside the results."""
    parser = argparse.ArgumentParser(prog="bench.recovery", description=__doc__.split("\n")[0])
    names = [one.name for one in contenders()]
    parser.add_argument("--runs", type=int, default=5, help="rounds, each with kills of its own")
    parser.add_argument("--kills", type=int, default=2, help="nodes lost in a run")
    parser.add_argument("--epochs", type=int, default=60, help="of 23 steps each")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; counts up")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument(
        "--undisturbed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="first a run of each without kills",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "recovery.json")
    parser.add_argument("--add", action="store_true", help="to the results that are there")
    parser.add_argument("--show", action="store_true", help="play nothing, show what is there")
    options = parser.parse_args()
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    if options.show:
        found = json.loads(options.output.read_text())
    elif os.geteuid() != 0:
        raise SystemExit("bench.recovery: a lab of namespaces needs root")
    else:
        with interruptible():  # a lab ends with its owner; its folder, too, this way
            found = Bench(options, say).run()
    options.output.with_suffix(".svg").write_text(picture.svg(found))
    if options.output == RESULTS / "recovery.json":
        page = REPOSITORY / "README.md"
        page.write_text(table.put_into(page.read_text(), found))
    print(table.whole(found))


if __name__ == "__main__":
    main()
