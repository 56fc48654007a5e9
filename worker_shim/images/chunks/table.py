"""Digests of chunks by the million: which are equal, which are known. Arrays, no object for each.

Compared by their first eight bytes first and then whole. Two chunks that agree in the first eight
and differ later are taken for different ones; one of them may be stored twice for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker_shim.images.chunks.cutting import DIGEST_BYTES

Digests = NDArray[np.uint64]  # (n, 4)
Places = NDArray[np.int64]


def as_digests(data: bytes | bytearray) -> Digests:
    """Digests that stand one after another in bytes."""
    return np.frombuffer(bytes(data), np.uint64).reshape(-1, DIGEST_BYTES // 8)


def distinct(digests: Digests) -> tuple[Places, Places]:
    """Where each different digest stands first, in order; and which of them each digest is."""
    order = np.argsort(digests[:, 0], kind="stable")
    sorted_digests = digests[order]
    new = np.ones(len(order), bool)
    new[1:] = (sorted_digests[1:] != sorted_digests[:-1]).any(axis=1)
    group = np.cumsum(new) - 1
    firsts = order[new]
    by_place = np.argsort(firsts)
    rank = np.empty_like(by_place)
    rank[by_place] = np.arange(len(by_place))
    which = np.empty(len(order), np.int64)
    which[order] = rank[group]
    return firsts[by_place], which


class Table:
    """Looks digests up in a set of them."""

    def __init__(self, digests: Digests) -> None:
        """Sorts once."""
        self._digests = digests
        self._order = np.argsort(digests[:, 0], kind="stable")
        self._firsts = digests[self._order, 0]

    def find(self, wanted: Digests) -> Places:
        """Where each wanted digest stands; -1 where it does not."""
        if not len(self._order) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._firsts, wanted[:, 0])
        places = self._order[np.minimum(at, len(self._order) - 1)]
        same = (self._digests[places] == wanted).all(axis=1)
        return np.where(same, places, -1)
