"""The pure parts of `python -m tools`: what is read from programs, what is chosen, what is said."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import __main__ as entry
from tools import fetch, private_apt, probe, system
from tools.messages import DISTRIBUTIONS, MANAGERS, PACKAGES, Missing, how_to_install
from tools.private_apt import PrivateApt

Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """`program("criu", "Version: 4.2.1")` makes one that prints this and exits with 0."""

    def make(name: str, prints: str = "", exit_code: int = 0, to: str = "1") -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{prints}' >&{to}\nexit {exit_code}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program of the system is found."""
    monkeypatch.setattr(probe, "SBIN", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


# -- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prints", "version"),
    [
        ("Version: 4.2.1", (4, 2, 1)),
        ("etcd Version: 3.5.30\nGit SHA: Not provided\nGo Version: go1.24.4", (3, 5, 30)),
        ("etcdctl version: 3.6.0-rc.1", (3, 6, 0)),
        ("Version: 10.0", (10, 0)),
        ("no number, or 7 alone", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("to", ["1", "2"], ids=["stdout", "stderr"])
def test_a_version_is_read(
    program: Program, prints: str, version: tuple[int, ...] | None, to: str
) -> None:
    assert probe.version_of(program("any", prints, to=to), "--version") == version


def test_a_program_that_fails_has_no_version(program: Program, tmp_path: Path) -> None:
    assert probe.version_of(program("bad", "Version: 4.2", exit_code=1)) is None
    assert probe.version_of(tmp_path / "absent") is None
    assert probe.version_of(None) is None


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(
    ("name", "prints", "enough"),
    [
        ("criu", "Version: 4.2", True),
        ("criu", "Version: 4.10", True),  # a number, not a text
        ("criu", "Version: 4.1.1", False),
        ("criu", "Version: 3.17.1", False),
        ("etcd", "etcd Version: 3.4.23", False),
        ("etcd", "etcd Version: 3.5.0", True),
        ("etcdctl", "etcdctl version: 4.0.0", True),
    ],
)
def test_the_systems_own_is_taken_when_new_enough(
    program: Program, tmp_path: Path, name: str, prints: str, enough: bool
) -> None:
    path = program(name, prints)
    assert fetch.system_program(name) == (path if enough else None)
    into = tmp_path / "into"
    into.mkdir()
    assert fetch.link_system_program(name, into) == enough
    assert (into / name).is_symlink() == enough


@pytest.mark.parametrize(
    ("prints", "words"),
    [("Version: 4.1", "needed is 4.2 or newer, Debian sid gave 4.1"), ("", "does not start")],
)
def test_what_was_fetched_must_be_new_enough(program: Program, prints: str, words: str) -> None:
    with pytest.raises(Missing, match=words):
        fetch.require_version(program("criu", prints))


# -- which distribution, and what to tell its people -----------------------------------------------


@pytest.mark.parametrize(
    ("release", "ids"),
    [
        ({"ID": "debian"}, ["debian"]),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, ["linuxmint", "ubuntu", "debian"]),
        ({"ID_LIKE": "arch"}, ["linux", "arch"]),
        ({}, ["linux"]),
    ],
)
def test_the_distribution_is_read(
    monkeypatch: pytest.MonkeyPatch, release: dict[str, str], ids: list[str]
) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    assert probe.distribution_ids() == ids


def test_a_machine_without_os_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> dict[str, str]:
        raise FileNotFoundError

    monkeypatch.setattr("platform.freedesktop_os_release", absent)
    assert probe.distribution_ids() == []


@pytest.mark.parametrize(
    ("ids", "command"),
    [
        (["debian"], "  apt-get install criu etcd-server etcd-client nftables"),
        (["linuxmint", "ubuntu", "debian"], "  apt-get install criu etcd-server etcd-client nft"),
        (["fedora"], "  dnf install criu etcd nftables"),
        (["rocky", "rhel", "centos", "fedora"], "  dnf install criu etcd nftables"),
        (["opensuse-leap", "suse", "opensuse"], "  zypper install criu etcd etcdctl nftables"),
        (["arch"], "  pacman -S criu etcd nftables"),
        (["alpine"], "  apk add criu etcd etcd-ctl nftables"),
    ],
)
def test_one_command_for_a_known_distribution(ids: list[str], command: str) -> None:
    lines = str(how_to_install(["criu >= 4.2", "etcd >= 3.5", "nft"], ids)).splitlines()
    assert lines[0] == "allstop needs, and this machine lacks: criu >= 4.2, etcd >= 3.5, nft"
    assert lines[1].startswith(command)
    assert [line for line in lines if line.startswith(tuple(f"  {m}" for m in MANAGERS))] == [
        lines[1]
    ]
    assert "build it from source" in "\n".join(lines[2:])
    assert "etcd's own release archives" in lines[-1]


def test_every_command_for_an_unknown_one() -> None:
    lines = str(how_to_install(["ip", "ss"], ["plan9"])).splitlines()
    assert lines[1:] == [
        "  apt-get install iproute2",
        "  dnf install iproute",
        "  zypper install iproute2",
        "  pacman -S iproute2",
        "  apk add iproute2",
    ]  # nothing twice, and no word about criu


def test_every_thing_has_a_package_everywhere() -> None:
    assert all(len(names) == len(MANAGERS) and all(names) for names in PACKAGES.values())
    assert set(DISTRIBUTIONS.values()) == set(range(len(MANAGERS)))


@pytest.mark.usefixtures("only_here")
def test_what_cannot_be_fetched(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "distribution_ids", lambda: ["debian"])
    assert fetch.unfetchable() == []
    monkeypatch.setattr(fetch, "distribution_ids", lambda: ["ubuntu", "debian"])
    assert fetch.unfetchable() == ["criu >= 4.2", "etcd >= 3.5"]
    program("criu", "Version: 4.2.1")
    assert fetch.unfetchable() == ["etcd >= 3.5"]


# -- the system's programs -------------------------------------------------------------------------


def lacking(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, ...]]:
    """These are missing until apt has been asked; returns what it is asked."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(system, "missing_from_system", lambda: [] if asked else list(names))
    monkeypatch.setattr(system, "apt_get", lambda *words: asked.append(words))
    monkeypatch.setattr(system, "which", lambda name: Path("/usr/bin", name))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system, "distribution_ids", lambda: ["debian"])
    return asked


def test_nothing_missing_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lacking(monkeypatch)
    system.ensure_system([])
    assert asked == []


def test_packages_are_chosen_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lacking(monkeypatch, "nft", "ip", "ss", "python venv")
    system.ensure_system([])
    packages = ("iproute2", "nftables", "python3-venv")
    assert asked == [("update",), ("install", "-y", "--no-install-recommends", *packages)]


@pytest.mark.parametrize("why", ["not root", "no apt", "unfetchable"])
def test_a_person_must_do_it(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    asked = lacking(monkeypatch, "nft")
    if why == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    elif why == "no apt":
        monkeypatch.setattr(system, "which", lambda name: None)
    with pytest.raises(Missing) as caught:
        system.ensure_system(["criu >= 4.2"] if why == "unfetchable" else [])
    lacks = "criu >= 4.2, nft" if why == "unfetchable" else "nft"
    assert f"this machine lacks: {lacks}" in str(caught.value)
    assert asked == []


def test_apt_that_changes_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, "nft")
    monkeypatch.setattr(system, "missing_from_system", lambda: ["nft"])
    with pytest.raises(Missing, match="apt-get install nftables"):
        system.ensure_system([])


# -- Debian's packages -----------------------------------------------------------------------------

TARGETS = """\
http://one.example/debian|trixie-updates|main|
http://one.example/debian|{release}|contrib|/keys/one.pgp
http://two.example/debian|{release}|main|{key}
http://three.example/debian|{release}|main|
"""


@pytest.mark.parametrize(
    ("release", "key", "line"),
    [
        ("trixie", "/keys/two.pgp", "deb [signed-by=/keys/two.pgp] http://two.example/debian sid"),
        ("stable", "", "deb [signed-by=/usr/own.gpg] http://two.example/debian sid"),
        ("sid", "AB12", "deb [signed-by=/usr/own.gpg] http://two.example/debian sid"),
    ],
)
def test_the_machines_own_source_is_used(
    monkeypatch: pytest.MonkeyPatch, release: str, key: str, line: str
) -> None:
    of_apt(monkeypatch, TARGETS.format(release=release, key=key))
    assert private_apt.source_line("sid") == f"{line} main\n"


def test_a_machine_without_a_debian_source(monkeypatch: pytest.MonkeyPatch) -> None:
    of_apt(monkeypatch, TARGETS.format(release="noble", key=""))
    with pytest.raises(Missing, match="no Debian source for trixie main"):
        private_apt.source_line("sid")


def of_apt(monkeypatch: pytest.MonkeyPatch, listing: str) -> None:
    done = subprocess.CompletedProcess(["apt-get"], 0, listing, "")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: done)
    codename = {"VERSION_CODENAME": "trixie"}
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: codename)
    monkeypatch.setattr(private_apt, "debian_keyring", lambda: "/usr/own.gpg")


DEPENDS = {
    "criu": "criu\n  Depends: libnet9\n |Depends: libbsd0\n  PreDepends: libc6:any\n  Depends: sh",
    "libnet9": "libnet9\n  Depends: libc6\n  Depends: <libvirtual>\n",
    "libbsd0": "libbsd0\n  Depends: libmd0\n  Depends: zlib1g",
    "libmd0": "libmd0\n  Depends: libbsd0",  # a circle
}  # fmt: skip


def test_libraries_are_followed_and_programs_are_not() -> None:
    class Apt(PrivateApt):
        def __init__(self) -> None:
            self.asked: list[str] = []

        def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
            names = arguments[3:]
            self.asked += names
            return "\n".join(DEPENDS.get(name, name) for name in names)

    apt = Apt()
    assert apt.library_closure("criu") == [
        "criu",
        "libbsd0",
        "libc6",
        "libmd0",
        "libnet9",
        "zlib1g",
    ]
    assert len(apt.asked) == len(set(apt.asked))


# -- what is made ----------------------------------------------------------------------------------


def test_tools_are_whole_or_made_anew(tmp_path: Path) -> None:
    tools = tmp_path / ".tools"
    assert not fetch.is_whole(tools)
    (tools / "bin").mkdir(parents=True)
    stamp = tools / "stamp.json"
    for text, whole in (
        ("", False), ("[", False), (json.dumps({"recipe": fetch.RECIPE - 1}), False),
        (json.dumps({"recipe": fetch.RECIPE}), True),
    ):  # fmt: skip
        stamp.write_text(text)
        for name in fetch.MINIMUM:
            (tools / "bin" / name).write_text("#!/bin/sh\n")
            (tools / "bin" / name).chmod(0o755)
        assert fetch.is_whole(tools) == whole, text
    (tools / "bin" / "etcdctl").chmod(0o644)
    assert not fetch.is_whole(tools)
    (tools / "bin" / "etcdctl").unlink()
    assert not fetch.is_whole(tools)


def test_a_starter_finds_its_loader_wherever_it_lies(tmp_path: Path) -> None:
    new = tmp_path / "made"
    for path in ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"):
        (new / "sid/usr" / path).parent.mkdir(parents=True, exist_ok=True)
        (new / "sid/usr" / path).write_text('#!/bin/sh\necho "$0" "$@"\n')
        (new / "sid/usr" / path).chmod(0o755)
    (new / "bin").mkdir()
    fetch.write_wrapper(new, "criu", new / "sid/usr/sbin/criu")
    moved = new.rename(tmp_path / "elsewhere")
    assert stat.S_IMODE((moved / "bin/criu").stat().st_mode) == 0o755
    (tmp_path / "link").symlink_to(moved / "bin/criu")
    for start in (moved / "bin/criu", tmp_path / "link"):
        said = subprocess.run([start, "a b"], capture_output=True, text=True, check=True).stdout
        root = f"{moved}/bin/../sid/usr"
        libraries = f"--library-path {root}/lib/x86_64-linux-gnu"
        assert said == f"{root}/lib64/ld-linux-x86-64.so.2 {libraries} {root}/sbin/criu a b\n"


def test_packages_without_a_loader_are_said(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with pytest.raises(Missing, match="no loader"):
        fetch.write_wrapper(tmp_path, "criu", tmp_path / "sid/usr/sbin/criu")


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "calls", "code"),
    [
        ([], ["system", entry.ROOT], 0),
        (["system"], ["system"], 0),
        (["tests"], ["tests"], 0),
        (["other"], [], 2),
    ],
)
def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    argv: list[str], calls: list[Any], code: int,
) -> None:  # fmt: skip
    made: list[Any] = []
    monkeypatch.setattr(entry, "unfetchable", list)
    monkeypatch.setattr(entry, "ensure_system", lambda names: made.append("system"))
    monkeypatch.setattr(entry, "fetch_programs", lambda root: made.append(root))
    monkeypatch.setattr(entry, "ensure_for_tests", lambda root: made.append("tests"))
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    assert entry.main(argv) == code
    assert made == calls
    assert ("python3 -m tools" in capsys.readouterr().err) == (code == 2)


def test_what_is_missing_is_the_last_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(names: list[str]) -> None:
        raise Missing("allstop needs, and this machine lacks: nft")

    monkeypatch.setattr(entry, "unfetchable", list)
    monkeypatch.setattr(entry, "ensure_system", missing)
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    assert entry.main([]) == 1
    assert capsys.readouterr().err == "\nallstop needs, and this machine lacks: nft\n"
