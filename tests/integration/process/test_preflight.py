"""The preflight against real processes, each having one thing that cannot be dumped."""

from __future__ import annotations

import ctypes
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.model import Finding, Severity
from worker_shim.process import proc
from worker_shim.process.preflight import inspect

pytestmark = pytest.mark.root

BEGIN = """
import ctypes, mmap, os, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result
def shared(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size)
"""
END = """
open(sys.argv[1], "w").close()
time.sleep(300)
"""

Look = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Look]:
    """Run a program to its end of preparation and inspect its tree."""
    started: list[subprocess.Popen[bytes]] = []

    def run(program: str, **popen: object) -> tuple[Finding, ...]:
        ready = tmp_path / f"ready{len(started)}"
        options: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "start_new_session": True,
            "cwd": tmp_path,
            "env": {"PATH": os.environ["PATH"], "RANK": "3"},
        }
        with (tmp_path / "err").open("wb") as err:
            child = subprocess.Popen(
                [sys.executable, "-c", BEGIN + program + END, str(ready)],
                **{"stderr": err, **options, **popen},  # type: ignore[call-overload]
            )
        started.append(child)
        _appears(ready, child, tmp_path / "err")
        return inspect(proc.look(child.pid))

    yield run
    for child in started:
        for pid in reversed(list(proc.walk(child.pid))):
            os.kill(pid, 9)
        child.wait(10)


def _appears(ready: Path, child: subprocess.Popen[bytes], err: Path) -> None:
    for _ in range(20_000):
        if ready.exists():
            return
        if child.poll() is not None:
            break
        time.sleep(0.001)
    raise AssertionError(f"the program did not get ready: {err.read_text()}")


LOOKS = 100
CONNECTING = """
import os, pathlib, socket, time
server = socket.socket(socket.AF_UNIX)
server.bind({path!r})
server.listen(64)
if not os.fork():  # read first: what it accepts later is new
    while True:
        one = server.accept()[0]
        time.sleep(0.001)
        one.close()
for _ in range(3):
    if not os.fork():
        while True:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect({path!r})
                client.recv(1)
pathlib.Path({ready!r}).touch()
os.wait()
"""

REFUSED = {
    "io_uring": "p = ctypes.create_string_buffer(120); check(libc.syscall(425, 4, p))",
    "perf_event": (
        "p = ctypes.create_string_buffer(112); p[0] = 1; p[4] = 112\n"
        "check(libc.syscall(298, p, 0, -1, -1, 0))"
    ),
    "bpf": (
        "import struct\n"
        "p = ctypes.create_string_buffer(struct.pack('IIIII', 2, 4, 4, 1, 0).ljust(120, b'\\0'))\n"
        "check(libc.syscall(321, 0, p, 72))"
    ),
    "userfaultfd": "check(libc.syscall(323, 1))",
    "vsock": "s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "mptcp": "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "socket": "s = socket.socket(44, socket.SOCK_RAW)  # AF_XDP",
    "device": "os.open('/dev/loop-control' if os.path.exists('/dev/loop-control') else "
    "'/dev/fuse', os.O_RDWR)",
    "descriptor": (
        "p = ctypes.create_string_buffer(b'\\1' + 23 * b'\\0'); check(libc.syscall(444, p, 8, 0))"
    ),
    "sysv_shm": (
        "libc.shmat.restype = ctypes.c_void_p\n"
        "key = check(libc.shmget(0, 4096, 0o1600)); assert libc.shmat(key, None, 0) != -1\n"
        "libc.shmctl(key, 0, None)"
    ),
    "traced": (
        "child = subprocess.Popen(['sleep', '300'])\n"
        "while not open(f'/proc/{child.pid}/cmdline').read(): pass  # in the middle of its exec\n"
        "check(libc.ptrace(0x4206, child.pid, 0, 0))"
    ),
    "deleted_file": "m = shared('big', 600 << 20); os.unlink('big')",
}

