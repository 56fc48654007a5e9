"""Ask this machine's driver and program what tests/fakes/gpu/said.json says: `… probe [FILE]`.

Writes the same content, as this machine has it, to FILE (or prints it), so that what a real
machine says can be put in the place of what was only read. Needs root, both ways to the driver and
nothing of value on the first GPU. Rows that differ from those in the repository are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.machine import Machine
from bench.gpu.ranks import Ranks
from coordinator.core.errors import AllstopError, SetupError
from tests.fakes.gpu.build import said
from tests.gpu.kit import ROOT, machine
from worker_shim.cuda.choosing import LIBRARY, PROGRAM, choose, find_program
from worker_shim.cuda.results import MEANINGS
from worker_shim.process.runner import CommandRunner

WORK_S = 20.0  # longer than both locks that wait for it
LOCK_MS = 500
CALL_S = 120.0
NOBODY = 4_194_305  # more than any pid
ELSEWHERE = "GPU-00000000-0000-4000-8000-000000000000"  # a device that no process has
FLAGS = {"state": ("--get-state",), "thread": ("--get-restore-tid",)}
ASKED = ("help", "words", "cases")

Case = dict[str, Any]


def call(name: str, pid: int, *arguments: str, **fields: Any) -> Case:
    """A call that is refused: its result by the library, then what the program says to the same."""
    request = json.dumps({"call": name, "pid": pid, **fields})
    library = _run(sys.executable, "-m", "worker_shim.cuda.helper", stdin=request + "\n")
    *_, answer = map(json.loads, library.stdout.splitlines())
    if "error" in answer:
        raise SetupError(f"the driver's library: {answer['error']}")
    flags = FLAGS.get(name, ("--action", name))
    told = _run(find_program() or PROGRAM, *flags, "--pid", str(pid), *arguments)
    out, err = (text.replace(str(pid), "{pid}") for text in (told.stdout, told.stderr))
    return {"result": answer["result"], "exit": told.returncode, "stdout": out, "stderr": err}


def _run(*line: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        line, input=stdin, capture_output=True, text=True, timeout=CALL_S, env=env, cwd=ROOT
    )


def lock(pid: int) -> Case:
    """With a short time-out."""
    return call("lock", pid, "--timeout", str(LOCK_MS), timeout_ms=LOCK_MS)


def restore(pid: int, devices: Sequence[tuple[str, str]] = ()) -> Case:
    """With a map, or without."""
    pairs = ",".join(f"{old}={new}" for old, new in devices)
    return call("restore", pid, *(("--device-map", pairs) if pairs else ()), devices=devices)


def of_others() -> dict[str, Case]:
    """A process without CUDA, and none at all."""
    stranger = subprocess.Popen(["sleep", str(CALL_S)])
    try:
        return {
            "state_without_cuda": call("state", stranger.pid),
            "lock_without_cuda": lock(stranger.pid),
            "tid_without_cuda": call("thread", stranger.pid),
            "state_of_nobody": call("state", NOBODY),
            "lock_of_nobody": lock(NOBODY),
        }
    finally:
        stranger.kill()
        stranger.wait()


async def of_states(ranks: Ranks) -> dict[str, Case]:
    """Calls in states that they are not for."""
    (process,) = await ranks.gpu_processes()
    pid = process.pid
    found = {
        "checkpoint_while_running": call("checkpoint", pid),
        "restore_while_running": restore(pid),
        "unlock_while_running": call("unlock", pid),
    }
    await ranks.lock()
    found["lock_while_locked"] = lock(pid)
    found["restore_while_locked"] = restore(pid)
    await ranks.save()
    found["checkpoint_while_checkpointed"] = call("checkpoint", pid)
    found["unlock_while_checkpointed"] = call("unlock", pid)
    found["lock_while_checkpointed"] = lock(pid)
    await ranks.restore()
    await ranks.unlock()
    await ranks.ask(0, f"work {WORK_S}")
    found["lock_with_work_outstanding"] = lock(pid)
    return found


async def of_a_map(ranks: Ranks) -> dict[str, Case]:
    """The process may be lost by that."""
    (process,) = await ranks.gpu_processes()
    await ranks.lock()
    await ranks.save()
    return {"restore_with_a_device_missing": restore(process.pid, [(ELSEWHERE, ELSEWHERE)])}


def words() -> dict[str, str]:
    """Of the results that the file or `results` knows."""
    asks = (
        "import json, sys; from cuda.bindings import driver\n"
        "told = {c: driver.cuGetErrorString(driver.CUresult(c))[1] for c in json.load(sys.stdin)}\n"
        "print(json.dumps({c: t.decode() for c, t in told.items() if t}))"
    )
    codes = sorted({*MEANINGS, *map(int, said()["words"])})
    told = _run(sys.executable, "-c", asks, stdin=json.dumps(codes))
    found: dict[str, str] = json.loads(told.stdout)
    return found


async def probe(here: Machine, folder: Path) -> dict[str, Any]:
    """What `said.json` has, of this machine."""
    if (program := find_program()) is None:
        raise SetupError(f"there is no {PROGRAM} in PATH")
    cuda = choose(LIBRARY, CommandRunner())
    cases = of_others()
    try:
        for number, ask in enumerate((of_states, of_a_map)):
            async with Ranks(cuda, folder / str(number)) as ranks:
                await ranks.start(here.rank)
                await ranks.ask(0, "fill weights 64")
                cases |= await ask(ranks)
    finally:
        await cuda.close()
    told = _run(program, "--help")
    source = f"a machine with {here.model}, asked by tests/gpu/probe.py"
    known = said()
    asked = {"driver": here.driver, "source": source, "help": told.stdout + told.stderr}
    return {**known, **asked, "words": words(), "cases": cases}


def differences(found: dict[str, Any]) -> list[str]:
    """Rows in which a machine differs from the file."""
    known, told = said(), []
    for part in ("words", "cases"):
        for name in sorted({*known[part], *found[part]}):
            have, is_ = known[part].get(name), found[part].get(name)
            if have != is_:
                told.append(f"{part} {name}: the file has {have}, this machine {is_}")
    if known["help"] != found["help"]:
        told.append(f"help: this machine's is\n{found['help']}")
    return told


def main() -> None:
    """Probe, compare, write."""
    try:
        with tempfile.TemporaryDirectory(prefix="allstop-probe-") as folder:
            here = machine()
            found = asyncio.run(probe(here, Path(folder)))
    except AllstopError as error:
        raise SystemExit(f"nothing was asked: {error}") from None
    text = json.dumps(found, indent=2) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text)
    for row in differences(found):
        print(row, file=sys.stderr)


if __name__ == "__main__":
    main()
