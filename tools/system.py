"""Programs that belong to the system: nft, ip, ss, and a Python that can make a venv."""

import importlib.util
import os
import subprocess

from tools.messages import Missing, how_to_install
from tools.probe import distribution_ids, which

APT_TIMEOUT_S = 900


def missing_from_system() -> list[str]:
    """The names (as in `messages.PACKAGES`) of what is not there."""
    missing = [program for program in ("nft", "ip", "ss") if which(program) is None]
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python venv")
    return missing


def ensure_system(unfetchable: list[str]) -> None:
    """Install what is missing with apt where that is possible; raise Missing where it is not.

    `unfetchable`: what else is missing and must come from the distribution, so that one message
    names everything.
    """
    missing = missing_from_system()
    by_hand = which("apt-get") is None or os.geteuid() != 0
    if unfetchable or (missing and by_hand):
        raise how_to_install(unfetchable + missing, distribution_ids())
    if not missing:
        return
    packages = {"nft": "nftables", "ip": "iproute2", "ss": "iproute2"}
    wanted = sorted({packages.get(name, "python3-venv") for name in missing})
    print(f"installing {' '.join(wanted)} with apt", flush=True)
    apt_get("update")
    apt_get("install", "-y", "--no-install-recommends", *wanted)
    still = missing_from_system()
    if still:
        raise how_to_install(still, distribution_ids())


def apt_get(*arguments: str) -> None:
    """Run apt-get quietly; its last words become the error if it fails."""
    try:
        done = subprocess.run(
            ["apt-get", "-q", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        raise Missing(f"apt-get {arguments[0]} took more than {APT_TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise Missing(f"apt-get {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")
