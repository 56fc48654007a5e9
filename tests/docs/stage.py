"""Machines and terminals on which the commands of the pages are run for real."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.view import JobView, NodeView
from lab import Lab
from lab.host import Host
from tests.docs.pages import ELLIPSIS, Block

SUBNET = "10.0.0.0/24"  # that of the pages; the lab's control host is 10.0.0.1
PAGE_PORT, SHIM_METRICS_PORT = 7412, 7413
COMMAND_S = 120.0
END_S = 30.0
WAIT_S = 150.0  # a busy machine imports PyTorch slowly
POLL_S = 0.05
SHOWN_CHARS = 3000
ID = "llm-20261129-214424-579caf"  # of the pages, for any snapshot


class Stage:
    """Machine A is the lab's control host, B and C are hosts of it; all share one directory."""

    def __init__(self, lab: Lab, root: Path) -> None:
        """The environment is that of a user who keeps everything below `root`."""
        self.root = root
        self.machines: dict[str, Host] = {
            "A": lab.control,
            "B": lab.hosts["b"],
            "C": lab.hosts["c"],
        }
        self.work = root / "work"
        self.work.mkdir(parents=True)
        self.terminals: dict[str, subprocess.Popen[Any]] = {}
        self.places: dict[str, str] = {}  # machine of each terminal
        self.told: dict[str, str] = {}  # what a block has printed, by its place
        self._env = {name: self._environment(name) for name in self.machines}

    def _environment(self, name: str) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if "ALLSTOP" not in n}
        programs = str(Path(sys.executable).parent)
        return {
            **kept,
            "PATH": f"{programs}:{kept['PATH']}",
            "XDG_STATE_HOME": str(self.root / "state"),
            "ALLSTOP_STORE": str(self.root / "store"),
            "ALLSTOP_STAGING": str(self.root / name / "staging"),
            "ALLSTOP_NODE_STATE": str(self.root / name / "node"),
            "ALLSTOP_ADDRESS": self.machines[name].address,  # a lab has no default interface
            "ALLSTOP_METRICS": f"127.0.0.1:{SHIM_METRICS_PORT}",
            "OMP_NUM_THREADS": "1",
        }

    # -- doing what a page says ------------------------------------------------------------------

    def do(self, block: Block) -> None:
        """One block or comment."""
        settings = block.settings
        actions: dict[str, Callable[[], object]] = {
            "run": lambda: self._run(block),
            "file": lambda: (self.work / block.todo.split()[1]).write_text(block.text + "\n"),
            "wait": lambda: self.wait_running(settings["job"]),
            "attached": lambda: self.wait_node(settings["node"], "attached"),
            "lost": lambda: self.wait_node(settings["node"], "lost"),
            "ctrl-c": lambda: self.interrupt(block.todo.split()[1]),
            "power-off": lambda: self.power_off(block.todo.split()[1]),
            "not": lambda: None,
        }
        assert block.verb in actions, f"{block.where}: nobody knows <!-- {block.todo} -->"
        actions[block.verb]()

    def _run(self, block: Block) -> None:
        script = self._filled(block.todo.partition("hidden: ")[2] or block.shell)
        names = block.settings["on"].split(",")
        if "environment" in block.todo.split():
            for name in names:
                self._env[name] |= _variables(script)
            return
        for name in names:
            if terminal := block.settings.get("stays"):
                self._keep(name, terminal, script)
            else:
                self._run_to_its_end(block, name, script)

    def _filled(self, script: str) -> str:
        """The text of a page with what stands for something else put in."""
        for text, real in (
            ("/shared/allstop", str(self.root / "store")),
            ("10.0.0.2", self.machines["B"].address),
            ("10.0.0.3", self.machines["C"].address),
            (f" {ELLIPSIS}", ""),
        ):
            script = script.replace(text, real)
        if ID in script or " ID" in script:
            newest = self.ask(lambda client: client.snapshots("llm")).latest
            script = script.replace(ID, newest).replace(" ID", f" {newest}")
        return script

    def _run_to_its_end(self, block: Block, name: str, script: str) -> None:
        process = self.machines[name].popen(
            ["sh", "-ec", script], env=self._env[name], cwd=self.work,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            raise AssertionError(f"{block.where}: no end in {COMMAND_S:g} s\n{said}") from None
        self.told[block.where] = self.told.get(block.where, "") + said
        failed = process.returncode != 0 and "may-fail" not in block.todo.split()
        assert not failed, f"{block.where}: exit code {process.returncode}\n{said[-SHOWN_CHARS:]}"

    def _keep(self, name: str, terminal: str, script: str) -> None:
        assert terminal not in self.terminals, f"terminal {terminal} is in use"
        self.places[terminal] = name
        with (self.root / f"terminal-{terminal}").open("ab") as log:
            self.terminals[terminal] = self.machines[name].popen(
                ["sh", "-ec", f"exec {script}"], env=self._env[name], cwd=self.work,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def interrupt(self, terminal: str) -> None:
        """Ctrl-C there, until it has ended."""
        process = self.terminals.pop(terminal)
        process.send_signal(signal.SIGINT)
        process.wait(END_S)

    def power_off(self, name: str) -> None:
        """Pull the plug of a machine; its terminals are gone."""
        self.machines[name].power_off()
        for terminal in [each for each in self.terminals if self.places[each] == name]:
            self.terminals.pop(terminal).wait(END_S)

    def words(self) -> str:
        """What all terminals show, for a message."""
        shown = sorted(self.root.glob("terminal-*"))
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-SHOWN_CHARS:]}" for p in shown)

    def metrics(self) -> str:
        """What Prometheus gets from the coordinator on A and the shim on B."""
        return self._scraped("A", PAGE_PORT) + self._scraped("B", SHIM_METRICS_PORT)

    def _scraped(self, name: str, port: int) -> str:
        get = f"print(request.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
        line = [sys.executable, "-c", f"from urllib import request; {get}"]
        return str(self.machines[name].run(line).stdout)

    # -- looking -----------------------------------------------------------------------------------

    def ask(self, question: Callable[[OperatorClient], Any]) -> Any:
        """Put one question to the coordinator on A."""

        async def asked() -> Any:
            async with OperatorClient([f"unix:{self.root}/state/allstop/allstop.sock"]) as client:
                return await question(client)

        return asyncio.run(asked())

    def job(self, name: str) -> JobView | None:
        """A job as it is now; None while nobody knows it."""
        try:
            views = self.ask(lambda client: client.jobs())
        except AllstopError:
            return None
        return next((view for view in views if view.job.job == name), None)

    def wait_running(self, job: str) -> JobView:
        """Until all workers of it run, and it has made some steps since."""
        first = self._until(f"job {job} running", lambda: self._running(job, 0))
        found: JobView = self._until(f"steps of {job}", lambda: self._running(job, first.step + 2))
        return found

    def _running(self, job: str, step: int) -> JobView | None:
        view = self.job(job)
        return view if view and view.state == "running" and view.step > step else None

    def wait_node(self, name: str, state: str) -> None:
        """Until a node is attached, or lost."""
        host = self.machines[name].name

        def there() -> bool:
            try:
                views: tuple[NodeView, ...] = self.ask(lambda client: client.nodes())
            except AllstopError:
                return False
            return any(view.facts.node == host and view.state == state for view in views)

        self._until(f"{host} {state}", there)

    def _until(self, what: str, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (found := look()):
            ended = [number for number, each in self.terminals.items() if each.poll() is not None]
            late = time.monotonic() >= deadline
            assert not ended, f"waiting for {what}, terminal {ended} has ended\n{self.words()}"
            assert not late, f"{what} did not come in {WAIT_S:g} s\n{self.words()}"
            time.sleep(POLL_S)
        return found


def _variables(script: str) -> dict[str, str]:
    """What `export NAME=VALUE …` lines set."""
    words = (word for line in script.splitlines() for word in shlex.split(line)[1:])
    return {name: value for name, equals, value in (w.partition("=") for w in words) if equals}
