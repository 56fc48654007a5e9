"""Programs that look like GPU ranks, run as real processes and judged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from worker_shim.compatibility import tree as compatibility
from worker_shim.compatibility.features import Feature
from worker_shim.compatibility.node import NodeSight
from worker_shim.compatibility.situation import Situation
from worker_shim.process import proc
from worker_shim.process.view import TreeView

READY_S = 20
BEGIN = """
import ctypes, os, sys, threading, time
dev = sys.argv[2]
def opened(name):
    return os.open(dev + name, os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def mapped(path, times=1):
    fd = os.open(path, os.O_RDONLY)
    for _ in range(times):
        at = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
        assert at != ctypes.c_void_p(-1).value
    os.close(fd)
done = sys.argv[1] + ".done"
def thread(name):
    def run():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        named.set()
        time.sleep(300)
    named = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    named.wait()
"""
END = """
open(sys.argv[1], "w").close()
time.sleep(300)
"""
GPU = "kept = [opened('nvidiactl'), opened('nvidia0')]\n"
NCCL = GPU + "thread('pt_nccl_watchdg')\n"
DEVICES = (
    "nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-fs0", "nvidia-caps/nvidia-cap66",
    "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2",
    "nvidia-caps-imex-channels/channel0", "infiniband/uverbs0",
)  # fmt: skip
FORK = """
child = os.fork()
if not child:
    {child}
    time.sleep(300)
"""
Start = Callable[..., subprocess.Popen[bytes]]
Look = Callable[..., Situation]


class Programs:
    """Programs that are run to the end of their preparation."""

    def __init__(self, place: Path, devices: str) -> None:
        self._place, self._devices = place, devices
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, **settings: str) -> subprocess.Popen[bytes]:
        """Run one with this environment besides."""
        ready = self._place / f"ready{len(self._started)}"
        child = subprocess.Popen(
            [sys.executable, "-c", BEGIN + program + END, str(ready), self._devices],
            env={"PATH": os.environ["PATH"], "RANK": "3", **settings},
            cwd=self._place,
        )
        self._started.append(child)
        until = time.monotonic() + READY_S
        while not ready.exists():
            assert child.poll() is None, "it ended"
            assert time.monotonic() < until, "it is not ready"
            time.sleep(0.001)
        return child

    def end(self) -> None:
        """Kill all of them with their children."""
        for child in self._started:
            for pid in reversed(list(proc.walk(child.pid))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            child.wait(READY_S)


def judged(tree: TreeView, node: NodeSight, devices: str) -> Situation:
    """As on a machine whose devices are here."""
    places = (f"{devices}nvidia", f"{devices}infiniband/")
    return compatibility.situation(tree, node, *places)


def said(situation: Situation, feature: Feature) -> str:
    """What the only process that shows it shows."""
    (seen,) = situation.features[feature]
    return seen.what
