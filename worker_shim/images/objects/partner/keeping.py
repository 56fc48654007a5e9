"""What a shim keeps for others: objects in a folder of their own, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from coordinator.core.errors import DriverError
from worker_shim.images.objects.port import Listed, ObjectMissing, ObjectStore, Part

RESERVE_BYTES = 256 << 20  # of the disk stay free for the node's own


class Keeping:
    """A store of objects with a limit; the bytes that are coming count already."""

    def __init__(
        self, store: ObjectStore, *, limit_bytes: int = 0, reserve_bytes: int = RESERVE_BYTES
    ) -> None:
        """`limit_bytes` 0: as much as the disk holds, less the reserve. Counts what is there."""
        self._store, self._lock = store, Lock()
        self._limit_bytes, self._reserve_bytes = limit_bytes, reserve_bytes
        self._kept_bytes = sum(each.size_bytes for each in store.list(""))

    def free_bytes(self) -> int:
        """Room left for others."""
        free = self._store.free_bytes() - self._reserve_bytes
        if self._limit_bytes:
            free = min(free, self._limit_bytes - self._kept_bytes)
        return max(0, free)

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Keep an object; raises DriverError where the limit, or the disk, does not hold it."""
        size = sum(memoryview(part).nbytes for part in parts)
        with self._lock:
            if size > self.free_bytes():
                raise DriverError(
                    f"no room left for what others keep here: {size} bytes wanted,"
                    f" {self.free_bytes()} left",
                    advice="a higher --partner-limit, more disk, or fewer snapshots",
                )
            self._kept_bytes += size
        made = False
        try:
            made = self._store.put(name, parts)
        finally:
            if not made:
                with self._lock:
                    self._kept_bytes -= size
        return made

    def delete(self, name: str) -> None:
        """Remove an object; no error when it is gone."""
        with self._lock:
            try:
                size = self._store.size(name)
            except ObjectMissing:
                return
            self._store.delete(name)
            self._kept_bytes -= size

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        return self._store.get(name, start=start, length=length)

    def size(self, name: str) -> int:
        """As the port says."""
        return self._store.size(name)

    def list(self, prefix: str) -> Iterator[Listed]:
        """As the port says."""
        return self._store.list(prefix)

    def sweep(self) -> tuple[str, ...]:
        """As the port says."""
        return self._store.sweep()

    def close(self) -> None:
        """Let go of the folder."""
        self._store.close()
