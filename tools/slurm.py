"""SLURM in `.tools/slurm`, for the tests of deploy/slurm: the distribution's own, unpacked."""

import platform
import shutil
import subprocess
import time
from pathlib import Path

from tools.private_apt import PrivateApt

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
PROGRAMS = ("slurmctld", "slurmd", "munged")  # Debian adds to their names


def ensure_slurm(slurm: Path) -> None:
    """Make the folder `slurm` present, whole or not at all; raises Missing.

    Libraries that the system has are left out: programs run by the system's loader.
    """
    if is_whole(slurm):
        return
    began = time.monotonic()
    new = slurm.with_name("slurm.new")
    shutil.rmtree(new, ignore_errors=True)
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    apt = PrivateApt(new / "apt", suite)
    apt.update()
    packages = set(apt.library_closure(*PACKAGES)) - installed()
    apt.unpack(sorted(packages), new)
    shutil.rmtree(new / "apt")
    shutil.rmtree(slurm, ignore_errors=True)
    new.rename(slurm)
    print(f"  slurm    of Debian {suite}, fetched in {time.monotonic() - began:.0f} s")


def is_whole(slurm: Path) -> bool:
    """Whether it was unpacked to the end."""
    return all(any((slurm / "usr" / "sbin").glob(f"{name}*")) for name in PROGRAMS)


def installed() -> set[str]:
    """The packages that this system has."""
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[1] for line in listing.splitlines() if line.startswith("installed ")}
