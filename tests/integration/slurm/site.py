"""A site with SLURM: munged, slurmctld and slurmd in a lab, one machine each, all of Debian's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from lab.host import Host

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "slurm" / "allstop.sbatch"
SLURM = ROOT / ".tools" / "slurm" / "usr"
WAIT_S = 150.0
POLL_S = 0.2
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
CONFIGURATION = """ClusterName=test
SlurmctldHost=control
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/none
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
KillWait=10
PluginDir={plugins}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# What a lab's host has is all that it is: its PID namespace counts as the machine's first one.
ALLSTOP = f"""#!/bin/sh
exec {sys.executable} -P {ROOT}/tests/support/first_namespace.py \
    $(stat -L -c %i /proc/1/ns/pid) "$@"
"""


class Site:
    """Every host of the lab is a node; jobs are submitted on the control host.

    Attributes:
        shared: a directory that all nodes see, where jobs are submitted.
    """

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self._root = lab, root
        self.shared = root / "shared"
        libraries = next((SLURM / "lib").glob("*-linux-gnu"))
        for directory in (self.shared, root / "state", root / "bin"):
            directory.mkdir(parents=True)
        (root / "slurm.conf").write_text(
            CONFIGURATION.format(
                plugins=libraries / "slurm-wlm", root=root, nodes=",".join(lab.hosts)
            )
        )
        (root / "bin" / "allstop").write_text(ALLSTOP)
        (root / "bin" / "allstop").chmod(0o755)
        path = [root / "bin", Path(sys.executable).parent, SLURM / "bin", SLURM / "sbin"]
        self.env = {
            **{name: value for name, value in os.environ.items() if "ALLSTOP" not in name},
            "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
            "SLURM_CONF": str(root / "slurm.conf"),
            "ALLSTOP_STAGING": "/run/allstop-staging",  # the lab's hosts share all but /run
            "XDG_RUNTIME_DIR": "/run",
        }

    def start(self) -> None:
        """Start all daemons; returns when every node is idle. They end with the lab."""
        key = self._root / "munge.key"
        self.lab.control.run([str(SLURM / "sbin" / "mungekey"), "-c", "-k", str(key)], env=self.env)
        for host in (self.lab.control, *self.lab.hosts.values()):
            host.run(["mkdir", "/run/munge"])
            self._daemon(
                host, "munged", "--foreground", "--force", f"--key-file={key}",
                f"--log-file={self._root}/munged-{host.name}.log", "--pid-file=/run/munge/pid",
                "--seed-file=/run/munge/seed", "--socket=/run/munge/munge.socket.2",
            )  # fmt: skip
            self.wait("munge", lambda h=host: self._munges(h))
        self._daemon(self.lab.control, "slurmctld", "-D", "-c")
        for host in self.lab.hosts.values():
            (self._root / f"spool-{host.name}").mkdir()
            self._daemon(host, "slurmd", "-D", "-N", host.name, "-d", program("slurmstepd"))
        self.wait("all nodes", lambda: self.states() == ["idle"] * len(self.lab.hosts))

    def states(self) -> list[str]:
        """Of every node."""
        return self.ask("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()

    def ask(self, *argv: str, check: bool = True, env: dict[str, str] | None = None) -> str:
        """Run a program on the control host, in the shared directory; what it printed."""
        environment = {**self.env, **(env or {})}
        return self.lab.control.run(
            argv, 60.0, check=check, env=environment, cwd=self.shared
        ).stdout

    def submit(self, options: list[str], command: list[str], **env: str) -> int:
        """`sbatch OPTIONS allstop.sbatch COMMAND`, two nodes; the job's number."""
        log = ["--nodes=2", f"--output={self.shared}/%j.log"]
        return int(self.ask("sbatch", "--parsable", *log, *options, str(SCRIPT), *command, env=env))

    def notice(self, job: int) -> None:
        """What SLURM does when the time limit or a preemption is near."""
        self.ask("scancel", "--signal=USR1", "--batch", str(job))

    def log(self, job: int) -> str:
        """What the job has printed in all its runs."""
        path = self.shared / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def show(self, job: int, what: str) -> str:
        """One field of `scontrol show job`."""
        found = re.search(rf"\b{what}=(\S+)", self.ask("scontrol", "show", "job", str(job)))
        return found.group(1) if found else ""

    def wait_for_run(self, job: int, run: int) -> None:
        """Wait until SLURM has started it so many times again."""
        self.wait(
            f"run {run} of job {job}",
            lambda: (
                (self.show(job, "Restarts"), self.show(job, "JobState")) == (str(run), "RUNNING")
            ),
            job,
        )

    def wait_for_end(self, job: int) -> None:
        """Wait until it has ended, and require that it ended well."""
        self.wait("the end", lambda: self.show(job, "JobState") in ENDS, job)
        assert self.show(job, "JobState") == "COMPLETED", self.log(job)
        assert self.show(job, "ExitCode") == "0:0"

    def wait(self, what: str, true: Callable[[], bool], job: int = 0) -> None:
        """Look again and again, for WAIT_S at most, or until the job has ended."""
        deadline = time.monotonic() + WAIT_S
        while not true():
            ended = job and self.show(job, "JobState") in ENDS and not true()
            if ended or time.monotonic() > deadline:
                pytest.fail(f"{what} did not come: {self.log(job)[-8000:]}")
            time.sleep(POLL_S)

    def _munges(self, host: Host) -> bool:
        line = [str(SLURM / "bin" / "munge"), "--no-input"]
        return host.run(line, env=self.env, check=False).returncode == 0

    def _daemon(self, host: Host, name: str, *argv: str) -> None:
        with (self._root / f"{name}-{host.name}.out").open("wb") as out:
            host.popen([program(name), *argv], env=self.env, stdout=out, stderr=subprocess.STDOUT)


def program(name: str) -> str:
    """A daemon's path; Debian adds `-wlm` to some names."""
    return str(next((SLURM / "sbin").glob(f"{name}*")))
