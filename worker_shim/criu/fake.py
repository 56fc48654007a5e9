"""Images without CRIU: a directory with one JSON file that says what is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint
from worker_shim.criu.port import DumpStats, ImageFacts, NamedFile
from worker_shim.network.port import Sockets

FILE = "fake-images.json"


class FakeImageDriver:
    """`ImageDriver` for tests.

    `of_tree` and `sockets_of_tree` are what every dump finds; `restored` the roots that restores
    brought back; the name of a method in `broken` makes it raise.
    """

    def __init__(self, of_tree: ImageFacts | None = None, sockets: Sockets | None = None) -> None:
        self.of_tree = of_tree
        self.sockets_of_tree = sockets or Sockets((), ())
        self.of_names: tuple[NamedFile, ...] = ()
        self.restored: list[int] = []
        self.broken: set[str] = set()
        self.calls: list[str] = []

    async def version(self) -> str:
        """A version that is new enough."""
        self._called("version")
        return "4.2.1"

    async def warm_up(self) -> None:
        """Nothing is slower the first time."""
        self._called("warm_up")

    async def dump(self, root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        """Write the one file."""
        self._called("dump")
        facts = self.of_tree or ImageFacts(root_pid, (root_pid,), (root_pid,))
        content = {"facts": asdict(facts), "sockets": asdict(self.sockets_of_tree)}
        _write(images, content)
        return DumpStats(took_ms=1, frozen_ms=1, pages_written=1, image_bytes=4096)

    async def restore(self, images: Path, *, deadline_s: float) -> int:
        """Say that the tree is back."""
        self._called("restore")
        root = self.facts(images).root_pid
        self.restored.append(root)
        return root

    def facts(self, images: Path) -> ImageFacts:
        """What `dump` wrote."""
        self._called("facts")
        facts = self._read(images)["facts"]
        return ImageFacts(facts["root_pid"], tuple(facts["pids"]), tuple(facts["task_ids"]))

    def files(self, images: Path) -> tuple[NamedFile, ...]:
        """Those that a test has set."""
        self._called("files")
        return self.of_names

    def sockets(self, images: Path) -> Sockets:
        """What `dump` wrote, moved since or not."""
        self._called("sockets")
        sockets = self._read(images)["sockets"]
        return Sockets(
            tuple(Endpoint(**end) for end in sockets["established"]),
            tuple((address, port) for address, port in sockets["listening"]),
        )

    def move_addresses(
        self, images: Path, moves: Mapping[str, str], *, close: Sequence[Endpoint] = ()
    ) -> int:
        """Move what `dump` wrote; a second move starts from the first one's result."""
        self._called("move_addresses")
        old = self.sockets(images)
        shut = set(close)
        ends = tuple(
            replace(
                end,
                local_address=moves.get(end.local_address, end.local_address),
                remote_address=moves.get(end.remote_address, end.remote_address),
            )
            for end in old.established
            if end not in shut
        )
        listening = tuple((moves.get(address, address), port) for address, port in old.listening)
        content = {**self._read(images), "sockets": asdict(Sockets(ends, listening))}
        _write(images, content)
        return len(old.established) - len(set(old.established) & set(ends))

    def _read(self, images: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((images / FILE).read_text())
        except FileNotFoundError as error:
            raise DriverError(f"no images in {images}") from error
        return content

    def _called(self, method: str) -> None:
        self.calls.append(method)
        if method in self.broken:
            raise DriverError(f"told to fail: {method}")


def _write(images: Path, content: dict[str, Any]) -> None:
    images.mkdir(parents=True, exist_ok=True)
    (images / FILE).write_text(json.dumps(content))
