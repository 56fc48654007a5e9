"""What a rank uses of a device: memory that is elsewhere, work, and the driver's thread in it.

Only the standard library, so that it runs in any rank. While the rank works it has a device file
open, which cannot be dumped, and its device memory is not in the process.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# as in layout.h
MAGIC = 0x00A11570F0000001
STATE, LOCK, OUTSTANDING, COMMAND, RESULT, THREAD = 8, 12, 16, 20, 24, 28
PLACE, PLACE_BYTES, COUNT, PAIRS = 32, 256, 288, 296
SAVE, RESTORE = 1, 2
OUT_OF_MEMORY, OPERATING_SYSTEM, INVALID_VALUE, NO_DEVICE = 2, 304, 1, 100
REST_S = 0.002
DEVICES = "devices.json"


class Devices:
    """The devices of one node: a folder with a file for each, and their memory."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.sizes: dict[str, int] = json.loads((place / DEVICES).read_text())

    @classmethod
    def make(cls, place: Path, sizes: dict[str, int]) -> Devices:
        """Devices of these UUIDs and sizes; their files are nvidia0, nvidia1 …"""
        place.mkdir(parents=True, exist_ok=True)
        for number in range(len(sizes)):
            (place / f"nvidia{number}").touch()
        (place / DEVICES).write_text(json.dumps(sizes))
        return cls(place)

    def file(self, device: str) -> Path:
        """The device file."""
        return self._place / f"nvidia{list(self.sizes).index(device)}"

    def memory(self, device: str) -> Path:
        """Where this process's part of its memory is."""
        return self._place / "memory" / device / _owner(os.getpid())

    def free_bytes(self, device: str) -> int:
        """Without what processes had that are gone."""
        used = 0
        owners = self._place / "memory" / device
        for owner in owners.iterdir() if owners.exists() else ():
            if _owner(int(owner.name.split("-")[0])) != owner.name:
                shutil.rmtree(owner, ignore_errors=True)
                continue
            used += sum(each.stat().st_size for each in owner.iterdir())
        return self.sizes[device] - used


def _owner(pid: int) -> str:
    """A process by pid and start; empty when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid}-{fields[19]}"


class Gpu:
    """One device in use by this process."""

    def __init__(self, place: str, device: str, *, stale: bool = False) -> None:
        """`place`: the node's devices; `device`: a UUID.

        `stale`: keep the file open over a checkpoint, as old drivers do with NVML in the process.
        """
        self._device, self._stale = device, stale
        self._saved: dict[str, bytes] = {}  # device memory while it is in ours
        self._visible: set[str] = set()  # devices of the node where it was saved
        self._work = threading.Lock()
        memory = os.memfd_create("fake-gpu")
        os.truncate(memory, mmap.PAGESIZE)
        self._page = mmap.mmap(memory, mmap.PAGESIZE)
        self._page.madvise(mmap.MADV_DONTFORK)  # a fork has the device open and no state on it
        os.close(memory)
        self._connect(place)
        struct.pack_into("<Q", self._page, 0, MAGIC)
        threading.Thread(target=self._driver, daemon=True, name="cuda restore").start()

    # -- memory and work -----------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        """Put bytes into device memory; raises MemoryError when there is no room."""
        with self.work():
            self._put_memory(name, data)

    def read(self, name: str) -> bytes:
        """Get them back."""
        with self.work():
            return (self._memory / name).read_bytes()

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
        self._saved = {each.name: each.read_bytes() for each in self._memory.iterdir()}
        self._visible = set(self._devices.sizes)
        self._disconnect()
        return 0

    def _restore(self) -> int:
        place = bytes(self._page[PLACE : PLACE + PLACE_BYTES]).split(b"\0")[0].decode()
        (count,) = struct.unpack_from("<I", self._page, COUNT)
        pairs = [bytes(self._page[PAIRS + 32 * i : PAIRS + 32 * (i + 1)]) for i in range(count)]
        devices = {_uuid(pair[:16]): _uuid(pair[16:]) for pair in pairs}
        if devices and set(devices) != self._visible:
            return INVALID_VALUE  # "must contain every checkpointed GPU"
        device = devices.get(self._device, self._device)
        if device not in Devices(Path(place)).sizes:
            return NO_DEVICE
        self._device = device
        self._connect(place)
        try:
            for name, data in self._saved.items():
                self._put_memory(name, data)
        except (OSError, MemoryError):
            self._disconnect()
            raise
        self._saved.clear()
        return 0

    # -- the node ------------------------------------------------------------------------------

    def _connect(self, place: str) -> None:
        self._devices = Devices(Path(place))
        self._memory = self._devices.memory(self._device)
        self._memory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._devices.file(self._device), os.O_RDWR)

    def _disconnect(self) -> None:
        shutil.rmtree(self._memory)
        if not self._stale:
            os.close(self._descriptor)

    def _put_memory(self, name: str, data: bytes) -> None:
        file = self._memory / name
        there = file.stat().st_size if file.exists() else 0
        if len(data) - there > self._devices.free_bytes(self._device):
            raise MemoryError("out of memory")
        file.write_bytes(data)

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
