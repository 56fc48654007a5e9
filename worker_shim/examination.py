"""Looks at a machine and says what a shim would miss on it; changes nothing that lasts."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coordinator.core.errors import AllstopError
from coordinator.core.model import Severity
from worker_shim.compatibility.features import NodeFeature
from worker_shim.compatibility.judging import Answer, answer, judge
from worker_shim.compatibility.node import NodeEyes, NodeSight
from worker_shim.compatibility.table import table
from worker_shim.criu.binary import clean_environment, criu_version, find_criu, keeps_self_tests
from worker_shim.cuda.choosing import AUTO, opened
from worker_shim.inventory.inventory import GpuInventory
from worker_shim.process.runner import CommandRunner

CHECK_S = 30.0
# <linux/capability.h>; what CRIU and the shim need to freeze, read and rebuild processes
CAPABILITIES = {
    "SYS_ADMIN": 21,
    "SYS_PTRACE": 19,
    "NET_ADMIN": 12,
    "SYS_TIME": 25,
    "KILL": 5,
    "SETUID": 7,
    "SETGID": 6,
    "DAC_OVERRIDE": 1,
    "CHOWN": 0,
    "FOWNER": 3,
}
USEFUL_CAPABILITIES = {"SYS_RESOURCE": 24, "SYS_NICE": 23}
KERNEL_MIN = (5, 11)  # pidfd_getfd, clone3 with chosen pids, time namespaces
ROOM_MIN_BYTES = 4 << 30
PID_MAX_MIN = 32_768
STATUS = Path("/proc/self/status")
PID_MAX = Path("/proc/sys/kernel/pid_max")
DRIVER_S = 20.0  # for the driver to answer
NO_ENGINE = "nothing here can save GPU state"


class Verdict(StrEnum):
    """What a line of the examination means."""

    OK = "ok"
    WARNING = "warning"  # it works, but not as well as it could
    FIX = "fix"  # it does not work


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""  # what to do; empty where nothing has to be done


@dataclass(frozen=True)
class Places:
    """Where this shim's things would be."""

    store: Path | None  # None: the store is tried apart
    staging: Path
    run: Path
    criu: Path | None = None
    gpu_engine: str = AUTO


Check = Callable[[Places], Line | list[Line] | Awaitable[Line | list[Line]]]


async def examine(places: Places) -> list[Line]:
    """Every check, one after another; one that breaks is a line too."""
    lines = []
    for check in CHECKS:
        try:
            found = check(places)
            lines += _each(found if isinstance(found, Line | list) else await found)
        except (AllstopError, OSError, ValueError) as error:
            advice = error.advice if isinstance(error, AllstopError) else ""
            name = getattr(check, "__name__", "?").strip("_").replace("_", " ")
            lines.append(Line(name, Verdict.FIX, str(error), advice))
    return lines


def _each(found: Line | list[Line]) -> list[Line]:
    return [found] if isinstance(found, Line) else found


def _root(_: Places) -> Line:
    if os.geteuid() == 0:
        return Line("root", Verdict.OK, "this is root")
    return Line("root", Verdict.FIX, f"this is user {os.geteuid()}", "a shim needs root: sudo")


def _capabilities(_: Places) -> Line:
    for line in STATUS.read_text().splitlines():
        if line.startswith("CapEff:"):
            have = int(line.split()[1], 16)
    missing = [name for name, bit in CAPABILITIES.items() if not have >> bit & 1]
    if missing:
        flags = " ".join(f"--cap-add {name}" for name in missing)
        return Line(
            "capabilities",
            Verdict.FIX,
            f"missing: {', '.join(missing)}",
            f"in a container: {flags}",
        )
    less = [name for name, bit in USEFUL_CAPABILITIES.items() if not have >> bit & 1]
    if less:
        why = "copying cannot give way to the job, and CRIU prints an error about limits"
        return Line("capabilities", Verdict.WARNING, f"missing: {', '.join(less)}; {why}")
    return Line("capabilities", Verdict.OK, "all that are needed")


def _kernel(_: Places) -> Line:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if numbers < KERNEL_MIN:
        wanted = ".".join(map(str, KERNEL_MIN))
        return Line("kernel", Verdict.FIX, release, f"Linux {wanted} or newer is needed")
    return Line("kernel", Verdict.OK, f"{release}, {platform.machine()}")


async def _criu(places: Places) -> Line:
    program = find_criu(places.criu)
    version = await criu_version(CommandRunner(), program)
    return Line("criu", Verdict.OK, f"{version}, {program}")


async def _criu_on_this_kernel(places: Places) -> Line:
    name = "criu on this kernel"
    line = [str(find_criu(places.criu)), "check", "--no-default-config"]
    done = await CommandRunner().run(line, deadline_s=CHECK_S, env=clean_environment(), cwd="/")
    if done.exit_code != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        return Line(name, Verdict.FIX, words[-1] if words else "it does not say", " ".join(line))
    if not keeps_self_tests():
        return Line(
            name, Verdict.WARNING, "good, but /run is no tmpfs: it tests the kernel at every start",
            "mount a tmpfs on /run",
        )  # fmt: skip
    return Line(name, Verdict.OK, "looks good")


async def _network_lock(_: Places) -> Line:
    name, program = (
        "network lock",
        shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"),
    )
    if program is None:
        return Line(name, Verdict.FIX, "there is no nft", "install nftables")
    done = await CommandRunner().run([program, "list", "tables"], deadline_s=CHECK_S)
    if done.exit_code != 0:
        said = done.stderr.strip().splitlines()[-1:]
        return Line(name, Verdict.FIX, f"nft does not work: {said}", "CAP_NET_ADMIN, nf_tables")
    return Line(name, Verdict.OK, program)


