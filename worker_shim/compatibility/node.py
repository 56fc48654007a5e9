"""The node's features that NVML is not needed for: /proc, /dev, configuration files, nvidia-smi."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.core.errors import AllstopError
from coordinator.core.model import Gpu
from coordinator.core.policy import Policy
from worker_shim.compatibility import mps
from worker_shim.compatibility.features import Feature, Features, NodeFeature, Seen
from worker_shim.compatibility.situation import Situation, Versioned
from worker_shim.cuda.devices import KERNEL_DRIVER, kernel_driver
from worker_shim.process.runner import CommandRunner, Commands

SMI_S = 10.0  # attaching to the driver takes seconds where nothing keeps it loaded
CONFIDENTIAL = ("nvidia-smi", "conf-compute", "-f")
EACH_GPU = ("nvidia-smi", "--query-gpu=compute_cap,persistence_mode", "--format=csv,noheader")
MPS_COMM = "nvidia-cuda-mps"  # control daemon and server; the kernel keeps 15 characters
LOGIND = ("usr/lib/systemd", "lib/systemd", "run/systemd", "etc/systemd")
NOTHING_CAN = "no driver or program that saves GPU state was found"
CAPABILITIES = "proc/driver/nvidia/capabilities"
# As the driver names them: "NVIDIA A100-40C", "GRID V100D-8Q", "NVIDIA A100X-1-10CME". Memory of a
# whole GPU is "80GB".
VGPU = re.compile(r"-\d+(?:A|B|C|CME|Q)$")
STAND_STILL_S = Policy().with_devices().stand_still_s  # until a coordinator has said its own
NO = ("no", "false", "off", "0", "n", "f")


@dataclass(frozen=True)
class NodeSight:
    """What a node's rows are judged on."""

    architecture: str
    versions: Mapping[Versioned, tuple[str, ...]] = field(default_factory=dict)
    features: Features = field(default_factory=dict)
    mig_minors: frozenset[int] | None = None  # of MIG instances; None: the driver does not tell
    stand_still_s: float = STAND_STILL_S  # how long a rank may for a checkpoint

    @property
    def situation(self) -> Situation:
        """Of the node alone."""
        return Situation(self.architecture, self.versions, self.features, has_tree=False)


def without_gpus() -> NodeSight:
    """A node where nothing can save GPU state."""
    return NodeSight(os.uname().machine, features={NodeFeature.NO_ENGINE: (Seen(NOTHING_CAN),)})


