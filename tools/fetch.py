"""CRIU and etcd in `.tools/`: the system's own where they are new enough, else Debian sid's.

Everything is built in `.tools.new` and renamed at the end, so a `.tools` that exists is whole.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.messages import Missing
from tools.private_apt import PrivateApt
from tools.probe import PROBE_TIMEOUT_S, distribution_ids, version_of, which

RECIPE = 1  # raise when what this module builds changes: older `.tools` are then built anew
MINIMUM = {"criu": (4, 2), "etcd": (3, 5), "etcdctl": (3, 5)}
VERSION_ARGUMENT = {"criu": "--version", "etcd": "--version", "etcdctl": "version"}
SID_PACKAGE = {"etcd": "etcd-server", "etcdctl": "etcd-client"}
WRAPPER = """#!/bin/sh
# Runs {program} of Debian sid by sid's own loader and libraries: nothing of the system is used.
self=$0
[ -L "$self" ] && self=$(readlink -f "$self")
root=${{self%/*}}/../sid
exec "$root/{loader}" --library-path "$root/{libraries}" "$root/{binary}" "$@"
"""


def fetch_programs(root: Path) -> None:
    """Make `<root>/.tools/bin/{criu,etcd,etcdctl}` present, new enough and proven; else Missing."""
    tools = root / ".tools"
    with one_at_a_time(root):
        if not is_whole(tools):
            build(tools)
        report(tools)


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Two runs in one working tree wait for each other (the lock dies with its process)."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_whole(tools: Path) -> bool:
    """Whether `tools` was finished by this recipe and its programs are still there."""
    try:
        stamp = json.loads((tools / "stamp.json").read_text())
    except (OSError, ValueError):
        return False
    present = all(os.access(tools / "bin" / name, os.X_OK) for name in MINIMUM)
    return bool(stamp.get("recipe") == RECIPE) and present


def build(tools: Path) -> None:
    """Find or fetch every program into `.tools.new`, then put that in the place of `tools`."""
    began = time.monotonic()
    new = tools.with_name(".tools.new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "bin").mkdir(parents=True)
    lacking = [name for name in MINIMUM if not link_system_program(name, new / "bin")]
    if lacking:
        fetch_from_sid(lacking, new)
    for name in MINIMUM:
        require_version(new / "bin" / name)
    (new / "stamp.json").write_text(json.dumps({"recipe": RECIPE, "fetched": lacking}) + "\n")
    shutil.rmtree(tools, ignore_errors=True)
    new.rename(tools)
    print(f"{tools.name} made in {time.monotonic() - began:.0f} s")


def unfetchable() -> list[str]:
    """What is missing (as in `messages.PACKAGES`) and cannot be fetched: nothing, on Debian."""
    if distribution_ids()[:1] == ["debian"]:
        return []
    lacking = [name for name in MINIMUM if system_program(name) is None]
    return sorted({"criu >= 4.2" if name == "criu" else "etcd >= 3.5" for name in lacking})


def system_program(name: str) -> Path | None:
    """The system's own program, if it is new enough."""
    found = which(name)
    version = version_of(found, VERSION_ARGUMENT[name])
    return found if version is not None and version >= MINIMUM[name] else None


def link_system_program(name: str, into: Path) -> bool:
    """Link the system's own program if it is new enough; return whether it was."""
    found = system_program(name)
    if found is not None:
        (into / name).symlink_to(found)
    return found is not None


def fetch_from_sid(names: list[str], new: Path) -> None:
    """Unpack the packages of `names` below `new/sid`, and put starters into `new/bin`."""
    print(f"fetching {', '.join(names)} from Debian sid (the system stays as it is)", flush=True)
    apt = PrivateApt(new / "apt", "sid")
    apt.update()
    packages = [SID_PACKAGE[name] for name in names if name in SID_PACKAGE]
    if "criu" in names:
        packages += apt.library_closure("criu")
    apt.unpack(packages, new / "sid")
    shutil.rmtree(new / "apt")
    for name in names:
        binary = next((new / "sid").glob(f"usr/*bin/{name}"), None)
        if binary is None:
            raise Missing(f"Debian sid's packages {' '.join(packages)} hold no program {name}")
        if name == "criu":
            write_wrapper(new, name, binary)
        else:
            (new / "bin" / name).symlink_to(os.path.relpath(binary, new / "bin"))


def write_wrapper(new: Path, name: str, binary: Path) -> None:
    """A starter that works wherever `.tools` lies: it finds loader and libraries from itself."""
    sid = new / "sid"
    loaders = sorted(sid.glob("usr/lib*/ld-linux*.so.*")) or sorted(sid.glob("lib*/ld-linux*.so.*"))
    libraries = [path.parent for path in sid.glob("usr/lib/*/libc.so.6")]
    if not loaders or not libraries:
        raise Missing("Debian sid's libc6 has no loader where one was expected")
    text = WRAPPER.format(
        program=name,
        loader=loaders[0].relative_to(sid),
        libraries=libraries[0].relative_to(sid),
        binary=binary.relative_to(sid),
    )
    (new / "bin" / name).write_text(text)
    (new / "bin" / name).chmod(0o755)


def require_version(program: Path) -> None:
    """Raise Missing if the program does not run or is too old."""
    version = version_of(program, VERSION_ARGUMENT[program.name])
    minimum = MINIMUM[program.name]
    if version is None or version < minimum:
        has = ".".join(map(str, version)) if version else "one that does not start"
        wants = ".".join(map(str, minimum))
        raise Missing(f"{program.name}: needed is {wants} or newer, Debian sid gave {has}")


def report(tools: Path) -> None:
    """Print each version, and prove CRIU with its own check of the kernel."""
    for name in MINIMUM:
        version = version_of(tools / "bin" / name, VERSION_ARGUMENT[name]) or ()
        print(f"  {name:8} {'.'.join(map(str, version))}")
    if os.geteuid() != 0:
        print("  criu check needs root and was left out")
        return
    criu = str(tools / "bin" / "criu")
    check = subprocess.run(
        [criu, "check"], capture_output=True, text=True, timeout=10 * PROBE_TIMEOUT_S
    )
    if check.returncode != 0:
        raise Missing(f"criu does not work on this kernel: criu check says\n{check.stderr[-2000:]}")
    words = (check.stdout + check.stderr).splitlines()
    print(f"  criu check: {next((w for w in words if 'good' in w), words[-1])}")
