"""ObjectStore in memory, for tests of whoever uses one; it can be slow, full, away or hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.core.errors import DriverError
from worker_shim.images.objects.port import Listed, ObjectMissing, Part


@dataclass
class MemoryObjects:
    """Keeps objects as bytes.

    `before` is called with the method's and the object's name before every call and may raise;
    `bytes_per_s` makes every call take the time that its bytes take at this rate.
    """

    identity: str = "memory-store"
    scheme: str = "memory"
    objects: dict[str, bytes] = field(default_factory=dict)
    room_bytes: int = 1 << 62
    bytes_per_s: float = 0.0
    before: Callable[[str, str], None] = lambda method, name: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    _written: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Keep it unless there is one."""
        self._begin("put", name)
        data = b"".join(parts)
        self._take_time(len(data))
        with self._lock:
            if name in self.objects:
                return False
            if len(data) > self.room_bytes:
                raise DriverError("no room left in memory", advice="make room")
            self.room_bytes -= len(data)
            self.objects[name] = data
            self._written[name] = time.time()
        return True

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """What there is of the part."""
        self._begin("get", name)
        data = self._found(name)
        part = data[start:] if length is None else data[start : start + length]
        self._take_time(len(part))
        return part

    def size(self, name: str) -> int:
        """In bytes."""
        self._begin("size", name)
        return len(self._found(name))

    def list(self, prefix: str) -> Iterator[Listed]:
        """As they are now."""
        self._begin("list", prefix)
        with self._lock:
            found = [
                Listed(name, len(data), self._written.get(name, 0.0))
                for name, data in self.objects.items()
                if name.startswith(prefix)
            ]
        yield from found

    def delete(self, name: str) -> None:
        """Forget it."""
        self._begin("delete", name)
        with self._lock:
            gone = self.objects.pop(name, None)
            self.room_bytes += len(gone or b"")

    def free_bytes(self) -> int:
        """As set, less what is kept."""
        return self.room_bytes

    def sweep(self) -> tuple[str, ...]:
        """Nothing is ever half-written here."""
        return ()

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, method: str, name: str) -> None:
        self.calls.append((method, name))
        self.before(method, name)

    def _found(self, name: str) -> bytes:
        with self._lock:
            if name not in self.objects:
                raise ObjectMissing(f"the image store has no {name}")
            return self.objects[name]

    def _take_time(self, count: int) -> None:
        if self.bytes_per_s:
            time.sleep(count / self.bytes_per_s)
