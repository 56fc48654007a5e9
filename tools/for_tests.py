"""What only tests need: promtool, redis-cli, checkpointctl and SLURM in `.tools/`, and by apt
Chromium and a compiler.

allstop itself runs without them. Where one cannot be had that is said, and its tests skip.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.checkpointctl import fetch_checkpointctl
from tools.fetch import one_at_a_time
from tools.messages import Missing
from tools.private_apt import PrivateApt
from tools.probe import distribution_ids, version_of, which
from tools.redis_cli import fetch_redis_cli
from tools.slurm import ensure_slurm
from tools.system import apt_get

PROMTOOL_MINIMUM = (2, 40)
COMPILER_PACKAGES = ("gcc", "libc6-dev")
CHROMIUM = ("chromium", "chromedriver")
CHROMIUM_PACKAGES = ("chromium", "chromium-driver", "fonts-inter", "fonts-dejavu-core")


def ensure_for_tests(root: Path) -> None:
    """Have all of it, or say which is not to be had and why."""
    wanted: tuple[tuple[str, Callable[[], None]], ...] = (
        ("promtool", lambda: ensure_promtool(root / ".tools")),
        ("redis-cli", lambda: ensure_redis_cli(root / ".tools")),
        ("checkpointctl", lambda: ensure_checkpointctl(root / ".tools")),
        ("SLURM", lambda: ensure_own_slurm(root / ".tools" / "slurm")),
        ("Chromium", ensure_chromium),
        ("a C compiler", ensure_compiler),
    )
    for name, ensure in wanted:
        try:
            with one_at_a_time(root):
                ensure()
        except Missing as missing:
            print(f"  {name} is not here, and tests that need it skip: {missing}")


def ensure_promtool(tools: Path) -> None:
    """Make `tools/bin/promtool`: the system's own where it is new enough, else Debian sid's."""
    program = tools / "bin" / "promtool"
    if new_enough(program):
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    program.unlink(missing_ok=True)
    own = which("promtool")
    if own is not None and new_enough(own):
        program.symlink_to(own)
        return
    require_debian("put promtool on the PATH")
    print("fetching promtool from Debian sid (the system stays as it is)", flush=True)
    new = tools / "promtool.new"
    shutil.rmtree(new, ignore_errors=True)
    apt = PrivateApt(new / "apt", "sid")
    apt.update()
    apt.unpack(["promtool"], new / "sid")
    fetched = new / "sid" / "usr" / "bin" / "promtool"
    if not new_enough(fetched):
        raise Missing("Debian sid's package promtool holds no promtool that starts")
    fetched.rename(program)
    shutil.rmtree(new)


def new_enough(program: Path) -> bool:
    """Whether this is a promtool that starts and knows what the tests ask of it."""
    version = version_of(program, "--version")
    return version is not None and version >= PROMTOOL_MINIMUM


def ensure_redis_cli(tools: Path) -> None:
    """Make `tools/bin/redis-cli`: the system's own, else this Debian's, unpacked."""
    program = tools / "bin" / "redis-cli"
    if version_of(program, "--version") is not None:
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    program.unlink(missing_ok=True)
    own = which("redis-cli")
    if own is not None:
        program.symlink_to(own)
        return
    require_debian("put redis-cli on the PATH")
    fetch_redis_cli(tools / "redis", program)
    if version_of(program, "--version") is None:
        raise Missing("Debian's package redis-tools holds no redis-cli that starts")


def ensure_checkpointctl(tools: Path) -> None:
    """Make `tools/bin/checkpointctl`, and crit beside it: those of Debian sid."""
    require_debian("checkpointctl and crit are fetched on Debian only")
    fetch_checkpointctl(tools)


def ensure_own_slurm(slurm: Path) -> None:
    """Unpack this Debian's SLURM."""
    require_debian("SLURM is fetched on Debian only")
    ensure_slurm(slurm)


def ensure_chromium() -> None:
    """Install Debian's Chromium where it is missing."""
    if not all(which(name) for name in CHROMIUM):
        install(CHROMIUM, CHROMIUM_PACKAGES)


def ensure_compiler() -> None:
    """Install gcc where there is none: the fake drivers of the tests are written in C."""
    if which("cc") is None:
        install(("cc",), COMPILER_PACKAGES)


def install(programs: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """Install Debian's packages on the system; raises Missing where that is not ours to do."""
    require_debian(f"put {' and '.join(programs)} on the PATH")
    if os.geteuid() != 0:
        raise Missing(f"root can `apt-get install {' '.join(packages)}`")
    print(f"installing {' '.join(packages)} with apt", flush=True)
    apt_get("update")
    apt_get("install", "-y", "--no-install-recommends", *packages)


def require_debian(advice: str) -> None:
    """Raise Missing with this advice where packages of Debian are not to be used."""
    if distribution_ids()[:1] != ["debian"]:
        raise Missing(advice)
