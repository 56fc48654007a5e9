"""The names that were noted last, and no more than so many."""

from __future__ import annotations

from collections.abc import Iterator

LIMIT = 4_096  # of a worker's actions: a checkpoint a minute, all given up, for nearly three days


class Recent:
    """A set of names that forgets the one noted longest ago when there are too many."""

    def __init__(self, limit: int = LIMIT) -> None:
        """`limit` is how many are kept, at least 1."""
        self._limit = limit
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Note a name; one that is known counts as noted now."""
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > self._limit:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        """Forget a name; no error when it is not known."""
        self._names.pop(name, None)
