"""Programs with one odd thing each.

    odd.py io_uring OUT          holds an io_uring
    odd.py reader FILE OUT       holds FILE open for reading
    odd.py rewriter FILE OUT     rewrites FILE in place, and checks what it wrote before
    odd.py mapper FILE OUT       the same through a shared mapping
    odd.py places DIR OUT        works in DIR/work, listens in DIR/socket, holds DIR/fifo open
    odd.py semaphores OUT        plays ping-pong with a spawned child over two semaphores

All note a growing count in OUT; a check that fails is noted as `WRONG`.
"""

import ctypes
import mmap
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.synchronize import Semaphore
from typing import TextIO

SYS_IO_URING_SETUP = 425
TURNS_S = 0.002


def note(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def count_for_ever(out: TextIO) -> None:
    count = 0
    while True:
        count += 1
        note(out, str(count))
        time.sleep(TURNS_S)


def io_uring(out: TextIO) -> None:
    parameters = ctypes.create_string_buffer(120)
    fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_IO_URING_SETUP, 8, parameters)
    note(out, "0" if fd >= 0 else f"WRONG {ctypes.get_errno()}")
    count_for_ever(out)


def reader(path: str, out: TextIO) -> None:
    with open(path):
        count_for_ever(out)


def rewriter(path: str, out: TextIO) -> None:
    count = 0
    with open(path, "r+b", buffering=0) as file:
        while True:
            file.seek(0)
            check(file.read(8), count, out)
            count += 1
            file.seek(0)
            file.write(count.to_bytes(8, "big"))
            note(out, str(count))
            time.sleep(TURNS_S)


def mapper(path: str, out: TextIO) -> None:
    count = 0
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8) as page:
        file.close()
        while True:
            check(page[:8], count, out)
            count += 1
            page[:8] = count.to_bytes(8, "big")
            note(out, str(count))
            time.sleep(TURNS_S)


def places(path: str, out: TextIO) -> None:
    """Every turn goes through the socket, by a new connection to its path."""
    os.makedirs(os.path.join(path, "work"), mode=0o750)
    os.makedirs(os.path.join(path, "socket"), mode=0o700)
    os.mkfifo(os.path.join(path, "fifo"), 0o600)
    os.open(os.path.join(path, "fifo"), os.O_RDWR)
    os.chdir(os.path.join(path, "work"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(path, "socket", "listener"))
    listener.listen()
    count = 0
    while True:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(listener.getsockname())
            listener.accept()[0].close()
        count += 1
        note(out, str(count) if os.path.isdir(".") else "WRONG no working directory")
        time.sleep(TURNS_S)


def check(found: bytes, count: int, out: TextIO) -> None:
    if int.from_bytes(found, "big") != count:
        note(out, f"WRONG {int.from_bytes(found, 'big')} instead of {count}")
        raise SystemExit(1)


def answer(ping: Semaphore, pong: Semaphore) -> None:
    while True:
        ping.acquire()
        pong.release()


def semaphores(out: TextIO) -> None:
    context = multiprocessing.get_context("spawn")
    ping, pong = context.Semaphore(0), context.Semaphore(0)
    context.Process(target=answer, args=(ping, pong), daemon=True).start()
    count = 0
    while True:
        ping.release()
        pong.acquire()
        count += 1
        note(out, str(count))
        time.sleep(TURNS_S)


if __name__ == "__main__":
    with open(sys.argv[-1], "a") as out:
        globals()[sys.argv[1]](*sys.argv[2:-1], out)
