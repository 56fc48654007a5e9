"""The fence: the highest epoch this node has seen, on disk, so that no old leader is obeyed."""

from __future__ import annotations

import os
from pathlib import Path

from coordinator.core.errors import DriverError, Fenced, SetupError

FILE_NAME = "epoch"


class Fence:
    """Remembers the highest epoch across restarts of the shim."""

    def __init__(self, directory: Path) -> None:
        """Read what is on disk; raises SetupError when the file is damaged (never guess lower)."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = directory / FILE_NAME
        text = self._path.read_text() if self._path.exists() else "0\n"
        if not text.strip().isdigit():
            raise SetupError(
                f"{self._path} does not hold an epoch: {text[:40]!r}",
                advice="write the highest epoch of this cluster into it (or 0 for a new cluster)",
            )
        self._highest = int(text)

    @property
    def highest(self) -> int:
        """The highest epoch seen."""
        return self._highest

    def admit(self, epoch: int) -> None:
        """Let this epoch pass or raise Fenced; a higher one is on disk before this returns.

        Raises DriverError, and obeys nobody, where it cannot be kept. A crash half-way leaves the
        old file or the new one, never a part of either.
        """
        self.require(epoch)
        if epoch > self._highest:
            try:
                self._write(epoch)
            except OSError as error:
                raise DriverError(
                    f"epoch {epoch} cannot be kept in {self._path}: {error.strerror}",
                    advice="make room there: without it this node obeys no coordinator, since it "
                    "could not tell an old one from a new one after a restart",
                ) from error
            self._highest = epoch

    def require(self, epoch: int) -> None:
        """Raise Fenced when a higher epoch has been seen, perhaps since this one was admitted."""
        if epoch < self._highest:
            raise Fenced(
                f"epoch {epoch} is over: this node has seen epoch {self._highest}",
                advice="nothing to do: the coordinator that spoke is not the leader any more",
            )

    def _write(self, epoch: int) -> None:
        temporary = self._path.with_suffix(".new")
        with open(temporary, "w") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
