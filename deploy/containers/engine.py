"""A Docker engine to talk to: the one that runs here, or one of our own for as long as needed.

Our own is told to leave the machine's network alone: no address translation, no packet filter, no
default bridge. (An engine as usual sets FORWARD to DROP, which cuts other people's bridges too.)
It lives in PID and mount namespaces of its own, which end with this process: no container, mount or
process can be left behind, and what it stores lies in `.engine`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from coordinator.core.errors import SetupError
from deploy.containers.commands import run, succeeds
from tools.engine import fetch_engine
from tools.fetch import one_at_a_time
from tools.messages import Missing

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".engine"
ASK_S = 20.0
START_S = 60.0
STOP_S = 30.0
CGROUPS = Path("/sys/fs/cgroup")
GROUP = "allstop-engine"
PR_SET_PDEATHSIG = 1
SEEN_S = 0.1
CACHE = "4GB"  # of builds: one whole set of layers and some


@contextlib.contextmanager
def engine() -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` and its plugins reach an engine.

    One that runs is used as it is; else one is fetched, started, and ended afterwards. Raises
    SetupError where neither is possible.
    """
    if _serves({}):
        yield {}
        return
    if os.geteuid() != 0:
        raise SetupError(
            "no container engine answers, and starting one needs root",
            advice="start Docker, or run this as root",
        )
    try:
        programs = fetch_engine(ROOT)
    except Missing as missing:
        raise SetupError(str(missing)) from missing
    with _alone(), _started(programs) as environment:
        yield environment


def is_own(environment: Mapping[str, str]) -> bool:
    """Whether `engine` has started it."""
    return bool(environment)


def _serves(environment: Mapping[str, str]) -> bool:
    """Whether an engine answers, with Compose and Buildx."""
    return all(
        succeeds(["docker", *words], ASK_S, environment)
        for words in (["version"], ["compose", "version"], ["buildx", "version"])
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One engine a checkout: it owns its data directory."""
    HOME.mkdir(exist_ok=True)
    with one_at_a_time(HOME):
        yield


@contextlib.contextmanager
def _started(programs: Path) -> Iterator[Mapping[str, str]]:
    state = HOME / "run"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(mode=0o700)
    environment = {
        "DOCKER_HOST": f"unix://{state / 'docker.sock'}",
        "DOCKER_CONFIG": str(programs / "docker"),
        "PATH": f"{programs / 'bin'}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
    }
    before = _bridges()
    with (HOME / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *_dockerd(programs, state),
            ],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        _wait(process, environment)
        _tidy(environment)
        yield environment
    finally:
        _stop(process)
        _clear(before)
        shutil.rmtree(state, ignore_errors=True)


def _dockerd(programs: Path, state: Path) -> list[str]:
    (state / "daemon.json").write_text(json.dumps({}))  # not the machine's own
    return [
        *("dockerd", "--config-file", str(state / "daemon.json"), "--log-level", "warn"),
        *("--host", f"unix://{state / 'docker.sock'}", "--pidfile", str(state / "pid")),
        *("--data-root", str(HOME / "data"), "--exec-root", str(state / "exec")),
        *("--bridge=none", "--iptables=false", "--ip6tables=false"),
        *("--ip-forward=false", "--ip-masq=false", "--cgroup-parent", f"/{GROUP}"),
        *("--userland-proxy-path", str(programs / "bin/docker-proxy")),
        *("--init-path", str(programs / "bin/docker-init")),
    ]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def _wait(process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if succeeds(["docker", "version"], ASK_S, environment):
            return
        time.sleep(SEEN_S)
    words = (HOME / "log").read_text(errors="replace").splitlines()[-20:]
    raise SetupError("the container engine does not start", details=tuple(words))


def _tidy(environment: Mapping[str, str]) -> None:
    """Remove what a run that was killed has left in our engine: all but images and their cache."""
    left = run(["docker", "ps", "--all", "--quiet"], ASK_S, env=environment).split()
    if left:
        run(["docker", "rm", "--force", "--volumes", *left], STOP_S, env=environment)
    for what in (["network", "prune"], ["volume", "prune", "--all"], ["image", "prune"]):
        run(["docker", *what, "--force"], STOP_S, env=environment)
    keep = ["--force", "--keep-storage", CACHE]
    run(["docker", "builder", "prune", *keep], START_S, env=environment, check=False)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Orderly, so that it lets go of networks and mounts; then by force."""
    dockerd = _child_of(process.pid)
    if process.poll() is None and dockerd:
        os.kill(dockerd, signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def _child_of(pid: int) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def _bridges() -> set[str]:
    """The machine's bridges, as an engine names them."""
    return {path.name for path in Path("/sys/class/net").glob("br-*")}


def _clear(bridges: set[str]) -> None:
    """What an engine that was killed leaves outside its namespaces: bridges and empty groups."""
    for name in sorted(_bridges() - bridges):
        if re.fullmatch(r"br-[0-9a-f]{12}", name):
            run(["ip", "link", "delete", name], ASK_S, check=False)
    for group in CGROUPS.glob(f"**/{GROUP}"):
        for directory in sorted(group.rglob("*/"), reverse=True):
            _remove(directory)
        _remove(group)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or gone
        group.rmdir()
