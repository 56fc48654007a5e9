"""The shim's own PID namespace, with real namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

ENTER = """
import sys
from worker_shim.process.namespace import enter_own_pid_namespace
enter_own_pid_namespace(sys.argv[2:], private_run=sys.argv[1] == "run")
"""
REPOSITORY = Path(__file__).parents[3]


def enter(*argv: str, run: str = "keep") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENTER, run, *argv],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_pids_mounts_and_exit_code() -> None:
    script = "echo $$; ls /proc | grep -c '^[0-9]'; cat /proc/1/comm; ls -A /run; exit 9"
    inside = enter("sh", "-c", script, run="run")
    out, _ = inside.communicate(timeout=20)
    assert inside.returncode == 9, out
    lines = out.split()
    assert lines[0] == "2"
    assert int(lines[1]) <= 5, "only the namespace's own processes are seen"
    assert lines[2].startswith("python")
    assert lines[3:] == [], "/run is an empty tmpfs"


def test_orphans_are_reaped_at_once() -> None:
    program = (
        "import os, subprocess, time\n"
        "out = subprocess.run(['sh', '-c', 'sleep 0.01 & echo $!'], stdout=subprocess.PIPE)\n"
        "orphan = int(out.stdout)\n"
        "for _ in range(500):\n"
        "    if not os.path.exists(f'/proc/{orphan}'):\n"
        "        raise SystemExit(0)\n"
        "    time.sleep(0.01)\n"
        "raise SystemExit(1)\n"
    )
    inside = enter(sys.executable, "-c", program)
    assert inside.wait(timeout=20) == 0, inside.communicate()
    inside.communicate()


def test_signals_are_passed_on() -> None:
    inside = enter(
        "sh", "-c", "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    )
    assert inside.stdout is not None
    assert inside.stdout.readline() == "up\n"
    inside.terminate()
    assert inside.wait(timeout=20) == 5
    assert inside.communicate()[0] == "got\n"


def test_a_killed_shim_takes_everything_with_it() -> None:
    inside = enter("sh", "-c", "setsid sleep 300 & echo up; wait")
    assert inside.stdout is not None
    inside.stdout.readline()
    namespace = _namespace_of_first_child(inside.pid)
    assert len(_members(namespace)) == 3
    inside.send_signal(signal.SIGKILL)
    inside.wait(10)
    deadline = time.monotonic() + 10
    while left := _members(namespace):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    inside.communicate()


def test_a_missing_program_is_said() -> None:
    inside = enter("/no/such/shim")
    out, _ = inside.communicate(timeout=20)
    assert inside.returncode == 127
    assert "cannot start /no/such/shim" in out


def _namespace_of_first_child(pid: int) -> int:
    child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    return os.stat(f"/proc/{child}/ns/pid").st_ino


def _members(namespace: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                # A zombie's namespace can still be read; it has ended all the same.
                running = Path(f"/proc/{name}/cmdline").read_bytes()
                if running and os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                    members.append(int(name))
            except OSError:
                continue
    return members
