"""One deployment for all tests of this package, made anew when a test broke it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.aborts.kit import Patient
from tests.integration.badluck.kit import NODES
from tests.integration.badluck.sharing import kept

STORE_BYTES = 4 << 30  # sparse


# Told to end, or left alone by a killed test: a file system that stayed frozen would stop whoever
# clears its folder away.
GUARD = """
if read -r _; then fsfreeze -u "$1" 2>/dev/null; exec umount "$1"; fi
fsfreeze -u "$1"; umount -l "$1"; rm -f "$2"
"""


@contextmanager
def file_system(image: Path, at: Path) -> Iterator[None]:
    """A file system of its own in a file; it is thawed and unmounted whatever happens to us."""
    at.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(STORE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", image, at], check=True, timeout=20)
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", at, image], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        (at / "lost+found").rmdir()
        yield
    finally:
        guard.communicate(b"\n", timeout=20)
        assert guard.returncode == 0, "it is still mounted"
        image.unlink()


@pytest_asyncio.fixture(scope="package")
async def _shared(
    tmp_path_factory: pytest.TempPathFactory, criu_path: str
) -> AsyncIterator[Callable[[], Awaitable[Patient]]]:
    def make(stack: ExitStack) -> Patient:
        root = tmp_path_factory.mktemp("patient")
        stack.enter_context(file_system(root / "store.ext4", root / "store"))
        lab = stack.enter_context(Lab(root / "lab", NODES))
        made = Patient(lab, root, criu_path)
        made.prepare()
        return made

    async with kept(make) as sound:
        yield sound


@pytest_asyncio.fixture
async def patient(_shared: Callable[[], Awaitable[Patient]]) -> AsyncIterator[Patient]:
    """The job on n0 and n1, stepping, under short deadlines."""
    patient = await _shared()
    try:
        yield patient
    finally:
        patient.go()
