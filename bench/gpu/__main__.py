"""`python -m bench.gpu`: measure device memory's part of a checkpoint on this machine's GPU.

The figures go to bench/results/gpu-MODEL-DRIVER-DATE.json, or below --into. Needs root. What this
machine has no means for is left out, and the file says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gpu import comparing, machine, measuring
from bench.gpu.machine import Machine
from coordinator.core.errors import AllstopError, SetupError
from lab.errors import LabError
from worker_shim.criu.binary import find_criu

RESULTS = Path(__file__).parents[1] / "results"
JOB_MIB = 1 << 10

Note = Callable[[str], None]


async def measure(here: Machine, options: argparse.Namespace, note: Note) -> dict[str, Any]:
    """All of it, with what was left out and why."""
    folder = Path(tempfile.mkdtemp(prefix="allstop-bench-gpu-", dir=options.images))
    lacking = machine.lacking_criu()
    criu = "" if lacking else str(find_criu())
    try:
        note(f"{here.model}, driver {here.driver}: {', '.join(here.engines)}; {lacking or criu}")
        taken, failed = await measuring.measure(
            here, folder, sizes=options.sizes_mib, rounds=options.rounds, criu=criu
        )
        for words in failed:
            note(words)
        compared, left_out = await _compare(here, folder, options.job_mib, criu, note, lacking)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "model": here.model,
        "driver": here.driver,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": machine.versions(),
        "without_criu": lacking,
        "steps": taken,
        "failed": failed,
        "against_by_hand": compared,
        "not_compared": left_out,
    }


async def _compare(
    here: Machine, folder: Path, mib: int, criu: str, note: Note, lacking: str
) -> tuple[list[comparing.Compared], str]:
    why = lacking or ("" if here.train != machine.TRAIN else machine.lacking_torch())
    if why:
        note(f"no whole round was compared: {why}")
        return [], why
    found: list[comparing.Compared] = []
    left_out: list[str] = []
    for engine in here.engines:
        note(f"a whole round by {engine}, and by hand")
        root = folder / f"compared-{engine}"
        try:
            found.append(await comparing.compare(here, engine, root, mib=mib, criu=criu))
        except (AllstopError, LabError) as error:
            left_out.append(f"{engine}: {error}")
            note(left_out[-1])
    return found, "; ".join(left_out)


def written(found: dict[str, Any], into: Path) -> Path:
    """The file that it is in from now on."""
    parts = [found["model"], found["driver"], found["date"]]
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in parts)
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"gpu-{name}.json"
    fields = {
        **found,
        "steps": [one.to_fields() for one in found["steps"]],
        "against_by_hand": [one.to_fields() for one in found["against_by_hand"]],
    }
    path.write_text(json.dumps(fields, indent=2) + "\n")
    return path


def run(look: Callable[[], Machine], argv: list[str] | None = None) -> int:
    """Measure on the machine that `look` finds; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with the file's content")
    parser.add_argument("--rounds", type=int, default=measuring.ROUNDS)
    parser.add_argument("--sizes-mib", type=int, nargs="+", default=[], help="of each process")
    parser.add_argument("--job-mib", type=int, default=JOB_MIB, help="of each rank of the job")
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--images", type=Path, help="where CRIU writes; default: TMPDIR")
    options = parser.parse_args(argv)
    people = Console(stderr=True, highlight=False)
    try:
        found = asyncio.run(measure(look(), options, lambda text: people.print(text, style="dim")))
    except (AllstopError, LabError) as error:
        words = (f"nothing was measured: {error}", *getattr(error, "details", ()))
        print(*words, sep="\n", file=sys.stderr)
        return 1
    path = written(found, options.into)
    table = Table("figure, ms", "measured", "floor", box=None, padding=(0, 2, 0, 0))
    for row in (*measuring.rows_of(found["steps"]), *comparing.rows_of(found["against_by_hand"])):
        table.add_row(*row)
    people.print(table)
    print(f"written to {path}", file=sys.stderr)
    if options.json:
        print(json.dumps(json.loads(path.read_text())))
    return 0


def _here() -> Machine:
    if os.geteuid() != 0:
        raise SetupError("it needs root")
    return asyncio.run(machine.here())


if __name__ == "__main__":
    sys.exit(run(_here))
