"""A tmpfs of one thread's own, and the way back from it."""

import os
import threading
from pathlib import Path

import pytest

from lab.memory import in_memory

pytestmark = pytest.mark.root
NAMESPACE = "/proc/thread-self/ns/mnt"


@pytest.mark.parametrize("with_threads", [False, True])
def test_the_thread_comes_back_to_where_it_was(tmp_path: Path, with_threads: bool) -> None:
    """Also when threads that were made meanwhile are still there, as after an interruption."""
    before, here, over = os.readlink(NAMESPACE), os.getcwd(), threading.Event()
    threads = [threading.Thread(target=over.wait, args=(30,)) for _ in range(2 * with_threads)]
    place = tmp_path / "store"
    place.mkdir()
    try:
        with in_memory(place, 1 << 20):
            (place / "file").write_text("x")
            assert os.readlink(NAMESPACE) != before
            for thread in threads:
                thread.start()
        assert (os.readlink(NAMESPACE), os.getcwd()) == (before, here)
        assert not list(place.iterdir())
        assert str(place) not in Path("/proc/thread-self/mounts").read_text()
    finally:
        over.set()
        for thread in threads:
            thread.join()
