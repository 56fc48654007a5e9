"""A machine that systemd runs, allstop installed: PID 1 of namespaces nested in a lab."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.host import Host

ROOT = Path(__file__).resolve().parents[3]
SYSTEMD = Path("/usr/lib/systemd/systemd")
PROGRAMS = Path(__file__).with_name("programs")
SOURCE = Path("/opt/allstop/source")  # where a machine sees ROOT
PYTHON = "/opt/allstop/python/bin/python3"
SHARED = Path("/srv/shared")
BOOT_S = 30.0
STOP_S = 20.0
POLL_S = 0.1
TARGET = """[Unit]
Description=a machine of a test
Requires=systemd-journald.service
After=systemd-journald.service
"""


class Machine:
    """systemd in namespaces. Nothing of it touches the system outside; it ends with its host.

    Attributes:
        host: of a started lab; its network and its name are the machine's.
        disk: a directory of this machine's own; `disk/var` is its /var/lib/allstop.
    """

    def __init__(self, host: Host, disk: Path, shared: Path) -> None:
        self.host, self.disk, self._shared = host, disk, shared
        self._process: subprocess.Popen[Any] | None = None
        self._units = disk / "units"
        self._etc = disk / "etc"
        for directory in (self._units, self._etc, shared):
            directory.mkdir(parents=True, exist_ok=True)
        self.unit("machine.target", TARGET)

    def unit(self, name: str, text: str) -> None:
        """Add a unit to /etc/systemd/system, before the start."""
        (self._units / name).write_text(text)

    def config(self, name: str, text: str, mode: int = 0o644) -> None:
        """Add a file to /etc/allstop, before the start."""
        (self._etc / name).write_text(text)
        (self._etc / name).chmod(mode)

    def start(self) -> None:
        """Boot; returns when systemd says that the machine runs. Raises LabError."""
        places = [self.disk, self._shared, ROOT, sys.base_prefix, sysconfig.get_path("purelib")]
        with (self.disk / "boot.log").open("wb") as log:
            self._process = self.host.popen(
                [str(PROGRAMS / "start.sh"), *map(str, places), str(self._units)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait("the machine", lambda: self.state() == "running", BOOT_S)

    @property
    def running(self) -> bool:
        """Whether it was started and its plug is in."""
        return self._process is not None and self._process.poll() is None

    def state(self) -> str:
        """What systemd says of the whole machine; empty while it does not answer."""
        return self.systemctl("is-system-running", check=False).stdout.strip()

    def run(
        self, *argv: str, timeout_s: float = 30.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the machine, as root, to its end."""
        pid = (self.disk / "init.pid").read_text().strip()
        inside = ["nsenter", "--target", pid, "--mount", "--pid", "--ipc", "--uts", "--cgroup"]
        return self.host.run([*inside, "--", *argv], timeout_s, check=check, cwd="/")

    def systemctl(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Ask this machine's systemd; 1 with no words while it does not run yet."""
        if not (self.disk / "init.pid").exists():
            return subprocess.CompletedProcess(argv, 1, "", "")
        return self.run("systemctl", *argv, timeout_s=90.0, check=check)

    def show(self, unit: str, what: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", "--property", what, "--value", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """What a unit has said."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout

    def wait(self, what: str, true: Callable[[], bool], wait_s: float = 60.0) -> None:
        """Look again and again, for so long at most; raises LabError with what was said."""
        deadline = time.monotonic() + wait_s
        while not true():
            if time.monotonic() > deadline:
                words = (self.disk / "boot.log").read_text()[-2000:]
                with contextlib.suppress(LabError, OSError):
                    words += self.run("journalctl", "--no-pager", "-o", "cat", "-n", "80").stdout
                raise LabError(f"{self.host.name}: {what} did not come in {wait_s:g} s\n{words}")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Pull the plug, and wait until nothing is left of it, its cgroups included."""
        if self._process is None or not self.running or not self.host.alive:
            return
        with contextlib.suppress(OSError, LabError):
            self.host.run(["kill", "-KILL", (self.disk / "init.pid").read_text().strip()])
        self._process.wait(STOP_S)