WHAT_MAY_BE_MISSING = {
    "io_uring": lambda: not _answers(425, 4, ctypes.create_string_buffer(120)),
    "vsock": lambda: not _family(socket.AF_VSOCK, socket.SOCK_STREAM),
    "mptcp": lambda: not _family(socket.AF_INET, socket.SOCK_STREAM, 262),
    "socket": lambda: not _family(44, socket.SOCK_RAW),
    "device": lambda: not (os.path.exists("/dev/loop-control") or os.path.exists("/dev/fuse")),
    "bpf": lambda: (
        not _answers(
            321, 0, ctypes.create_string_buffer(b"\2\0\0\0\4\0\0\0\4\0\0\0\1".ljust(120, b"\0")), 72
        )
    ),
    "userfaultfd": lambda: not _answers(323, 1),
    "descriptor": lambda: not _answers(444, ctypes.create_string_buffer(b"\1" + 23 * b"\0"), 8, 0),
    "perf_event": lambda: not os.path.exists("/proc/sys/kernel/perf_event_paranoid"),
}


def _answers(number: int, *arguments: object) -> bool:
    fd = ctypes.CDLL(None).syscall(number, *arguments)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def _family(family: int, kind: int, protocol: int = 0) -> bool:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("code", REFUSED)
def test_each_thing_is_refused_by_its_name(look: Look, code: str) -> None:
    if WHAT_MAY_BE_MISSING.get(code, lambda: False)():
        pytest.skip(f"this kernel cannot make one: {code}")
    findings = look(REFUSED[code])
    assert [(f.severity, f.code) for f in findings] == [(Severity.REFUSE, code)]
    (finding,) = findings
    assert finding.pid > 0
    assert finding.rank == 3
    assert finding.text.startswith(f"pid {finding.pid} (")
    assert ", rank 3) " in finding.text
    assert "; " in finding.text, "it says what to do"


def test_an_ordinary_worker_is_fine(look: Look) -> None:
    findings = look(
        "import signal, threading\n"
        "kept = [os.pipe(), os.eventfd(0), socket.socketpair(), open('out', 'w'),\n"
        "    socket.create_server(('127.0.0.1', 0)), os.memfd_create('x'), open('/dev/urandom'),\n"
        "    socket.socket(socket.AF_INET, socket.SOCK_DGRAM), mmap.mmap(-1, 4096)]\n"
        "import select; kept.append(select.epoll()); kept.append(os.pidfd_open(os.getpid()))\n"
        "tcp = socket.create_connection(kept[4].getsockname())\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "gone, w = os.pipe(); os.close(w)\n"
        "m = shared('small', 4096); os.unlink('small')"
    )
    assert findings == ()


def test_a_pipe_to_outside_is_refused_and_both_are_named(look: Look) -> None:
    reader, writer = os.pipe()
    try:
        findings = look("", stdout=writer)
        os.close(writer)
        assert [f.code for f in findings] == ["pipe"]
        assert f"pid {os.getpid()} (" in findings[0].text
        assert "descriptor 1" in findings[0].text
    finally:
        os.close(reader)


def test_a_unix_stream_to_outside_is_refused(look: Look) -> None:
    inside, outside = socket.socketpair()
    number = inside.fileno()
    with inside, outside:
        findings = look("", pass_fds=(inside.fileno(),))
    assert [f.code for f in findings] == ["unix_socket"]
    assert f"descriptor {number}" in findings[0].text


def test_a_tree_that_connects_all_the_time_is_no_outsider(tmp_path: Path) -> None:
    """Processes are read one after another, and connections between them come and go meanwhile."""
    ready = tmp_path / "ready"
    program = CONNECTING.format(path=str(tmp_path / "sock"), ready=str(ready))
    with (tmp_path / "err").open("wb") as err:
        child = subprocess.Popen([sys.executable, "-c", program], stderr=err)
    try:
        _appears(ready, child, tmp_path / "err")
        found = [f.text for _ in range(LOOKS) for f in inspect(proc.look(child.pid))]
    finally:
        for pid in reversed(list(proc.walk(child.pid))):
            os.kill(pid, 9)
        child.wait(10)
    assert [text for text in found if "outside the tree" in text] == []


