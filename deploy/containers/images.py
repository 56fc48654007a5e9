"""The images of compose.yaml: built by the engine, from a base made here if none can be had."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from coordinator.core.errors import SetupError
from deploy.containers.commands import run, succeeds
from deploy.containers.engine import HOME, ROOT, is_own
from deploy.containers.machine import copy_wheel, source_of, write_secrets

Say = Callable[[str], None]

COMPOSE = ROOT / "deploy" / "compose"
PYTHON = {"bookworm": "311", "trixie": "313"}
BASE_S = 600.0
BUILD_S = 1800.0
ASK_S = 30.0
PULL_S = 300.0
# what the usual slim images leave out; and none of these bytes need to survive a power cut
DPKG_OPTIONS = (
    *("path-exclude=/usr/share/doc/*", "path-exclude=/usr/share/man/*"),
    *("path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/info/*", "force-unsafe-io"),
)


def settings() -> dict[str, str]:
    """What `.env` of the compose directory says."""
    lines = (COMPOSE / ".env").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def build_images(env: Mapping[str, str], say: Say) -> None:
    """Have every image of compose.yaml; quick when nothing has changed.

    Raises SetupError with the build's last words. Interrupted, the next call goes on from there.
    """
    suite = settings()["DEBIAN"]
    _have_base(f"debian:{suite}-slim", suite, env, say)
    say("building the images (minutes the first time)")
    with tempfile.TemporaryDirectory(prefix="allstop-build-") as directory:
        root = Path(directory)
        (root / "wheels").mkdir()
        write_secrets(root, suite)
        copy_wheel(root / "wheels", _torch(), PYTHON.get(suite, ""))
        of_build = {
            "BUILD_SECRETS": str(root),
            "BUILD_WHEELS": str(root / "wheels"),
            **({"BUILD_NETWORK": "host"} if is_own(env) else {}),
        }
        build = ["docker", "compose", "--progress", "plain", "build"]
        run(build, BUILD_S, env={**env, **of_build}, cwd=COMPOSE)


def _torch() -> str:
    """The version that pyproject.toml asks for."""
    found = re.search(r"torch==([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def _have_base(image: str, suite: str, env: Mapping[str, str], say: Say) -> None:
    """Pull the base image; where there is no registry, make it of Debian's packages."""
    if succeeds(["docker", "image", "inspect", image], ASK_S, env):
        return
    if succeeds(["docker", "pull", "--quiet", image], PULL_S, env):
        return
    if not is_own(env):
        raise SetupError(
            f"the engine cannot get {image}",
            advice="give it a registry, or an image of that name",
        )
    say(f"no registry answers: making {image} of Debian's packages")
    HOME.mkdir(exist_ok=True)
    tar = HOME / "base.tar"
    options = [word for option in DPKG_OPTIONS for word in ("--dpkgopt", option)]
    # Without sources: builds bring those of the machine, and no image keeps them.
    hook = ["--customize-hook", 'rm -f "$1/etc/apt/sources.list"']
    try:
        run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", "--format=tar", *options, *hook),
                *(suite, str(tar), source_of(suite)),
            ],
            BASE_S,
            env=env,
        )
        run(["docker", "import", str(tar), image], PULL_S, env=env)
    finally:
        tar.unlink(missing_ok=True)
