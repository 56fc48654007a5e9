"""How long a job really stood still: the steps of its ranks, watched from outside at 1 kHz.

This is not what allstop says of itself: the control pages are read while a checkpoint runs, and
the gap between two steps is taken, less the usual time of a step.
"""

from __future__ import annotations

import itertools
import mmap
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from worker_shim.hook.page import HEADER_BYTES, SLOT_BYTES, SLOT_FIELDS

SAMPLE_S = 0.001
BOUNDARY = SLOT_FIELDS.index("boundary") * 8
JOIN_S = 5.0


class StepWatch:
    """Times of every step of every rank, as a context manager around what is to be measured."""

    def __init__(self, pages: Sequence[Path], slots: int) -> None:
        """`pages` as this process can open them (below /proc/PID/root), `slots` ranks in each."""
        self._maps = []
        for page in pages:
            with page.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        self._places = [
            (index, HEADER_BYTES + slot * SLOT_BYTES + BOUNDARY)
            for index in range(len(pages))
            for slot in range(slots)
        ]
        self._times: dict[tuple[int, int], list[float]] = {place: [] for place in self._places}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StepWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(JOIN_S)
        for page in self._maps:
            page.close()

    def _watch(self) -> None:
        last = {place: self._read(place) for place in self._places}
        while not self._over.is_set():
            now = time.monotonic()
            for place in self._places:
                boundary = self._read(place)
                if boundary != last[place]:
                    last[place] = boundary
                    self._times[place].append(now)
            time.sleep(SAMPLE_S)

    def _read(self, place: tuple[int, int]) -> bytes:
        index, offset = place
        return self._maps[index][offset : offset + 8]

    def standstill_ms(self) -> float:
        """The longest gap between two steps of a rank, less its median gap; the worst rank's."""
        worst = 0.0
        for times in self._times.values():
            gaps = [after - before for before, after in itertools.pairwise(times)]
            if len(gaps) >= 3:
                worst = max(worst, max(gaps) - statistics.median(gaps))
        return worst * 1000

    def step_ms(self) -> float:
        """The median time of a step."""
        gaps = [
            after - before
            for times in self._times.values()
            for before, after in itertools.pairwise(times)
        ]
        return statistics.median(gaps) * 1000 if gaps else 0.0