SERVING = """
import asyncio, pathlib
async def served(reader, writer):
    await reader.read(1)
    writer.close()
async def main():
    await asyncio.start_unix_server(served, {path!r})
    async def connect():
        while True:
            reader, writer = await asyncio.open_unix_connection({path!r})
            writer.write(b"x")
            await reader.read(1)
            writer.close()
    tasks = [asyncio.ensure_future(connect()) for _ in range(4)]
    pathlib.Path({ready!r}).touch()
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


def test_what_epoll_watches_for_a_moment_is_not_left_over(tmp_path: Path) -> None:
    program = SERVING.format(path=str(tmp_path / "s"), ready=str(tmp_path / "ready"))
    with (tmp_path / "err").open("wb") as err:
        child = subprocess.Popen([sys.executable, "-c", program], stderr=err)
    try:
        _appears(tmp_path / "ready", child, tmp_path / "err")
        found = {one.text for _ in range(LOOKS) for one in inspect(proc.look(child.pid))}
    finally:
        child.kill()
        child.wait(10)
    assert found == set()


def test_a_terminal_is_refused(look: Look) -> None:
    master, slave = pty.openpty()
    try:
        findings = look("", stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert [f.code for f in findings] == ["tty"]
    assert "descriptor 0" in findings[0].text


def test_a_descriptor_of_another_mount_namespace_is_refused(look: Look, tmp_path: Path) -> None:
    outside = os.open("/", os.O_RDONLY)
    try:
        # As the lab's nodes do it: the descriptor is older than the namespace.
        findings = look("check(libc.unshare(0x20000))", pass_fds=(outside,))
    finally:
        os.close(outside)
    assert {f.code for f in findings} == {"mount", "namespace"}
    (nested,) = [f for f in findings if f.code == "namespace"]
    assert "another mnt namespace" in nested.text


def test_nested_namespaces_are_named(look: Look) -> None:
    findings = look("check(libc.unshare(0x40000000 | 0x08000000))")
    assert [f.code for f in findings] == ["namespace"]
    assert "another net and ipc namespace" in findings[0].text


def test_what_only_may_fail_is_a_warning(look: Look) -> None:
    findings = look("check(libc.inotify_init()); m = shared('some', 100 << 20); os.unlink('some')")
    assert {(f.severity, f.code) for f in findings} == {
        (Severity.WARN, "inotify"),
        (Severity.WARN, "deleted_file"),
    }


@pytest.mark.parametrize(
    ("code", "family", "protocol"),
    [("netlink", "AF_NETLINK", 0), ("packet_socket", "AF_PACKET", 0), ("raw_socket", "AF_INET", 1)],
)
def test_sockets_that_come_back_only_idle_are_a_warning(
    look: Look, code: str, family: str, protocol: int
) -> None:
    findings = look(f"s = socket.socket(socket.{family}, socket.SOCK_RAW, {protocol})")
    assert [(f.severity, f.code) for f in findings] == [(Severity.WARN, code)]


def test_reserved_huge_pages_are_a_warning(look: Look) -> None:
    pages = Path("/proc/sys/vm/nr_hugepages")
    before = pages.read_text()
    try:
        pages.write_text("2")
        if pages.read_text().strip() == "0":
            pytest.skip("this kernel gives no huge pages")
        findings = look("m = mmap.mmap(-1, 2 << 20, flags=0x40022); m[0] = 1")
    finally:
        pages.write_text(before)
    assert [(f.severity, f.code) for f in findings] == [(Severity.WARN, "huge_pages")]


def test_refusals_come_first(look: Look) -> None:
    findings = look("check(libc.inotify_init()); s = socket.socket(socket.AF_VSOCK, 1)")
    assert [f.severity for f in findings] == [Severity.REFUSE, Severity.WARN]
