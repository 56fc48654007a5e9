"""What an earlier snapshot of the job holds, read from its manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from coordinator.core.errors import DriverError
from worker_shim.images.chunks import layout as layouts
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.objects.port import ObjectStore
from worker_shim.images.sealing import Sealing

CHUNKS_MAX = 4 << 20  # of one base, over all its workers: some 250 MB of arrays


@dataclass
class Bases:
    """The layouts of one base, and which packs are there; for one put."""

    objects: ObjectStore
    sealing: Sealing
    known: Callable[[str], Layout | None]  # by place: what this shim has in memory still
    _sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # attempt: pack: size

    def layouts(
        self, job: str, base: str, worker: int, workers: int
    ) -> Iterator[tuple[Layout, dict[str, int]]]:
        """Each with the sizes of the packs that are there; the worker's own first.

        What cannot be read is left out: its chunks are stored again.
        """
        chunks = 0
        for other in (worker, *(each for each in range(workers) if each != worker)):
            layout = self._layout(f"{job}/{base}/{other}")
            if layout is not None:
                chunks += len(layout.digests)
                yield layout, self._there(layout)
            if chunks > CHUNKS_MAX:
                return

    def _layout(self, place: str) -> Layout | None:
        name = f"{place}/{layouts.NAME}"
        with suppress(DriverError):
            return (
                self.known(place)
                or layouts.decode(self.objects.get(name), name, "", self.sealing)[1]
            )
        return None

    def _there(self, layout: Layout) -> dict[str, int]:
        found: dict[str, int] = {}
        for attempt in {pack.name.rpartition("/")[0] for pack in layout.packs}:
            if attempt not in self._sizes:
                listing = self.objects.list(f"{attempt}/")
                self._sizes[attempt] = {each.name: each.size_bytes for each in listing}
            found |= self._sizes[attempt]
        return found
