"""The driver's edges that need no CRIU: version, causes, what it passes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError, SetupError
from worker_shim.criu import binary
from worker_shim.criu.binary import find_criu, keeps_self_tests
from worker_shim.criu.causes import CAUSES, details, recognise
from worker_shim.criu.driver import CriuDriver
from worker_shim.criu.fake import FakeImageDriver
from worker_shim.process.fake_runner import Call, FakeCommandRunner
from worker_shim.process.runner import Finished

RLIMIT = (
    "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "criu"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "version"), [("Version: 4.2.1\n", "4.2.1"), ("Version: 4.2\nGitID: v4.2", "4.2")]
)
async def test_version(program: Path, said: str, version: str) -> None:
    runner = FakeCommandRunner().tell("criu", stdout=said)
    driver = CriuDriver(runner, program=program)
    assert await driver.version() == version
    assert await driver.version() == version
    assert len(runner.calls) == 1


@pytest.mark.parametrize("said", ["Version: 4.1.1\n", "Version: 3.17.1\n", "hello", ""])
async def test_unusable_versions(program: Path, said: str) -> None:
    driver = CriuDriver(FakeCommandRunner().tell("criu", stdout=said), program=program)
    with pytest.raises(SetupError) as caught:
        await driver.version()
    assert "make tools" in caught.value.advice


async def test_a_warm_up_never_fails(program: Path, tmp_path: Path) -> None:
    runner = FakeCommandRunner().tell("criu", stdout="Version: 4.2.1\n")
    await CriuDriver(runner, program=program).warm_up()
    assert [call.argv[1] for call in runner.calls] == ["--version", "check"]
    await CriuDriver(runner, program=tmp_path / "none").warm_up()
    await CriuDriver(FakeCommandRunner().tell("criu", stdout="hello"), program=program).warm_up()


def test_the_program_is_found(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ALLSTOP_CRIU", raising=False)
    monkeypatch.setattr(binary, "CHECKOUT", tmp_path / ".tools")
    assert find_criu() == program
    monkeypatch.setenv("ALLSTOP_CRIU", str(tmp_path / "nowhere"))
    with pytest.raises(SetupError, match="nowhere"):
        find_criu()
    assert find_criu(program) == program


def test_run_is_a_tmpfs(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\ntmpfs /run/user tmpfs rw 0 0\n")
    assert not keeps_self_tests(mounts)
    mounts.write_text("/dev/vda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n")
    assert keeps_self_tests(mounts)


async def test_a_failed_dump_says_why_in_two_voices(program: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"

    def fail(call: Call) -> Finished:
        if "--version" in call.argv:
            return Finished(call.argv, 0, "Version: 4.2.1", "", 1)
        line = "Error (criu/files-ext.c:98): Unknown shit 600 (anon_inode:[io_uring])"
        (images / "dump.log").write_text(f"{RLIMIT}\nWarn  (x.c:1): hm\n{line}\n")
        assert call.env is not None
        assert "LD_PRELOAD" not in call.env
        return Finished(call.argv, 1, "", "", 1)

    driver = CriuDriver(FakeCommandRunner({"criu": fail, "sh": fail}), program=program)
    with pytest.raises(DriverError) as caught:
        await driver.dump(os.getpid(), images, deadline_s=5)
    assert "has an io_uring open" in caught.value.what
    assert caught.value.details == (
        "Error (criu/files-ext.c:98): Unknown shit 600 (anon_inode:[io_uring])",
    )
    assert not (images / "no-plugins").exists()


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("Unknown shit 600 (anon_inode:[io_uring])", "io_uring", ""),
        ("Unknown shit 600 (anon_inode:[perf_event])", "descriptor", "anon_inode:[perf_event]"),
        ("Can't lookup mount=24 for fd=10 path=/dev/null", "foreign_mount", "descriptor 10"),
        (
            "inet: Can't connect inet socket back: Cannot assign requested address",
            "address_missing",
            "",
        ),
        ("inet: Can't bind inet socket (id 33): Address already in use", "port_taken", ""),
        ("Can't fork for 1001: File exists", "pid_taken", "pid 1001"),
        ("File tmp/log0 has bad size 5185 (expect 404)", "file_size", "tmp/log0 is 5185 bytes"),
        ("Unable to set a monotonic clock offset", "clock", ""),
        ("kerndat_tcp_repair failed when initializing kerndat.", "self_test_blocked", ""),
        ("vdso: Unexpected rt vDSO area bounds", "criu_too_old", ""),
        ("sockets: Can't get 1:16 opt: Operation not supported", "criu_too_old", ""),
        ("unix: Can't dump half of stream unix connection.", "unix_socket", ""),
        ("Can't write 1: No space left on device", "no_space", ""),
    ],
)
def test_causes(line: str, code: str, words: str) -> None:
    log = f"{RLIMIT}\n  1001: Error (criu/some.c:7): {line}\nError (criu/cr-dump.c:1): FAILED."
    found = recognise(log)
    assert found is not None
    assert found.code == code
    assert words in found.sentence
    assert found.line.endswith(line)
    assert "{" not in found.sentence


def test_the_harmless_line_is_no_cause() -> None:
    assert recognise(RLIMIT) is None
    assert details(RLIMIT) == (RLIMIT,), "but where nothing else was said it is shown"


def test_every_cause_can_be_said() -> None:
    for cause in CAUSES:
        assert cause.sentence.format("a", "b", "c")
        assert cause.advice
        assert not cause.sentence.endswith(".")


async def test_the_fake_keeps_what_it_dumps(tmp_path: Path) -> None:
    fake = FakeImageDriver()
    await fake.dump(1000, tmp_path / "images", deadline_s=1)
    assert fake.facts(tmp_path / "images").pids == (1000,)
    assert await fake.restore(tmp_path / "images", deadline_s=1) == 1000
    fake.broken.add("restore")
    with pytest.raises(DriverError):
        await fake.restore(tmp_path / "images", deadline_s=1)
