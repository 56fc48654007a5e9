"""Look at the machine: which distribution, which programs, which versions."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

PROBE_TIMEOUT_S = 20
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def which(program: str) -> Path | None:
    """The program's path; the sbin directories count even if the PATH leaves them out."""
    found = shutil.which(program, path=os.environ.get("PATH", os.defpath) + os.pathsep + SBIN)
    return Path(found) if found else None


def version_of(program: Path | None, *arguments: str) -> tuple[int, ...] | None:
    """The first dotted number in what `program arguments` prints, or None if it does not run."""
    if program is None:
        return None
    try:
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+(?:\.\d+)+)", done.stdout + done.stderr)
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def distribution_ids() -> list[str]:
    """`ID` and `ID_LIKE` of os-release, nearest first; empty on a machine without the file."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return []
    return [release.get("ID", "linux"), *release.get("ID_LIKE", "").split()]
