"""A process that trains on a device with PyTorch, as it is told (see `serving`; it has no copy)."""

from __future__ import annotations

from bench.gpu.place import Place
from bench.gpu.serving import Told
from bench.gpu.training import Training


class Torch:
    """One training for each name."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._trainings: dict[str, Training] = {}

    def fill(self, name: str, mib: str) -> None:
        """A model of that size, after its first step."""
        self._trainings[name] = Training(self._place, int(mib))
        self._trainings[name].step()

    def sum(self, name: str) -> str:
        """Digest of parameters and optimizer."""
        return self._trainings[name].digest()

    def step(self, name: str, count: str) -> str:
        """Steps of its optimizer; the digest after them."""
        for _ in range(int(count)):
            self._trainings[name].step()
        return self.sum(name)

    def work(self, seconds: str) -> None:
        """Begun, not waited for."""
        self._place.work(float(seconds))


if __name__ == "__main__":
    Told(Torch(Place())).serve()