class NodeEyes:
    """Looks at files anew each time; nvidia-smi is asked once, by `ask`.

    `root` is where /proc, /dev, /run and /etc are.
    """

    def __init__(self, commands: Commands | None = None, root: Path = Path("/")) -> None:
        self._commands, self._root = commands or CommandRunner(), root
        self._said: Features = {NodeFeature.CONFIDENTIAL_UNKNOWN: (Seen("nobody has asked yet"),)}
        self._compute: tuple[str, ...] = ()
        self.stand_still_s = STAND_STILL_S  # as the coordinator said with the last HOLD

    async def ask(self) -> None:
        """Ask nvidia-smi, within a time limit; without an answer the mode is not known."""
        if not self._driver():
            return
        confidential, each_gpu = await asyncio.gather(
            self._answer(CONFIDENTIAL), self._answer(EACH_GPU)
        )
        said: dict[Feature, tuple[Seen, ...]] = {}
        if re.search(r"status:\s*(ON|DEVTOOLS)", confidential, re.IGNORECASE):
            said[NodeFeature.CONFIDENTIAL] = (Seen(f"nvidia-smi says {confidential.strip()!r}"),)
        elif not re.search(r"status:\s*OFF", confidential, re.IGNORECASE):
            said[NodeFeature.CONFIDENTIAL_UNKNOWN] = (Seen("nvidia-smi does not say"),)
        lines = [line.split(", ") for line in each_gpu.splitlines() if ", " in line]
        if any(mode == "Disabled" for _, mode, *_ in lines) and not self._persistenced():
            said[NodeFeature.PERSISTENCE_OFF] = (Seen("nvidia-smi says that it is disabled"),)
        self._said = said
        self._compute = tuple(dict.fromkeys(compute for compute, *_ in lines))

    async def _answer(self, line: tuple[str, ...]) -> str:
        try:
            done = await self._commands.run(line, deadline_s=SMI_S)
        except AllstopError:
            return ""
        return done.stdout if done.exit_code == 0 else ""

    def look(
        self,
        gpus: Sequence[Gpu] = (),
        driver: str = "",
        cuda: str = "",
        *,
        engine: str | None = None,
        trouble: str = "",
    ) -> NodeSight:
        """What is seen of the node, with what NVML has told.

        `engine`: what saves GPU state here; empty: nothing, for the reason `trouble`; None: not
        known.
        """
        driver = driver or self._driver()
        features = dict(self._said) if driver else {}
        for feature, what in self._seen():
            features[feature] = (Seen(what),)
        if any(gpu.mig for gpu in gpus):
            names = ", ".join(f"GPU {gpu.index}" for gpu in gpus if gpu.mig)
            features[NodeFeature.MIG] = (Seen(names),)
        if not driver and (gpus or self._gpu_devices()):
            features[NodeFeature.DRIVER_UNKNOWN] = (Seen("no driver says its version"),)
        models = [*(gpu.model for gpu in gpus), *self._models()]
        if virtual := sorted({model for model in models if VGPU.search(model)}):
            features[NodeFeature.VGPU] = (Seen(", ".join(virtual)),)
        if engine == "":
            features[NodeFeature.NO_ENGINE] = (Seen(trouble or NOTHING_CAN),)
        elif engine == "program":
            features[NodeFeature.ENGINE_IS_PROGRAM] = (Seen("cuda-checkpoint is used"),)
        told = tuple(dict.fromkeys(gpu.architecture for gpu in gpus if gpu.architecture))
        return NodeSight(
            os.uname().machine,
            {
                "driver": (driver,) if driver else (),
                "cuda": (cuda,) if cuda else (),
                "compute": told or self._compute,
            },
            features,
            self._mig_minors(),
            self.stand_still_s,
        )

    def _path(self, path: str) -> Path:
        return self._root / path

    def _driver(self) -> str:
        """The version of the loaded kernel driver; empty without one."""
        return kernel_driver(self._path(str(KERNEL_DRIVER.relative_to("/"))))

    def _seen(self) -> Iterator[tuple[NodeFeature, str]]:
        yield from self._devices()
        if mig := self._mig():
            yield NodeFeature.MIG, mig
        if daemon := self._mps_daemon():
            yield NodeFeature.MPS_DAEMON, daemon
        if place := self._remove_ipc():
            yield NodeFeature.REMOVE_IPC, place

    def _devices(self) -> Iterator[tuple[NodeFeature, str]]:
        """Device files against what the kernel driver has."""
        minors = self._gpu_devices()
        other = {name: minor for name, minor in minors.items() if name != f"nvidia{minor}"}
        if other:
            told = ", ".join(f"/dev/{name} is minor {minor}" for name, minor in other.items())
            yield NodeFeature.DEVICE_ALIAS, told
        kernel = self._kernel_minors()
        if minors and kernel - set(minors.values()):
            have = f"the driver has {len(kernel)} GPUs and /dev shows {len(minors)}"
            yield NodeFeature.GPUS_HIDDEN, have

    def _gpu_devices(self) -> dict[str, int]:
        """Device files of GPUs, and the minor of each."""
        minors = {}
        for path in sorted(self._path("dev").glob("nvidia[0-9]*")):
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode):
                minors[path.name] = os.minor(status.st_rdev)
        return minors

    def _kernel_minors(self) -> set[int]:
        return {int(minor) for minor in self._information(r"Device Minor:\s*(\d+)")}

    def _models(self) -> list[str]:
        return [model.strip() for model in self._information(r"Model:(.*)")]

    def _information(self, wanted: str) -> list[str]:
        """What the kernel driver says of each of its GPUs."""
        places = self._path("proc/driver/nvidia/gpus").glob("*/information")
        found = (re.search(wanted, _read(path)) for path in places)
        return [match[1] for match in found if match]

    def _mig_minors(self) -> frozenset[int] | None:
        """Minors below /dev/nvidia-caps of instances; others are of MIG's configuration."""
        place = self._path(CAPABILITIES)
        if not place.is_dir():
            return None
        access = (*place.glob("gpu*/mig/gi*/access"), *place.glob("gpu*/mig/gi*/ci*/access"))
        found = (re.search(r"DeviceFileMinor:\s*(\d+)", _read(path)) for path in access)
        return frozenset(int(match[1]) for match in found if match)

    def _mig(self) -> str:
        """Instances that the driver offers; NVML alone knows of a mode without instances."""
        place = self._path(CAPABILITIES)
        made = sorted({path.parts[-3] for path in place.glob("gpu*/mig/gi*")})
        return f"{', '.join(made)} has instances" if made else ""

    def _persistenced(self) -> bool:
        return self._path("run/nvidia-persistenced/socket").exists()

    def _mps_daemon(self) -> str:
        for path in self._path("proc").glob("[0-9]*/comm"):
            if _read(path).startswith(MPS_COMM):
                return f"pid {path.parent.name} is its daemon"
        if mps.listens(self._path(mps.DIRECTORY)):
            return f"a daemon listens at /{mps.DIRECTORY}"
        return ""

    def _remove_ipc(self) -> str:
        """Where systemd-logind is told to remove what users leave; empty when it does not run.

        Later files win, and of drop-ins the name orders them, wherever they lie.
        """
        if not self._path("run/systemd/seats").is_dir():
            return ""
        folders = [self._path(place) for place in LOGIND]
        drop_ins = {path.name: path for f in folders for path in f.glob("logind.conf.d/*.conf")}
        main = [path for f in folders if (path := f / "logind.conf").is_file()][-1:]
        value, place = "yes", "systemd-logind's default"
        for path in (*main, *(drop_ins[name] for name in sorted(drop_ins))):
            said = _setting(path, "Login", "RemoveIPC")
            if said:
                value, place = said, f"/{path.relative_to(self._root)}"
        return "" if value.lower() in NO else place


def _setting(path: Path, section: str, name: str) -> str:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(_read(path))
    except configparser.Error:
        return ""
    return parser.get(section, name, fallback="") or ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
