"""checkpointctl and crit of Debian sid in `.tools/checkpointctl`, for the tests of exported tars.

checkpointctl runs by sid's own loader, as CRIU does; crit is Python and runs by that of the tests.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tools.fetch import write_wrapper
from tools.messages import Missing
from tools.private_apt import PrivateApt
from tools.probe import PROBE_TIMEOUT_S

NAME = "checkpointctl"
PYCRIU = "python3-pycriu"


def fetch_checkpointctl(tools: Path) -> None:
    """Make `tools/checkpointctl`, whole or not at all, and its starter; raises Missing."""
    folder, starter = tools / NAME, tools / "bin" / NAME
    if starts(starter):
        return
    print("fetching checkpointctl and crit from Debian sid (the system stays as it is)", flush=True)
    new = tools / f"{NAME}.new"
    shutil.rmtree(new, ignore_errors=True)
    (new / "bin").mkdir(parents=True)
    apt = PrivateApt(new / "apt", "sid")
    apt.update()
    apt.unpack([*apt.library_closure(NAME), PYCRIU], new / "sid")
    shutil.rmtree(new / "apt")
    write_wrapper(new, NAME, new / "sid" / "usr" / "bin" / NAME)
    if not starts(new / "bin" / NAME):
        raise Missing("Debian sid's package checkpointctl holds none that starts")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    starter.parent.mkdir(parents=True, exist_ok=True)
    starter.unlink(missing_ok=True)
    starter.symlink_to(os.path.relpath(folder / "bin" / NAME, starter.parent))


def starts(program: Path) -> bool:
    """Whether it runs; Debian's does not tell its version."""
    try:
        done = subprocess.run(
            [str(program), "show", "--help"], capture_output=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
