"""All trouble that the GPUs of this node have had since they were reset, from every source.

What was there at the first look is from before this shim, whose workers began after it: it is known
and not fresh. What comes later is fresh for a while after a leader was told of it first, so that
the next leader does something about it where that one could not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from coordinator.core.health_records import GpuTrouble, TroubleKind

FRESH_S = 120.0  # from the first time that it was told
KEPT_MAX = 256  # troubles of a node

K = TroubleKind
Key = tuple[str, TroubleKind, int]  # GPU, kind, code


@dataclass(frozen=True)
class Counters:
    """What one look at one GPU says; None: this source does not know."""

    uuid: str
    index: int
    lost: bool | None = None
    ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: int | None = None


@dataclass
class _Known:
    """One trouble, and since when it is told."""

    trouble: GpuTrouble
    before: bool  # it was there when this shim began
    told_at: float | None = None


@dataclass
class Troubles:
    """What is known; `changed` is called when that is something else."""

    changed: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _known: dict[Key, _Known] = field(default_factory=dict)
    _ecc: dict[tuple[str, str], int] = field(default_factory=dict)  # by source and GPU, as counted
    _looked: set[tuple[str, str]] = field(default_factory=set)  # by source and GPU

    def now(self) -> tuple[GpuTrouble, ...]:
        """All of it, as it is told."""
        return tuple(
            replace(known.trouble, fresh=self._fresh(known)) for known in self._known.values()
        )

    def told(self) -> None:
        """A leader was told all of it."""
        for known in self._known.values():
            known.told_at = self.clock() if known.told_at is None else known.told_at

    def forget(self) -> None:
        """All GPUs are others now."""
        self._known.clear()
        self.changed()

    def _fresh(self, known: _Known) -> bool:
        if known.before:
            return False
        return known.told_at is None or self.clock() - known.told_at < FRESH_S

    # -- what sources see ----------------------------------------------------------------------

    def xid(self, uuid: str, index: int, code: int, source: str, *, before: bool = False) -> None:
        """The driver has told an Xid; where two sources tell of it, the first one counts it."""
        known = self._known.get((_gpu(uuid, index), K.XID, code))
        if known is None:
            self._keep(GpuTrouble(uuid, index, K.XID, code, 1, source), before=before)
        elif known.trouble.source == source and not before:
            self._keep(replace(known.trouble, count=known.trouble.count + 1), before=False)

    def looked(self, seen: Counters, source: str) -> None:
        """What the counters say; the first look of a source tells of before."""
        place = (source, _gpu(seen.uuid, seen.index))
        before = place not in self._looked
        self._looked.add(place)
        if seen.ecc is not None:
            if seen.ecc < self._ecc.get(place, 0):
                self._reset(seen)
            self._ecc[place] = seen.ecc
            self._count(seen, K.ECC, seen.ecc, source, before=before)
        self._flag(seen, K.LOST, seen.lost, source, before=before)
        self._flag(seen, K.REMAP_PENDING, seen.remap_pending, source, before=before)
        self._flag(seen, K.REMAP_FAILED, seen.remap_failed, source, before=before)
        if seen.recovery is not None:
            self._recovery(seen, seen.recovery, source, before=before)

    # -- pieces ----------------------------------------------------------------------------------

    def _count(
        self, seen: Counters, kind: TroubleKind, count: int, source: str, *, before: bool
    ) -> None:
        known = self._known.get((_gpu(seen.uuid, seen.index), kind, 0))
        if count > (known.trouble.count if known is not None else 0):
            before = before and (known is None or known.before)
            self._keep(GpuTrouble(seen.uuid, seen.index, kind, 0, count, source), before=before)

    def _flag(
        self, seen: Counters, kind: TroubleKind, there: bool | None, source: str, *, before: bool
    ) -> None:
        key = (_gpu(seen.uuid, seen.index), kind, 0)
        if there and key not in self._known:
            self._keep(GpuTrouble(seen.uuid, seen.index, kind, 0, 1, source), before=before)
        elif there is False and key in self._known and self._known[key].trouble.source == source:
            if kind is K.LOST:
                self._reset(seen)
            else:
                self._drop(key)

    def _recovery(self, seen: Counters, action: int, source: str, *, before: bool) -> None:
        gpu = _gpu(seen.uuid, seen.index)
        for key, known in list(self._known.items()):
            mine = key[:2] == (gpu, K.RECOVERY)
            if mine and key[2] != action and known.trouble.source == source:
                self._drop(key)
        if action and (gpu, K.RECOVERY, action) not in self._known:
            trouble = GpuTrouble(seen.uuid, seen.index, K.RECOVERY, action, 1, source)
            self._keep(trouble, before=before)

    def _reset(self, seen: Counters) -> None:
        """The GPU was reset: what it had before is over."""
        gpu = _gpu(seen.uuid, seen.index)
        for key in [key for key in self._known if key[0] == gpu]:
            self._drop(key)

    def _keep(self, trouble: GpuTrouble, *, before: bool) -> None:
        key = (_gpu(trouble.uuid, trouble.index), trouble.kind, trouble.code)
        self._known.pop(key, None)
        self._known[key] = _Known(trouble, before)
        while len(self._known) > KEPT_MAX:
            self._known.pop(next(iter(self._known)))
        self.changed()

    def _drop(self, key: Key) -> None:
        self._known.pop(key, None)
        self.changed()


def _gpu(uuid: str, index: int) -> str:
    """A GPU by its name; sources may count GPUs otherwise."""
    return uuid or f"GPU {index}"


def counters_of(printed: Mapping[str, object]) -> Counters:
    """One GPU as the watcher prints it; raises KeyError, TypeError or ValueError."""

    def flag(name: str) -> bool | None:
        return bool(printed[name]) if name in printed else None

    def number(name: str) -> int | None:
        return int(str(printed[name])) if name in printed else None

    return Counters(
        uuid=str(printed["uuid"]),
        index=int(str(printed["index"])),
        lost=flag("lost"),
        ecc=number("ecc"),
        remap_pending=flag("remap_pending"),
        remap_failed=flag("remap_failed"),
        recovery=number("recovery"),
    )
