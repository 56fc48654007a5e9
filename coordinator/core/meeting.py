"""What ranks tell each other while they rebuild their communicators: a bounded table of keys.

A meeting is of one job and one action (attempt or restore). Every shim of the job has its table,
and the leader has one from which newcomers are told what they missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

NAME_BYTES_MAX = 512
VALUE_BYTES_MAX = 64 << 10
KEYS_MAX = 16_384  # of one meeting; NCCL has one for each communicator
MEETING_BYTES_MAX = 8 << 20  # names and values of one meeting
RANKS_MAX = 65_536  # that are remembered as having come


@dataclass(frozen=True)
class Key:
    """One key with its value, as it travels between nodes."""

    name: bytes
    value: bytes = b""
    deleted: bool = False

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return len(self.name) + len(self.value)


@dataclass
class Table:
    """The keys of one meeting; what does not fit is refused and changes nothing."""

    _values: dict[bytes, bytes] = field(default_factory=dict)
    _size_bytes: int = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def size_bytes(self) -> int:
        """Names and values together."""
        return self._size_bytes

    def get(self, name: bytes) -> bytes | None:
        """Value of a key; None while nobody has set it."""
        return self._values.get(name)

    def entries(self) -> Iterator[Key]:
        """Every key, in the order in which they were set first."""
        return (Key(name, value) for name, value in self._values.items())

    def apply(self, key: Key) -> bool:
        """Set or delete a key; False when there is no room for it."""
        before = self._values.get(key.name)
        gone = 0 if before is None else len(key.name) + len(before)
        if key.deleted:
            self._values.pop(key.name, None)
            self._size_bytes -= gone
            return True
        size_bytes = self._size_bytes - gone + key.size_bytes
        too_long = len(key.name) > NAME_BYTES_MAX or len(key.value) > VALUE_BYTES_MAX
        too_many = before is None and len(self._values) >= KEYS_MAX
        if too_long or too_many or size_bytes > MEETING_BYTES_MAX:
            return False
        self._values[key.name] = key.value
        self._size_bytes = size_bytes
        return True


def batches(keys: Iterable[Key], *, count_max: int, bytes_max: int) -> Iterator[list[Key]]:
    """Keys in lists of so many keys and about so many bytes."""
    batch: list[Key] = []
    size_bytes = 0
    for key in keys:
        if batch and (len(batch) >= count_max or size_bytes + key.size_bytes > bytes_max):
            yield batch
            batch, size_bytes = [], 0
        batch.append(key)
        size_bytes += key.size_bytes
    if batch:
        yield batch
