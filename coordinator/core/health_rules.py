"""What trouble of a GPU leads to: rules as data, the first that applies counts.

They come from a table that is read elsewhere; the core only looks things up in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.health_records import GpuTrouble, TroubleKind


class Verdict(StrEnum):
    """What is done about a GPU's trouble."""

    IGNORE = "ignore"  # it is told, and that is all
    DRAIN = "drain"  # its node's jobs are saved and go on elsewhere
    RESTORE = "restore"  # nothing can be saved: they go on elsewhere from their last snapshot


@dataclass(frozen=True)
class HealthRule:
    """One row: of which trouble it speaks, and what that leads to."""

    code: str  # stable word for programs, its own
    kind: TroubleKind
    verdict: Verdict
    words: str  # what it is, for people
    ranges: tuple[tuple[int, int], ...] = ()  # codes, both ends included; empty: all
    uncorrected: bool = False  # what is saved through the GPU may be wrong
    deadline_s: float = 0.0  # drain: for the last checkpoint to be whole

    def applies(self, trouble: GpuTrouble) -> bool:
        """Whether it speaks of this trouble."""
        if trouble.kind is not self.kind:
            return False
        return not self.ranges or any(low <= trouble.code <= high for low, high in self.ranges)


UNKNOWN = HealthRule(
    "unknown", TroubleKind.XID, Verdict.IGNORE, "which the table of GPU trouble does not have"
)


@dataclass(frozen=True)
class HealthRules:
    """The whole table, in its order."""

    rules: tuple[HealthRule, ...] = ()

    def of(self, trouble: GpuTrouble) -> HealthRule:
        """The rule for a trouble; what no rule speaks of is ignored, and told."""
        return next((rule for rule in self.rules if rule.applies(trouble)), UNKNOWN)

    def told(self, trouble: GpuTrouble) -> str:
        """One trouble in words: `GPU 0 (GPU-…): Xid 79, it has fallen off the bus`."""
        gpu = f"GPU {trouble.index}" if trouble.index >= 0 else "a GPU"
        name = f"{gpu} ({trouble.uuid})" if trouble.uuid else gpu
        what = f"Xid {trouble.code}, " if trouble.kind is TroubleKind.XID else ""
        return f"{name}: {what}{self.of(trouble).words}"

    def sick(self, troubles: Iterable[GpuTrouble]) -> dict[str, str]:
        """Why GPUs are not to be used, by UUID: those with trouble that is not ignored."""
        found: dict[str, list[str]] = {}
        for each in troubles:
            rule = self.of(each)
            if rule.verdict is not Verdict.IGNORE:
                what = f"Xid {each.code}, {rule.words}" if each.code else rule.words
                found.setdefault(each.uuid, []).append(what)
        return {uuid: "; ".join(dict.fromkeys(whats)) for uuid, whats in found.items()}

    def uncorrected(self, troubles: Iterable[GpuTrouble]) -> list[str]:
        """In words, those after which what is in the GPU's memory may be wrong."""
        return [self.told(each) for each in troubles if self.of(each).uncorrected]
