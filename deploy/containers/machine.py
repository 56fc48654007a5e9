"""What a build needs to reach this machine's mirrors, as secrets of the build.

It is read off apt and pip anew each time, and no image keeps any of it (build/on-this-machine).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.messages import Missing
from tools.private_apt import source_line

ASK_S = 30.0
APT = re.compile(r"Acquire::[^ ]*(Proxy|Retries|Timeout|Check-|Verify-)[^ ]* ")
PIP = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
AUTHORITIES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
WHEEL = "torch-{version}*-cp{python}-cp{python}-*{machine}.whl"


def write_secrets(into: Path, suite: str) -> None:
    """Write the files that compose.yaml's `secrets` name; empty where the machine has nothing."""
    apt_conf = "".join(line + "\n" for line in _apt_settings() if APT.match(line))
    parts = [Path("/etc/apt/auth.conf"), *sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))]
    found = {
        "apt.conf": apt_conf,
        "sources.list": source_of(suite),
        "auth.conf": "".join(path.read_text() for path in parts if path.is_file()),
        "pip.conf": _pip_conf(),
        "ca.pem": _authorities(),
    }
    for name, text in found.items():
        descriptor = os.open(into / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def _apt_settings() -> list[str]:
    return _said("apt-config", "dump").splitlines()


def source_of(suite: str) -> str:
    """This machine's source of Debian for a suite, as a line; empty where it has none."""
    try:
        line = source_line(suite)
    except (Missing, OSError, subprocess.SubprocessError):
        return ""
    return re.sub(r"\[[^]]*\] ", "", line)  # its key lies elsewhere in an image


def pip_settings() -> Mapping[str, str]:
    """Pip's settings of this machine, environment included, by their long names."""
    found = {}
    for line in _said(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    return found


def _pip_conf() -> str:
    lines = []
    for name, value in pip_settings().items():
        words = [word for word in value.split() if not word.startswith(("file:", "/"))]
        if name in PIP and words:
            lines.append(f"{name} = {' '.join(words)}\n")
    return "[global]\n" + "".join(lines) if lines else ""


def _authorities() -> str:
    """The machine's authorities, where it was told of its own ones."""
    named = [os.environ.get(name, "") for name in AUTHORITIES] + [pip_settings().get("cert", "")]
    return next((Path(name).read_text() for name in named if name and Path(name).is_file()), "")


def _said(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def copy_wheel(into: Path, version: str, python: str) -> None:
    """Put torch's CPU build into a directory, if pip's `find-links` here has it for that Python."""
    pattern = WHEEL.format(version=version, python=python, machine=os.uname().machine)
    for place in pip_settings().get("find-links", "").split():
        for wheel in sorted(Path(place.removeprefix("file://")).glob(pattern)):
            if "+cpu" in wheel.name:
                shutil.copy2(wheel, into)
                return
