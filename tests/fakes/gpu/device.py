"""What a rank uses of a device: memory that its node's daemon has, work, and the driver's thread.

Only the standard library, so that it runs in any rank. While the rank is on its device it has a
device file open and a connection to the daemon, which CRIU refuses to dump; what the daemon has of
it is gone when that connection ends, however it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

# as in layout.h
MAGIC = 0x00A11570F0000002
STATE, LOCK, OUTSTANDING, COMMAND, RESULT, THREAD, TIMEOUT_MS = 8, 12, 16, 20, 24, 28, 32
PLACE, PLACE_BYTES, COUNT, PAIRS = 40, 256, 296, 304
LOCKING, SAVING, RESTORING, UNLOCKING, SAVING_NOTHING, SAVING_STALE = 1, 2, 3, 4, 5, 6
RUNNING, LOCKED, CHECKPOINTED, FAILED = 0, 1, 2, 3
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, OPERATING_SYSTEM, NOT_READY = 0, 1, 2, 304, 600
REST_S = 0.002
END_S = 10.0
DAEMON = "daemon"
CONNECT_S = 10.0


class Devices:
    """The devices of one node, made by this process and gone with it."""

    _made: ClassVar[dict[Path, subprocess.Popen[bytes]]] = {}  # by place

    def __init__(self, place: Path) -> None:
        self._place = place

    @classmethod
    def make(cls, place: Path, sizes: dict[str, int]) -> Devices:
        """Devices of these UUIDs and sizes, in place of those that were there."""
        made = cls(place)
        made.close()
        program = [sys.executable, str(Path(__file__).with_name("daemon.py"))]
        daemon = subprocess.Popen(
            [*program, str(place), json.dumps(sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        cls._made[place] = daemon
        assert daemon.stdout is not None
        if not daemon.stdout.readline():
            raise RuntimeError("the daemon of the devices did not start")
        return made

    def close(self) -> None:
        """End the daemon: what was in device memory is lost."""
        daemon = self._made.pop(self._place, None)
        if daemon is not None:
            daemon.communicate(timeout=END_S)

    def free_bytes(self, device: str) -> int:
        """Of one device."""
        with connect(self._place) as client:
            client.send(device)
            client.recv()
            client.send(("free",))
            return int(client.recv()[1])


@atexit.register
def _close_all() -> None:
    for place in tuple(Devices._made):
        Devices(place).close()


def connect(place: Path) -> Connection[Any, Any]:
    """To the daemon of that place."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(CONNECT_S)
        caller.connect(str(place / DAEMON))
        _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
    if not descriptors:
        raise ConnectionError(f"the daemon of {place} has ended")
    return Connection(descriptors[0])


class Refused(Exception):
    """The daemon's answer, a CUresult."""

    def __init__(self, result: int) -> None:
        super().__init__(f"result {result}")
        self.result = result


