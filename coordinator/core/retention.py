"""Which snapshots of a job may go: a pure function of the snapshots, the rules and the time.

A snapshot stays where any rule keeps it: it is among the last n, or young enough. Without such a
rule all stay. Beyond a limit of stored bytes the oldest go all the same. Never lets go of the
newest, of pinned ones, and of one that is damaged or suspect in place of a good one. Suspect ones
do not count against a good one among the last n.

Order is that of the commits, and no clock. Ages are judged carefully, since each leader stamps
snapshots by a clock of its own that may be wrong by days: a snapshot counts as no older than the
one committed before it, and now is the earlier of what the leader's clock says and of the newest
stamp that it found when it began to lead, with the time that it has watched since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from coordinator.core.errors import BadRequest
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot

UNITS_S = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


@dataclass(frozen=True)
class Going:
    """A snapshot that may go, and why."""

    snapshot: str
    why: str


def check(policy: Retention) -> None:
    """Raise BadRequest for rules that make no sense."""
    if min(policy.keep_last, policy.keep_bytes) < 0 or not 0 <= policy.keep_for_s < float("inf"):
        raise BadRequest("a retention rule is below zero", advice="give a number above zero")
    if not (policy.keep_last or policy.keep_for_s or policy.keep_bytes):
        raise BadRequest("a retention without a rule", advice="switch it off instead")


def told(policy: Retention | None) -> str:
    """The rules as one sentence for people."""
    if policy is None:
        return "every snapshot stays"
    keeps = [f"the last {policy.keep_last}"] if policy.keep_last else []
    keeps += [f"those of the last {span(policy.keep_for_s)}"] if policy.keep_for_s else []
    stay = f"{' and '.join(keeps)} stay" if keeps else "every snapshot stays"
    return f"{stay}, up to {policy.keep_bytes} stored bytes" if policy.keep_bytes else stay


def span(seconds: float) -> str:
    """7d, 36h, 90s: the largest unit that divides it."""
    for unit, unit_s in UNITS_S:
        if seconds >= unit_s and not seconds % unit_s:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


def going(
    snapshots: Sequence[Snapshot], latest: str, policy: Retention | None, now_unix_s: float
) -> tuple[Going, ...]:
    """Those of a job's snapshots that may go, the oldest first, each with the rule that says so.

    `snapshots` in the order of their commits, without those that are being deleted.
    """
    if policy is None or not snapshots:
        return ()
    stays = _always(snapshots) | {latest}
    lets_go: dict[str, str] = {}
    stamps = accumulate((each.committed_unix_s for each in snapshots), max)
    for at, (each, stamp) in enumerate(zip(snapshots, stamps, strict=True)):
        after = snapshots[at + 1 :]
        newer = len(after) if each.suspect else sum(not other.suspect for other in after)
        why = _unkept(policy, newer, now_unix_s - stamp)
        if why and each.snapshot not in stays:
            lets_go[each.snapshot] = why
    lets_go |= _beyond_bytes(snapshots, policy, stays, lets_go)
    return tuple(
        Going(each.snapshot, lets_go[each.snapshot])
        for each in snapshots
        if each.snapshot in lets_go
    )


def judged_now(unix_s: float, newest_found_unix_s: float, watched_s: float) -> float:
    """The time by which ages are told, see above; `newest_found_unix_s` is 0 where none was."""
    if not newest_found_unix_s:
        return unix_s
    return min(unix_s, newest_found_unix_s + watched_s)


def _always(snapshots: Sequence[Snapshot]) -> set[str]:
    """The newest, the newest that is whole, the newest good one, and whatever is pinned."""
    stays = {each.snapshot for each in snapshots if each.pinned}
    stays.add(snapshots[-1].snapshot)
    whole = [each for each in snapshots if not each.damaged]
    good = [each for each in whole if not each.suspect]
    return stays | {each.snapshot for each in (*whole[-1:], *good[-1:])}


def _unkept(policy: Retention, newer: int, age_s: float) -> str:
    """Why no rule keeps a snapshot; empty where one does, or where there is none."""
    if not (policy.keep_last or policy.keep_for_s):
        return ""
    if policy.keep_last and newer < policy.keep_last:
        return ""
    if policy.keep_for_s and age_s <= policy.keep_for_s:
        return ""
    whys = [f"{newer} newer ones are there"] if policy.keep_last else []
    whys += [f"it is older than {span(policy.keep_for_s)}"] if policy.keep_for_s else []
    return f"{' and '.join(whys)}: {told(policy)}"


def _beyond_bytes(
    snapshots: Sequence[Snapshot], policy: Retention, stays: set[str], gone: dict[str, str]
) -> dict[str, str]:
    """The oldest beyond the limit of bytes; what was written for one may be shared by others."""
    if not policy.keep_bytes:
        return {}
    left = [each for each in snapshots if each.snapshot not in gone]
    total = sum(each.stored_bytes or each.image_bytes for each in left)
    beyond: dict[str, str] = {}
    for each in left:
        if total <= policy.keep_bytes:
            break
        if each.snapshot in stays:
            continue
        beyond[each.snapshot] = f"all together have {total} stored bytes, above {policy.keep_bytes}"
        total -= each.stored_bytes or each.image_bytes
    return beyond
