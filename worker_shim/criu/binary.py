"""Which criu program is used, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from coordinator.core.errors import SetupError
from worker_shim.process.runner import Commands

BINARY_VARIABLE = "ALLSTOP_CRIU"
VERSION_MIN = (4, 2)  # older ones cannot dump inet sockets on Linux >= 6.16
VERSION_DEADLINE_S = 20.0
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
RUN = Path("/run")
CHECKOUT = Path(__file__).resolve().parents[2] / ".tools" / "bin" / "criu"  # made by `make tools`
HOW_TO_GET_IT = f"run `make tools`, or name a CRIU >= 4.2 by {BINARY_VARIABLE}"


def find_criu(given: str | Path | None = None) -> Path:
    """The program: given, named by `ALLSTOP_CRIU`, in `.tools/bin` of a checkout, or on the PATH.

    Raises SetupError when there is none.
    """
    wanted = str(given or os.environ.get(BINARY_VARIABLE) or "")
    if not wanted:
        wanted = str(CHECKOUT) if CHECKOUT.exists() else "criu"
    found = shutil.which(wanted, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")
    if found is None:
        raise SetupError(f"there is no program {wanted}", advice=HOW_TO_GET_IT)
    return Path(found).absolute()


async def criu_version(commands: Commands, program: Path) -> str:
    """Ask the program; raises SetupError when it does not run or is older than 4.2."""
    finished = await commands.run([str(program), "--version"], deadline_s=VERSION_DEADLINE_S)
    said = re.search(r"Version:\s*(\d+(?:\.\d+)+)", finished.stdout)
    if finished.exit_code != 0 or said is None:
        raise SetupError(
            f"{program} does not run as CRIU (exit code {finished.exit_code})",
            advice=HOW_TO_GET_IT,
            details=tuple((finished.stderr or finished.stdout).splitlines()[-5:]),
        )
    version = said.group(1)
    if tuple(int(part) for part in version.split(".")) < VERSION_MIN:
        raise SetupError(
            f"{program} is CRIU {version}; 4.2 or newer is needed", advice=HOW_TO_GET_IT
        )
    return version


def keeps_self_tests(mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether /run is a tmpfs, the only place where CRIU keeps its self-tests' results.

    Elsewhere it repeats them at every start, which costs time on each dump and restore.
    """
    kind = ""
    for line in mounts.read_text().splitlines():
        fields = line.split()
        if len(fields) >= 3 and fields[1] in (str(RUN), "/"):
            kind = fields[2] if fields[1] == str(RUN) or kind == "" else kind
    return kind == "tmpfs"


def clean_environment() -> dict[str, str]:
    """What criu gets of our environment: nothing that could load or change anything in it."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{path}:{SBIN}", "LC_ALL": "C", "HOME": "/"}