def _process_ids(_: Places) -> Line:
    pid_max = int(PID_MAX.read_text())
    if pid_max < PID_MAX_MIN:
        advice = f"sysctl kernel.pid_max={PID_MAX_MIN}"
        return Line("process ids", Verdict.WARNING, f"pid_max is {pid_max}", advice)
    return Line("process ids", Verdict.OK, f"up to {pid_max}")


def _staging(places: Places) -> Line:
    return _room("staging", places.staging, "as much as the memory of the node's workers")


def _store(places: Places) -> Line | list[Line]:
    if places.store is None:
        return []
    return _room("image store", places.store, "for each snapshot the memory of all workers")


def _room(what: str, place: Path, need: str) -> Line:
    there = place
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        return Line(what, Verdict.FIX, f"{there} cannot be written", "another place, or its owner")
    free = shutil.disk_usage(there).free
    found = f"{place}, {free / 1e9:.1f} GB free"
    if free < ROOM_MIN_BYTES:
        return Line(what, Verdict.WARNING, found, f"it needs {need}")
    return Line(what, Verdict.OK, found)


async def _clock(_: Places) -> Line:
    """Whether the kernel's clock is disciplined; only times in records depend on it."""
    try:
        synchronised = await asyncio.to_thread(_synchronised)
    except OSError as error:
        return Line("clock", Verdict.WARNING, f"it cannot be asked: {error.strerror}")
    if not synchronised:
        return Line("clock", Verdict.WARNING, "nobody sets it", "chrony or systemd-timesyncd")
    return Line("clock", Verdict.OK, "it is synchronised")


def _synchronised() -> bool:
    """adjtimex(2) with nothing to change: STA_UNSYNC is not set."""
    import ctypes

    timex = ctypes.create_string_buffer(208)  # struct timex of <sys/timex.h>, all zero: ask only
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(timex) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    status = ctypes.c_int.from_buffer(timex, 40).value
    return not status & 0x40


@dataclass(frozen=True)
class GpuSight:
    """What there is of GPUs on this node."""

    node: NodeSight  # what its rows are judged on
    engine: str  # what would save GPU state; empty: nothing
    trouble: str = ""  # why NVML does not tell all
    sick: Mapping[str, str] = field(default_factory=dict)  # which GPU: why

    @property
    def any(self) -> bool:
        """Whether there is a driver, or a device that wants one."""
        there = self.node.versions.get("driver")
        return bool(there or NodeFeature.DRIVER_UNKNOWN in self.node.features)


async def sight_of_node(gpu_engine: str = AUTO, gpus: GpuInventory | None = None) -> GpuSight:
    """Look once, as a shim does: NVML in a helper that is killed after its time, nvidia-smi.

    Raises SetupError where that engine is not there.
    """
    commands = CommandRunner()
    eyes, gpus = NodeEyes(commands), gpus or GpuInventory(commands)
    cuda = await opened(gpu_engine, commands, within_s=DRIVER_S)
    try:
        await asyncio.gather(eyes.ask(), gpus.look())
    finally:
        await gpus.close()
    seen = gpus.current
    node = eyes.look(
        seen.gpus, seen.driver, seen.cuda_version, engine=cuda.engine, trouble=cuda.trouble
    )
    sick = {f"GPU {gpu.index}": gpu.sick for gpu in seen.gpus if gpu.sick}
    return GpuSight(node, cuda.engine, seen.trouble, sick)


async def _gpus(places: Places) -> list[Line]:
    """The driver, who saves GPU state, and what is known of both and of this node."""
    sight = await sight_of_node(places.gpu_engine)
    if not sight.any and sight.trouble:
        why = f"no NVIDIA driver is loaded, and its library is installed ({sight.trouble})"
        return [Line("GPUs", Verdict.WARNING, why, "nothing, where there are no GPUs")]
    if not sight.any:
        return [Line("GPUs", Verdict.OK, "no NVIDIA driver: workers without GPUs")]
    lines = [*_told_by_nvml(sight), *_rows(sight.node)]
    version = f"driver {sight.node.situation.version('driver')}"
    if not sight.engine:
        told = sight.node.features.get(NodeFeature.NO_ENGINE, ())
        why = f"{version}; {told[0].what if told else NO_ENGINE}"
        return [Line("GPUs", Verdict.WARNING, why, "pip install 'allstop[gpu]'"), *lines]
    depend = sum(answer(row, sight.node.situation) is Answer.DEPENDS for row in table().row)
    through = f"GPU state is saved through its {sight.engine}; {depend} rows depend on the job"
    return [Line("GPUs", Verdict.OK, f"{version}, {through}", "allstop doctor --matrix"), *lines]


def _told_by_nvml(sight: GpuSight) -> list[Line]:
    lines = [
        Line(gpu, Verdict.FIX, f"it is sick: {why}", "no rank is placed there; docs/gpu-health.md")
        for gpu, why in sight.sick.items()
    ]
    if sight.trouble:
        advice = "no rank with a GPU is placed on this node until NVML tells all; nvidia-smi"
        lines.append(Line("GPU inventory", Verdict.FIX, sight.trouble, advice))
    return lines


def _rows(sight: NodeSight) -> list[Line]:
    """What the compatibility table says of this node."""
    severity = {Severity.REFUSE: Verdict.FIX, Severity.WARN: Verdict.WARNING}
    return [
        Line(said.row.about, severity[said.row.verdict], said.words, said.row.advice)
        for said in judge(sight.situation)
        if said.row.of_node
    ]


CHECKS: tuple[Check, ...] = (
    _root,
    _capabilities,
    _kernel,
    _criu,
    _criu_on_this_kernel,
    _network_lock,
    _process_ids,
    _staging,
    _store,
    _clock,
    _gpus,
)
