"""One host of a lab: run programs in it, cut its cable, pause it, pull its plug."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lab.errors import CommandFailed, HostGone, LabError

INSIDE = [sys.executable, "-EsSP", str(Path(__file__).with_name("inside.py"))]
DISK = Path("/run/allstop-disk")  # where every host sees its own disk
POWER_OFF_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 20.0
LAST_WORDS_CHARS = 2000

Stream = int | IO[Any] | None


class Host:
    """A machine made of namespaces. Made by `Lab`; never by hand.

    Attributes:
        name: its host name, which the other hosts can resolve.
        address: its IPv4 address, on `eth0` (the control host: on the bridge).
        init_pid: its PID 1, as the lab's owner sees it.
        disk: the owner's path of the directory that the host sees as `lab.DISK`.
    """

    def __init__(
        self,
        name: str,
        address: str,
        init_pid: int,
        disk: Path,
        control: "Host | None" = None,
        port: str = "",
    ) -> None:
        self.name = name
        self.address = address
        self.init_pid = init_pid
        self.disk = disk
        self._control = control
        self._port = port  # the control host's end of our cable
        self._pidfd = os.pidfd_open(init_pid)
        self._stopped: list[str] = []
        self._started: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self.address}, {'alive' if self.alive else 'off'})"

    @property
    def alive(self) -> bool:
        """Whether the host has not been powered off (a paused or cut-off host is alive)."""
        return self._pidfd >= 0 and not wait_for_end(self._pidfd, 0.0)

    def wrap(self, argv: Sequence[str], cwd: str | Path | None = None) -> tuple[list[str], int]:
        """The command line that runs `argv` in this host, and the descriptor it must inherit.

        For callers with a way of their own to start processes (asyncio): give the descriptor as
        `pass_fds=(fd,)`. Raises HostGone.
        """
        if not self.alive:
            raise HostGone(f"host {self.name} is powered off, cannot run {argv[0]}")
        where = str(cwd if cwd is not None else Path.cwd())
        return [*INSIDE, "enter", str(self._pidfd), where, *argv], self._pidfd

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
    ) -> subprocess.Popen[Any]:
        """Start a program in the host, in a session of its own (a terminal's Ctrl-C misses it).

        Its signals, exit status and streams are those of the returned process, except that
        SIGSTOP stops only the outer half (see `pid_of`). It ends with the host, and with the owner.
        `env`: as for Popen, None passes the owner's on. Raises HostGone.
        """
        line, fd = self.wrap(argv, cwd)
        process = subprocess.Popen(
            line,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            pass_fds=(fd,),
            start_new_session=True,
        )
        self._started = [p for p in self._started if p.poll() is None] + [process]
        return process

    def pid_of(self, process: subprocess.Popen[Any]) -> int:
        """The program's own pid, as the lab's owner sees it: for SIGSTOP, /proc and the like.

        `process` comes from `popen`. Raises LabError if the program has ended.
        """
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            if found := children.read_text().split():
                return int(found[0])
            time.sleep(0.01)
        raise LabError(f"{self.name}: the program has ended (exit status {process.returncode})")

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float = COMMAND_TIMEOUT_S,
        *,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the host to its end and return what it printed.

        Raises CommandFailed when it takes longer than `timeout_s`, or (with `check`) when it
        exits with anything but 0; HostGone when the host is off.
        """
        line, fd = self.wrap(argv, cwd)
        try:
            done = subprocess.run(
                line,
                env=env,
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                timeout=timeout_s,
                pass_fds=(fd,),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as late:
            raise CommandFailed(f"{self.name}: {' '.join(argv)} took over {timeout_s} s") from late
        if check and done.returncode != 0:
            words = (done.stderr or done.stdout)[-LAST_WORDS_CHARS:]
            raise CommandFailed(f"{self.name}: {' '.join(argv)} gave {done.returncode}: {words}")
        return subprocess.CompletedProcess(list(argv), done.returncode, done.stdout, done.stderr)

    def power_off(self) -> None:
        """Pull the plug: the cable first, so that no peer sees a FIN, then every process at once.

        Returns when the last process is gone. The disk's content stays. Does nothing if off.
        """
        control = self._worker_only("powered off (close the lab instead)")
        if not self.alive:
            return
        control.run(["ip", "link", "delete", self._port])
        self.kill()

    def kill(self) -> None:
        """SIGKILL PID 1, and with it every process of the host; return when they are gone.

        Unlike `power_off` this leaves the peers whatever the dying sockets still say.
        """
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if not wait_for_end(self._pidfd, POWER_OFF_TIMEOUT_S):
            raise LabError(f"host {self.name} still has processes after {POWER_OFF_TIMEOUT_S} s")

    def cut_off(self) -> None:
        """Unplug the host's cable: nothing passes in either direction, nothing is refused."""
        control = self._worker_only("cut off")
        control.run(["ip", "link", "set", self._port, "down"])

    def reconnect(self) -> None:
        """Plug the cable in again."""
        control = self._worker_only("reconnected")
        control.run(["ip", "link", "set", self._port, "up"])

    def pause(self) -> None:
        """SIGSTOP every process of the host; its kernel goes on answering (ACKs, pings)."""
        self._worker_only("paused")
        self._stopped += self.run([*INSIDE, "stop"]).stdout.split()

    def unpause(self) -> None:
        """SIGCONT what `pause` stopped; what was stopped before the pause stays so."""
        self._worker_only("unpaused")
        if self._stopped:
            self.run([*INSIDE, "cont", *self._stopped])
        self._stopped = []

    def release(self) -> None:
        """Collect what was started here, after the host's end. Called by `Lab.close`."""
        for process in self._started:
            process.wait(POWER_OFF_TIMEOUT_S)
        self._started = []
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _worker_only(self, what: str) -> "Host":
        if self._control is None:
            raise LabError(f"the control host carries the lab's network and cannot be {what}")
        return self._control


def wait_for_end(pidfd: int, timeout_s: float) -> bool:
    """Whether the process behind `pidfd` has ended, waiting up to `timeout_s` for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
