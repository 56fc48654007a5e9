"""Holds one of everything that is a file and no ordinary one, and tells how it finds them.

    holder.py DIR OUT    notes a growing count in OUT, and between two counts `STATE {…}`

After the first count nothing of it changes but OUT: every state has to be the same.
"""

import array
import fcntl
import hashlib
import json
import mmap
import os
import socket
import stat
import sys
import termios
import time

KIB = 1 << 10
SHM = "/dev/shm/allstop-holder-"
OWNER = (1234, 5678)
TURNS_S = 0.005
held: dict[str, int] = {}
maps: dict[str, mmap.mmap] = {}


def make(name: str, path: str, size: int, mode: int = 0o640) -> int:
    """A file with an owner, permissions and an offset of its own."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, (name.encode() * size)[:size])
    os.fchown(fd, *OWNER)
    os.fchmod(fd, mode)
    os.lseek(fd, 5, os.SEEK_SET)
    held[name] = fd
    return fd


def take(directory: str) -> None:
    os.mkdir(directory, 0o711)
    make("deleted", f"{directory}/deleted", 100 * KIB)
    os.unlink(f"{directory}/deleted")
    for name in ("gone", "named"):  # shm_open is open(2) of a name in /dev/shm
        maps[name] = mmap.mmap(make(name, SHM + name, 64 * KIB), 64 * KIB)
        os.close(held.pop(name))
    os.unlink(SHM + "gone")
    make("read", SHM + "read", KIB)
    os.close(held["read"])
    held["read"] = os.open(SHM + "read", os.O_RDONLY)
    held["memfd"] = os.memfd_create("allstop")
    os.write(held["memfd"], b"memfd" * KIB)
    os.lseek(held["memfd"], 7, os.SEEK_SET)
    make("renamed", f"{directory}/first name", 3 * KIB)
    os.link(f"{directory}/first name", f"{directory}/second name")
    os.unlink(f"{directory}/first name")  # CRIU: link_remap
    make("one", f"{directory}/one", 3 * KIB)
    os.link(f"{directory}/one", f"{directory}/two")
    held["two"] = os.open(f"{directory}/two", os.O_RDWR)
    os.ftruncate(make("sparse", f"{directory}/sparse", KIB), 1 << 30)
    make("log", f"{directory}/log", 200 * KIB, 0o644)
    fifos_and_sockets(directory)


def fifos_and_sockets(directory: str) -> None:
    os.mkdir(f"{directory}/run", 0o750)
    os.chown(f"{directory}/run", *OWNER)
    os.mkfifo(f"{directory}/run/fifo", 0o620)
    held["fifo"] = os.open(f"{directory}/run/fifo", os.O_RDWR)
    os.write(held["fifo"], b"not read yet")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{directory}/run/socket")
    os.chmod(f"{directory}/run/socket", 0o660)
    listener.listen()
    held["socket"] = listener.detach()


def state(directory: str) -> dict[str, object]:
    told: dict[str, object] = {name: about(fd) for name, fd in held.items()}
    told |= {f"map {name}": digest(bytes(area)) for name, area in maps.items()}
    names = [f"{directory}/{name}" for name in ("", "run", "run/fifo", "run/socket", "second name")]
    names += [f"{directory}/deleted", f"{directory}/first name", f"{SHM}gone", f"{SHM}named"]
    told |= {name: named(name) for name in names}
    told["one is two"] = os.path.samefile(f"{directory}/one", f"{directory}/two")
    told["renamed"] = [
        told["renamed"],
        os.path.samestat(os.fstat(held["renamed"]), os.stat(f"{directory}/second name")),
    ]
    return told


def about(fd: int) -> list[object]:
    status = os.fstat(fd)
    links = status.st_nlink
    owner = [oct(status.st_mode), status.st_uid, status.st_gid, status.st_size, links]
    if stat.S_ISREG(status.st_mode):
        content = os.pread(fd, 256 * KIB, 0)
        return [
            *owner,
            os.lseek(fd, 0, os.SEEK_CUR),
            digest(content),
            fcntl.fcntl(fd, fcntl.F_GETFL),
        ]
    if stat.S_ISFIFO(status.st_mode):
        waiting = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
        return [*owner, waiting[0]]
    return [oct(status.st_mode), socket.socket(fileno=os.dup(fd)).getsockname()]


def named(path: str) -> list[object]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return []
    return [oct(status.st_mode), status.st_uid, status.st_gid]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    directory, place = sys.argv[1:]
    take(directory)
    with open(place, "a") as out:
        count = 0
        while True:
            count += 1
            out.write(f"{count}\n")
            if count % 5 == 0:
                out.write(f"STATE {json.dumps(state(directory))}\n")
            out.flush()
            time.sleep(TURNS_S)


if __name__ == "__main__":
    main()
