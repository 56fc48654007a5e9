"""Tests in lanes: pytest-xdist's workers take whole groups, and some tests have the machine alone.

Without xdist (`pytest tests/unit`, `make test LANES=0`) none of this does anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
ALONE = "alone"
PACKAGES = {f"tests/integration/{name}" for name in ("page", "telemetry", "badluck", "gpu")}
# These change mounts or links outside of labs, or compare all of the machine's before and after.
WHOLE_MACHINE = (
    *("tests/chaos/test_chaos.py", "tests/lab/", "tests/integration/aborts/"),
    *("tests/integration/compose/", "tests/integration/demo/"),
)


def group_of(nodeid: str) -> str:
    """The tests that one lane takes together: a file, or a package whose files share a set-up."""
    path = nodeid.split("::")[0]
    if path.startswith(WHOLE_MACHINE):
        return "the whole machine"
    folder = path.rpartition("/")[0]
    return folder if folder in PACKAGES else path


def order(item: pytest.Item) -> int:
    """The longest group goes first, short tests fill up the end, and then come those alone."""
    if item.get_closest_marker(ALONE):
        return 3
    if item.nodeid.startswith(WHOLE_MACHINE):
        return 0
    return 1 if item.nodeid.startswith("tests/integration/") else 2


class Groups(LoadScopeScheduling):
    """xdist's scheduler, with groups of ours; those that are alone are groups of their own."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False  # the order is that of `order`
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@contextmanager
def locked(folder: int, how: int) -> Iterator[None]:
    fcntl.flock(folder, how)
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)


class Lanes:
    """Two locks that end with their process; folders stand in for lock files, nothing is left.

    Whoever waits to be alone holds the gate meanwhile, else the other lane would never let it in.
    """

    def __init__(self) -> None:
        self._gate = os.open(TESTS, os.O_RDONLY | os.O_DIRECTORY)
        self._machine = os.open(HERE, os.O_RDONLY | os.O_DIRECTORY)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before any test's time begins to count
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        alone = item.get_closest_marker(ALONE) is not None
        with locked(self._gate, fcntl.LOCK_EX):
            fcntl.flock(self._machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        os.close(self._gate)
        os.close(self._machine)


class Distribution:
    """On both sides of xdist: one seed, the order of tests, and how they are dealt out."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput["seed"] = node.config.getoption("--seed")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=order)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Groups:
        return Groups(config, log)


def lay_out(config: pytest.Config) -> None:
    """Call it from `pytest_configure`."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Lanes(), "lanes")
        config.pluginmanager.register(Distribution(), "distribution")
    elif getattr(config.option, "dist", "no") != "no":
        config.pluginmanager.register(Distribution(), "distribution")
