"""redis-cli in `.tools/redis`, for the tests of the endpoint: the distribution's own, unpacked."""

import platform
import shlex
import shutil
from pathlib import Path

from tools.private_apt import PrivateApt
from tools.slurm import installed

PACKAGE = "redis-tools"


def fetch_redis_cli(folder: Path, program: Path) -> None:
    """Make the folder, whole or not at all, and `program`, which runs redis-cli in it.

    Libraries that the system has are left out; the others are found beside it. Raises Missing.
    """
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    print(f"fetching redis-cli of Debian {suite} (the system stays as it is)", flush=True)
    folder = folder.resolve()
    new = folder.with_name("redis.new")
    shutil.rmtree(new, ignore_errors=True)
    apt = PrivateApt(new / "apt", suite)
    apt.update()
    apt.unpack(sorted({*apt.library_closure(PACKAGE)} - installed()), new)
    shutil.rmtree(new / "apt")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    libraries = {path.parent for path in folder.rglob("*.so*")}
    where = ":".join(sorted(str(path) for path in libraries))
    binary = folder / "usr" / "bin" / "redis-cli"
    script = f'LD_LIBRARY_PATH={shlex.quote(where)} exec {shlex.quote(str(binary))} "$@"'
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
