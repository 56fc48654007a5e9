"""A container engine for this checkout where the machine has none: unpacked, never installed.

Docker 26, Compose and Buildx of Debian trixie need no newer libc than bookworm's. runc, iptables
and mmdebstrap do, and are taken from the machine's own suite. Everything is built in `.engine/new`
and renamed, so a `.engine/programs` that exists is whole.
"""

import json
import os
import platform
import shutil
import time
from pathlib import Path

from tools.fetch import one_at_a_time
from tools.messages import Missing
from tools.private_apt import PrivateApt
from tools.probe import distribution_ids

RECIPE = 2  # raise when what this module builds changes
SUITE = "trixie"
FROM_SUITE = ("containerd", "docker-buildx", "docker-cli", "docker-compose", "docker.io", "tini")
# Libraries that a small Debian may lack go beside the programs that want them.
OWN = ("iptables", "mmdebstrap", "runc")
OWN_LIBRARIES = ("libip4tc2", "libip6tc2", "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0")
OWN_LIBRARIES_TOO = ("libnftnl11", "libseccomp2", "libxtables12")
PROGRAMS = (
    *("usr/bin/docker", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"),
    *("usr/sbin/dockerd", "usr/sbin/docker-proxy"),
)
WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/../own/usr
libraries=$(dirname "$here"/lib/*/libxtables.so.12)
export LD_LIBRARY_PATH="$libraries" XTABLES_LIBDIR="$libraries/xtables"
exec "$here/{program}" {word}"$@"
"""


def fetch_engine(root: Path) -> Path:
    """Have `<root>/.engine/programs` and return it: `bin` for the PATH, `docker` for DOCKER_CONFIG.

    Raises Missing where this is no Debian, or its packages cannot be had.
    """
    programs = root / ".engine" / "programs"
    with one_at_a_time(root):
        if not _is_whole(programs):
            if distribution_ids()[:1] != ["debian"]:
                raise Missing(
                    "there is no container engine here, and only Debian's can be fetched: "
                    "install and start Docker Engine >= 26 with Compose >= 2.26 and Buildx"
                )
            _build(programs)
    return programs


def _is_whole(programs: Path) -> bool:
    try:
        stamp = json.loads((programs / "stamp.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp.get("recipe") == RECIPE)


def _build(programs: Path) -> None:
    began = time.monotonic()
    print(
        f"fetching a container engine from Debian {SUITE} (the system stays as it is)", flush=True
    )
    new = programs.with_name("new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "bin").mkdir(parents=True)
    for suite, packages, into in (
        (SUITE, FROM_SUITE, "suite"),
        (_own_suite(), (*OWN, *OWN_LIBRARIES, *OWN_LIBRARIES_TOO), "own"),
    ):
        apt = PrivateApt(new / "apt", suite)
        apt.update()
        apt.unpack(list(packages), new / into)
        shutil.rmtree(new / "apt")
    for name in PROGRAMS:
        _link(new, Path(name).name, new / "suite" / name)
    _link(new, "docker-init", new / "suite/usr/bin/tini-static")
    (new / "bin" / "docker-init").resolve(strict=True)
    plugins = new / "docker" / "cli-plugins"
    plugins.mkdir(parents=True)
    for plugin in (new / "suite/usr/libexec/docker/cli-plugins").iterdir():
        (plugins / plugin.name).symlink_to(os.path.relpath(plugin, plugins))
    _wrap(new, "runc", "sbin/runc", "")
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore"):
        _wrap(new, name, "sbin/xtables-legacy-multi", f"{name} ")
    for name in ("mmdebstrap", "mmtarfilter"):  # the first looks for the second in PATH
        _link(new, name, new / "own/usr/bin" / name)
    (new / "stamp.json").write_text(json.dumps({"recipe": RECIPE}) + "\n")
    shutil.rmtree(programs, ignore_errors=True)
    new.rename(programs)
    print(f".engine/{programs.name} made in {time.monotonic() - began:.0f} s", flush=True)


def _own_suite() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", SUITE)


def _link(new: Path, name: str, program: Path) -> None:
    (new / "bin" / name).symlink_to(os.path.relpath(program, new / "bin"))


def _wrap(new: Path, name: str, program: str, word: str) -> None:
    (new / "bin" / name).write_text(WRAPPER.format(program=program, word=word))
    (new / "bin" / name).chmod(0o755)
