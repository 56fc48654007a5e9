"""What is in the store of a job, and removing what nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as version_1
from worker_shim.images.chunks import layout as layouts
from worker_shim.images.chunks import meeting
from worker_shim.images.chunks.reading import find_manifest
from worker_shim.images.objects.port import Listed, ObjectStore
from worker_shim.images.port import Collected, Kept
from worker_shim.images.sealing import Sealing

PACKS = "packs"


def actions(objects: ObjectStore, job: str) -> tuple[str, ...]:
    """Every attempt of the job that has an object, sorted."""
    found = {each.name.split("/")[1] for each in objects.list(f"{job}/")}
    return tuple(sorted(found))


def delete(objects: ObjectStore, place: str) -> None:
    """Remove a worker's images and the packs that it wrote; safe to repeat after a crash."""
    attempt, _, worker = place.rpartition("/")
    for name in (f"{place}/{layouts.NAME}", f"{place}/{version_1.FILE_NAME}"):
        objects.delete(name)
    for prefix in (f"{place}/", f"{attempt}/{PACKS}/{worker}."):
        for found in list(objects.list(prefix)):
            objects.delete(found.name)


def collect(
    objects: ObjectStore,
    sealing: Sealing,
    job: str,
    dead: Sequence[str],
    keep: Sequence[Kept],
    dry_run: bool,
) -> Collected:
    """Remove what `dead` wrote and nothing in `keep` needs.

    In this order, so that a crash anywhere leaves no manifest without its packs: manifests, then
    the rest. Raises DriverError before anything is removed where a manifest to keep is unreadable.
    """
    needed = _needed(objects, sealing, keep)
    places = tuple(f"{kept.place}/" for kept in keep)
    gone = [
        each
        for action in dead
        for each in objects.list(f"{job}/{action}/")
        if each.name not in needed and not each.name.startswith(places)
    ]
    gone.sort(key=lambda each: _turn(each))
    for each in () if dry_run else gone:
        objects.delete(each.name)
    return Collected(len(gone), sum(each.size_bytes for each in gone))


def _needed(objects: ObjectStore, sealing: Sealing, keep: Sequence[Kept]) -> set[str]:
    needed = set[str]()
    for kept in keep:
        try:
            _, layout = find_manifest(objects, kept.place, kept.digest, sealing)
        except DriverError as error:
            raise DriverError(
                f"nothing is removed: {kept.place}, which is to stay, cannot be read",
                advice="whatever it needs would be removed; delete that snapshot first, if it is "
                "lost anyway",
                details=(str(error), *error.details),
            ) from error
        if layout is not None:
            needed |= {pack.name for pack in layout.packs}
    return needed


def _turn(each: Listed) -> int:
    last = each.name.rpartition("/")[2]
    if last in (layouts.NAME, version_1.FILE_NAME):
        return 0
    return 1 if last == meeting.NAME else 2
