"""Files with a deleted name and another name still: CRIU's `link_remap.N`.

A POSIX semaphore of Python's spawn is such a file: mapped by its temporary name, which is gone,
while `/dev/shm/sem.mp-…` stays. CRIU gives it a name `link_remap.N` for the restore, but takes
that name away again at the end of a dump that lets the tree live. So right after the dump, while
the tree is stopped, their contents are saved beside the images, and made anew before a restore.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coordinator.core.errors import DriverError
from worker_shim.criu.image_file import sync_directory
from worker_shim.criu.images import LinkRemap, link_remaps

INDEX = "link-remaps.json"
CONTENT = "link-remap-{}"


class SavedRemap(msgspec.Struct, frozen=True):
    """One such file: where CRIU wants it, where else it was known, what it was like."""

    link: str
    names: tuple[str, ...]  # names it had beside the deleted one, in the same directory
    content: str  # name of the copy beside the images
    mode: int
    uid: int
    gid: int


def save_remaps(images: Path, pids: Sequence[int]) -> tuple[SavedRemap, ...]:
    """Copy what stands behind every link remap of these images; the tree must still be stopped.

    Raises DriverError naming the file that no process of the tree has any more.
    """
    wanted = link_remaps(images)
    saved = tuple(_save(remap, number, images, pids) for number, remap in enumerate(wanted))
    if saved:
        (images / INDEX).write_bytes(msgspec.json.encode(saved))
    return saved


def saved_remaps(images: Path) -> bool:
    """Whether these images have any, so that `make_remaps` has something to make."""
    return (images / INDEX).exists()


def make_remaps(images: Path) -> tuple[str, ...]:
    """Make the files that the restore expects, contents as at the cut; return their names.

    A name that is there is replaced at once (written aside, renamed), so this can be repeated.
    """
    if not (images / INDEX).exists():
        return ()
    made = []
    for saved in msgspec.json.decode((images / INDEX).read_bytes(), type=tuple[SavedRemap, ...]):
        try:
            _make(saved, images / saved.content)
        except OSError as error:
            raise DriverError(
                f"cannot make {saved.link}: {error.strerror}",
                advice="the file system of that path must exist on this node and have room",
                details=(str(images),),
            ) from error
        made.append(saved.link)
    return tuple(made)


def remove_remaps(images: Path) -> None:
    """Take the `link_remap.N` names of these images away; their other names stay."""
    for remap in link_remaps(images):
        Path(remap.link).unlink(missing_ok=True)


def _save(remap: LinkRemap, number: int, images: Path, pids: Sequence[int]) -> SavedRemap:
    source = _open_file(remap.deleted, pids)
    if source is None:
        raise DriverError(
            f"no process of the worker has the deleted file {remap.deleted} any more",
            advice="try again; the worker changed while it was dumped",
            details=(remap.link,),
        )
    content = CONTENT.format(number)
    status = source.stat()
    with open(source, "rb") as there, open(images / content, "wb") as here:
        shutil.copyfileobj(there, here)
    return SavedRemap(
        link=remap.link,
        names=_names_of(status, Path(remap.link).parent),
        content=content,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
    )


def _open_file(name: str, pids: Sequence[int]) -> Path | None:
    """A path through /proc to the file that a process has open or mapped by this deleted name."""
    for pid in pids:
        for directory in (f"/proc/{pid}/map_files", f"/proc/{pid}/fd"):
            for entry in Path(directory).iterdir():
                if os.readlink(entry) == f"{name} (deleted)":
                    return entry
    return None


def _names_of(status: os.stat_result, directory: Path) -> tuple[str, ...]:
    return tuple(
        entry.path
        for entry in os.scandir(directory)
        if entry.inode() == status.st_ino
        and entry.stat(follow_symlinks=False).st_dev == status.st_dev
        and not entry.name.startswith("link_remap.")
    )


def _make(saved: SavedRemap, content: Path) -> None:
    link = Path(saved.link)
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".allstop-new-{link.name}")
    new.unlink(missing_ok=True)
    with open(content, "rb") as source, open(new, "xb") as target:
        shutil.copyfileobj(source, target)
        os.fchown(target.fileno(), saved.uid, saved.gid)
        os.fchmod(target.fileno(), saved.mode)
    os.replace(new, link)
    for name in saved.names:
        alias = Path(name).with_name(f".allstop-new-{Path(name).name}")
        alias.unlink(missing_ok=True)
        os.link(link, alias)
        os.replace(alias, name)
    sync_directory(link.parent)