class Gpu:
    """One device in use by this process."""

    def __init__(self, place: str, device: str) -> None:
        """`place`: the node's devices; `device`: a UUID."""
        self._saved: dict[str, bytes] = {}  # device memory while it is in ours
        self._counting, self._asking = threading.Lock(), threading.Lock()
        self._connection: Connection[Any, Any] | None = None
        self._descriptor = -1
        memory = os.memfd_create("fake-gpu")
        os.truncate(memory, mmap.PAGESIZE)
        self._page = mmap.mmap(memory, mmap.PAGESIZE)
        self._page.madvise(mmap.MADV_DONTFORK)  # a fork has the device open and no state on it
        os.close(memory)
        self._connect(place, device)
        struct.pack_into("<Q", self._page, 0, MAGIC)
        threading.Thread(target=self._driver, daemon=True, name="cuda restore").start()

    # -- memory and work -----------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        """Put bytes into device memory; raises MemoryError when there is no room."""
        with self.work():
            try:
                self._ask("write", name, data)
            except Refused as refused:
                raise MemoryError("out of memory") from refused

    def read(self, name: str) -> bytes:
        """Get them back; raises LookupError for what is not there."""
        with self.work():
            try:
                data: bytes = self._ask("read", name)
            except Refused as refused:
                raise LookupError(f"device memory has no {name}") from refused
            return data

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on the device: does not begin while it is locked, and a lock waits for its end."""
        while True:
            self._count(1)
            if not self._word(LOCK):
                break
            self._count(-1)
            time.sleep(REST_S)
        try:
            yield
        finally:
            self._count(-1)

    # -- the driver's thread -------------------------------------------------------------------

    def _driver(self) -> None:
        self._put(THREAD, threading.get_native_id())
        while True:
            command = self._word(COMMAND)
            if command:
                try:
                    result, state = self._carry_out(command)
                except Refused as refused:
                    result, state = refused.result, self._word(STATE)
                except (OSError, EOFError):
                    result, state = OPERATING_SYSTEM, self._word(STATE)
                self._put(STATE, state)
                self._put(RESULT, result)
                self._put(COMMAND, 0)
            time.sleep(REST_S)

    def _carry_out(self, command: int) -> tuple[int, int]:
        """The result, and the state that it leads to; raises Refused with the state as it was."""
        if command == LOCKING:
            return (SUCCESS, LOCKED) if self._drained() else (NOT_READY, RUNNING)
        if command == RESTORING:
            self._restore()
            return SUCCESS, LOCKED
        if command == UNLOCKING:
            self._put(LOCK, 0)
            return SUCCESS, RUNNING
        self._saved = {} if command == SAVING_NOTHING else self._ask("all")
        if command == SAVING_STALE:
            self._ask("drop")
        else:
            self._disconnect()
        return SUCCESS, CHECKPOINTED

    def _drained(self) -> bool:
        """Let no new work begin, unless what was submitted does not end in time."""
        timeout_s = self._word(TIMEOUT_MS) / 1000
        until = time.monotonic() + timeout_s if timeout_s else float("inf")
        self._put(LOCK, 1)
        while self._word(OUTSTANDING) or _communicates():
            if time.monotonic() >= until:
                self._put(LOCK, 0)
                return False
            time.sleep(REST_S)
        return True

    def _restore(self) -> None:
        place = bytes(self._page[PLACE : PLACE + PLACE_BYTES]).split(b"\0")[0].decode()
        (count,) = struct.unpack_from("<I", self._page, COUNT)
        pairs = [bytes(self._page[PAIRS + 32 * i : PAIRS + 32 * (i + 1)]) for i in range(count)]
        devices = {_uuid(pair[:16]): _uuid(pair[16:]) for pair in pairs}
        if devices and set(devices) != self._visible:
            raise Refused(INVALID_VALUE)  # "must contain every checkpointed GPU"
        before, visible = self._device, self._visible
        try:
            self._connect(place, devices.get(before, before))
            for name, data in self._saved.items():
                self._ask("write", name, data)
        except BaseException:
            self._disconnect()
            self._device, self._visible = before, visible
            raise
        self._saved = {}

    # -- the node ------------------------------------------------------------------------------

    def _connect(self, place: str, device: str) -> None:
        self._disconnect()  # what a driver left open
        self._connection = connect(Path(place))
        self._connection.send(device)
        result, devices = self._connection.recv()
        if result:
            raise Refused(result)
        self._device, self._visible = device, set(devices)
        self._descriptor = os.open(Path(place) / f"nvidia{devices.index(device)}", os.O_RDWR)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(OSError, EOFError):
                self._ask("drop")  # and see it done
            self._connection.close()
            self._connection = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ask(self, *request: Any) -> Any:
        with self._asking:
            assert self._connection is not None
            self._connection.send(request)
            result, value = self._connection.recv()
        if result:
            raise Refused(result)
        return value

    # -- the page ------------------------------------------------------------------------------

    def _word(self, offset: int) -> int:
        return int(ctypes.c_uint32.from_buffer(self._page, offset).value)

    def _put(self, offset: int, value: int) -> None:
        ctypes.c_uint32.from_buffer(self._page, offset).value = value

    def _count(self, step: int) -> None:
        with self._counting:
            self._put(OUTSTANDING, self._word(OUTSTANDING) + step)


def _communicates() -> bool:
    """Whether NCCL has a communicator here: no device of it drains while that stands."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            if (thread / "comm").read_text().startswith("NCCL"):
                return True
    return False


def _uuid(raw: bytes) -> str:
    return f"GPU-{uuid.UUID(bytes=raw)}"
