"""What a rank uses of a device: memory that is elsewhere, work, and the driver's thread in it.

Only the standard library, so that it runs in any rank. While the rank works, it has a connection to
the daemon and a device file open, and neither can be dumped.
"""

from __future__ import annotations

import base64
import ctypes
import json
import mmap
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# as in layout.h
MAGIC = 0x00A11570F0000001
STATE, LOCK, OUTSTANDING, COMMAND, RESULT, THREAD = 8, 12, 16, 20, 24, 28
SOCKET, SOCKET_BYTES, COUNT, PAIRS = 32, 256, 288, 296
SAVE, RESTORE = 1, 2
OUT_OF_MEMORY, OPERATING_SYSTEM, INVALID_VALUE = 2, 304, 1
REST_S = 0.002


class Gpu:
    """One device in use by this process."""

    def __init__(self, daemon: str, device: str, file: str, *, stale: bool = False) -> None:
        """`daemon`: its socket; `device`: a UUID; `file`: the device file.

        `stale`: keep the file open over a checkpoint, as old drivers do with NVML in the process.
        """
        self._device, self._file, self._stale = device, file, stale
        self._names: set[str] = set()
        self._saved: dict[str, bytes] = {}  # device memory while it is in ours
        self._talk = threading.Lock()
        self._work = threading.Lock()
        memory = os.memfd_create("fake-gpu")
        os.truncate(memory, mmap.PAGESIZE)
        self._page = mmap.mmap(memory, mmap.PAGESIZE)
        os.close(memory)
        self._connect(daemon)
        struct.pack_into("<Q", self._page, 0, MAGIC)
        threading.Thread(target=self._driver, daemon=True, name="cuda restore").start()

    # -- memory and work -----------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        """Put bytes into device memory; raises MemoryError when there is no room."""
        with self.work():
            self._ask({"do": "write", "name": name, "data": base64.b64encode(data).decode()})
            self._names.add(name)

    def read(self, name: str) -> bytes:
        """Get them back."""
        with self.work():
            return base64.b64decode(self._ask({"do": "read", "name": name})["data"])

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
                    result = self._save() if command == SAVE else self._restore()
                except OSError:
                    result = OPERATING_SYSTEM
                except MemoryError:
                    result = OUT_OF_MEMORY
                self._put(RESULT, result)
                self._put(COMMAND, 0)
            time.sleep(REST_S)

    def _save(self) -> int:
        for name in self._names:
            data = self._ask({"do": "read", "name": name})["data"]
            self._saved[name] = base64.b64decode(data)
        self._disconnect()
        return 0

    def _restore(self) -> int:
        text = bytes(self._page[SOCKET : SOCKET + SOCKET_BYTES])
        (count,) = struct.unpack_from("<I", self._page, COUNT)
        pairs = [bytes(self._page[PAIRS + 32 * i : PAIRS + 32 * (i + 1)]) for i in range(count)]
        devices = {_uuid(pair[:16]): _uuid(pair[16:]) for pair in pairs}
        if devices and self._device not in devices:
            return INVALID_VALUE
        self._device = devices.get(self._device, self._device)
        self._connect(text.split(b"\0")[0].decode())
        try:
            for name, data in self._saved.items():
                sent = base64.b64encode(data).decode()
                self._ask({"do": "write", "name": name, "data": sent})
        except (OSError, MemoryError):
            self._disconnect()
            raise
        self._saved.clear()
        return 0

    # -- the daemon ----------------------------------------------------------------------------

    def _connect(self, daemon: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(daemon)
        self._lines = self._socket.makefile("rb")
        self._descriptor = os.open(self._file, os.O_RDWR)

    def _disconnect(self) -> None:
        self._lines.close()
        self._socket.close()
        if not self._stale:
            os.close(self._descriptor)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._talk:
            self._socket.sendall(json.dumps({"uuid": self._device, **request}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._lines.readline())
        if answer.get("error") == "out of memory":
            raise MemoryError(answer["error"])
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    # -- the page ------------------------------------------------------------------------------

    def _word(self, offset: int) -> int:
        return int(ctypes.c_uint32.from_buffer(self._page, offset).value)

    def _put(self, offset: int, value: int) -> None:
        ctypes.c_uint32.from_buffer(self._page, offset).value = value

    def _count(self, step: int) -> None:
        with self._work:
            self._put(OUTSTANDING, self._word(OUTSTANDING) + step)


def _uuid(raw: bytes) -> str:
    return f"GPU-{uuid.UUID(bytes=raw)}"
