"""Packages of Debian sid on an older Debian: downloaded and unpacked, never installed.

apt runs with its own source list, lists and cache below one directory, so nothing of the system
changes. The source is the machine's own Debian source with another suite; signatures are checked
with the machine's own Debian keyring.
"""

import platform
import re
import subprocess
from pathlib import Path

from tools.messages import Missing

DOWNLOAD_TIMEOUT_S = 600
KEYRINGS = ("debian-archive-keyring.pgp", "debian-archive-keyring.gpg")
OWN_SUITES = {"stable", "oldstable", "testing", "unstable", "sid"}
CONFIGURATION = """
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "{base}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{base}/state";
Dir::State::Lists "{base}/lists";
Dir::State::status "{base}/status";
Dir::Cache "{base}/cache";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "3";
APT::Sandbox::User "root";
"""


class PrivateApt:
    """apt for one suite, all of its state below `base` (which the caller removes)."""

    def __init__(self, base: Path, suite: str) -> None:
        self.base = base.resolve()
        for name in ("state", "lists/partial", "cache/archives/partial"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        (self.base / "status").touch()
        (self.base / "sources.list").write_text(source_line(suite))
        (self.base / "apt.conf").write_text(CONFIGURATION.format(base=self.base))

    def update(self) -> None:
        """Fetch the suite's package index."""
        self._run("apt-get", "-q", "update")

    def library_closure(self, *packages: str) -> list[str]:
        """The packages and every library they need, directly or through other libraries."""
        wanted, new = set(packages), set(packages)
        while new:
            listing = self._run("apt-cache", "-q=2", "depends", "--important", *sorted(new))
            named = set(re.findall(r"^ [ |](?:Pre)?Depends: (z?lib[^\s:<]*)", listing, re.M))
            new = named - wanted
            wanted |= new
        return sorted(wanted)

    def unpack(self, packages: list[str], into: Path) -> None:
        """Download the packages and unpack them, without scripts and without dpkg's database."""
        archives = self.base / "archives"
        archives.mkdir(exist_ok=True)
        self._run("apt-get", "-q", "download", *packages, cwd=archives)
        into.mkdir(parents=True, exist_ok=True)
        for archive in sorted(archives.glob("*.deb")):
            self._run("dpkg", "-x", str(archive), str(into))
            archive.unlink()

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = ["-c", str(self.base / "apt.conf")] if program.startswith("apt") else []
        try:
            done = subprocess.run(
                [program, *options, *arguments],
                cwd=cwd or self.base,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise Missing(f"{program} {arguments[-1]}: {failure}") from failure
        if done.returncode != 0:
            raise Missing(f"{program} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
        return done.stdout


def source_line(suite: str) -> str:
    """The machine's own Debian source, as one line of a source list, for another suite."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "sid")
    listing = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listing.splitlines():
        uri, release, component, signed_by = line.split("|")
        if component == "main" and release in OWN_SUITES | {codename}:
            key = signed_by if signed_by.startswith("/") else debian_keyring()
            return f"deb {f'[signed-by={key}] ' if key else ''}{uri} {suite} main\n"
    raise Missing(f"apt has no Debian source for {codename} main, from which {suite}'s is derived")


def debian_keyring() -> str:
    """Debian's own keys on this machine (apt before 2.7 does not tell which a source uses)."""
    found = (Path("/usr/share/keyrings") / name for name in KEYRINGS)
    return next((str(path) for path in found if path.exists()), "")
