"""A tree that CRIU brought back is this process's child again: stopped, continued, waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.criu]

REPOSITORY = Path(__file__).parents[3]

# Runs in a PID namespace of its own, where the pids of the image are free again.
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from worker_shim.process.namespace import enter_own_pid_namespace
if len(sys.argv) == 3:
    enter_own_pid_namespace([sys.executable, "-c", os.environ["PROGRAM"], *sys.argv[1:], "inside"],
                            private_run=True)
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.port import LaunchSpec
from worker_shim.process.runner import CommandRunner

async def main(criu, place):
    driver, run = LinuxProcessDriver(), CommandRunner().run
    script = "trap 'exit 42' USR1; echo ready; while :; do sleep 0.01; done"
    spec = LaunchSpec(["bash", "-c", script], {"PATH": os.environ["PATH"]}, place, place / "log")
    root = await driver.launch(spec, deadline_s=20)
    assert root == 1000, root
    for _ in range(10_000):
        if (place / "log").read_text():
            break
        await asyncio.sleep(0.001)
    tree = await driver.stop(root, deadline_s=10)
    images = ["-D", str(place / "images")]
    (place / "images").mkdir()
    dump = [criu, "dump", "-t", str(root), *images, "--leave-running"]
    (await run(dump, deadline_s=30)).require("dump")
    first = asyncio.ensure_future(driver.wait(root))
    await driver.kill(root, deadline_s=10)
    assert await first == -9
    done = await run([criu, "restore", *images, "-d", "--restore-sibling"], deadline_s=30)
    done.require("restore")
    assert driver.look(root).pids == tree.pids
    for _ in range(10_000):  # criu sends SIGSTOP and leaves; a sleep that had ended is a zombie
        states = [p.state for p in driver.look(root).processes]
        if set(states) <= {"T", "Z"} and states.count("T") > 0:
            break
        await asyncio.sleep(0.001)
    else:
        raise SystemExit(f"not stopped after the restore: {states}")
    again = asyncio.ensure_future(driver.wait(root))
    await driver.go_on(root)
    os.kill(root, 10)
    code = await asyncio.wait_for(again, 10)
    await driver.kill(root, deadline_s=10)
    print("exit code", code)

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


def test_the_exit_code_of_a_restored_worker_is_learnt(criu_path: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(criu_path), str(tmp_path)],
        env={**os.environ, "PROGRAM": PROGRAM},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "exit code 42\n", done.stderr + _log(tmp_path)


def _log(place: Path) -> str:
    logs = sorted((place / "images").glob("*.log"))
    return "\n".join(log.read_text()[-2000:] for log in logs)
