"""A small tree with one of everything that images can hold: `many.py DIRECTORY [zombie]`.

Root with threads and an own of each kind of descriptor, a child with another session, a zombie.
When all is made the pids are written to DIRECTORY/ready; then it sleeps. At SIGUSR1 it takes a
step: writes memory, closes a connection, opens a file; then there is DIRECTORY/stepped.
"""

import ctypes
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

PAGES = 64
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
KEPT: list[object] = []


def end_with_parent() -> None:
    """Whoever is killed before it could end this leaves nothing behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def write(written: mmap.mmap, pages: range, step: int) -> None:
    for page in pages:
        text = b"step %d page %d" % (step, page)
        written[page * mmap.PAGESIZE : page * mmap.PAGESIZE + len(text)] = text


def memory(directory: Path) -> mmap.mmap:
    """Pages that are told apart: written ones, zero ones, shared ones, those of files."""
    written = mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    write(written, range(PAGES), 1)
    zeros = mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(PAGES):
        assert zeros[page * mmap.PAGESIZE] == 0  # read, never written
    together = mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    together[:5] = b"hello"
    data = open(directory / "data", "w+b")  # noqa: SIM115
    data.truncate(PAGES * mmap.PAGESIZE)
    mapped = mmap.mmap(data.fileno(), 0)
    mapped[:4] = b"page"
    segment = os.open(f"/dev/shm/{directory.name}.{os.getpid()}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(segment, PAGES * mmap.PAGESIZE)
    in_shm = mmap.mmap(segment, 0)
    os.close(segment)
    os.unlink(f"/dev/shm/{directory.name}.{os.getpid()}")
    in_shm[:6] = b"in shm"
    KEPT.extend((zeros, together, data, mapped, in_shm))
    return written


def sockets(directory: Path) -> list[socket.socket]:
    """TCP listening and connected, UDP, unix with a name, without, and as a pair."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b"not read yet")
    six = socket.create_server(("::1", 0), family=socket.AF_INET6)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(directory / "socket"))
    named.listen()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    KEPT.extend((listener, six, datagrams, named, left, right))
    return [client, server]


def files(directory: Path) -> None:
    """Regular, deleted, append, directory, pipe, FIFO, eventfd, epoll, timerfd, memfd."""
    log = open(directory / "log", "ab", buffering=0)  # noqa: SIM115
    log.write(b"some words\n")
    gone = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
    gone.write(b"deleted and open")
    gone.flush()
    os.mkfifo(directory / "fifo")
    fifo = os.open(directory / "fifo", os.O_RDWR)
    reading, writing = os.pipe()
    counter = os.eventfd(5)
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    libc = ctypes.CDLL(None)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    memory_file = os.memfd_create("scratch")
    os.write(memory_file, b"in memory")
    folder = os.open(directory, os.O_RDONLY)
    KEPT.extend((log, gone, fifo, reading, writing, counter, poll, timer, memory_file, folder))


def wait_for_ever() -> None:
    while True:
        time.sleep(600)


def child(directory: Path) -> int:
    """Another session, two threads, its own file; made when this returns in the parent."""
    ready, tell_ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell_ready)
        os.read(ready, 1)
        os.close(ready)
        return pid
    end_with_parent()
    os.setsid()
    Path("/proc/self/comm").write_text("second process")
    KEPT.append(open(directory / "of the child", "w"))  # noqa: SIM115
    threading.Thread(target=wait_for_ever, daemon=True, name="second").start()
    os.close(ready)
    os.write(tell_ready, b"!")
    os.close(tell_ready)
    wait_for_ever()
    raise SystemExit


def main() -> None:
    directory = Path(sys.argv[1])
    end_with_parent()
    written = memory(directory)
    connection = sockets(directory)
    files(directory)
    pids = [os.getpid(), child(directory)]
    if "zombie" in sys.argv:
        zombie = os.fork()
        if not zombie:
            os._exit(3)
        os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
        pids.append(zombie)
    # Waited for, not handled: a system call that a dump interrupts begins anew behind a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for name in ("reader", "writer", "timer"):
        threading.Thread(target=wait_for_ever, daemon=True, name=name).start()
    tell(directory / "ready", " ".join(str(pid) for pid in pids))
    signal.sigwait({signal.SIGUSR1})
    write(written, range(8), 2)
    connection.pop().close()
    KEPT.append(open(directory / "of the step", "w"))  # noqa: SIM115
    more = mmap.mmap(-1, 3 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    more[: mmap.PAGESIZE] = written[9 * mmap.PAGESIZE : 10 * mmap.PAGESIZE]
    KEPT.append(more)
    threading.Thread(target=wait_for_ever, daemon=True).start()
    tell(directory / "stepped", "")
    wait_for_ever()


def tell(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.rename(path)


main()
