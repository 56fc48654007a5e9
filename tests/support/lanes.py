"""Tests in lanes: pytest-xdist's workers take whole groups; some tests have the machine alone.

Without xdist (`pytest tests/unit`, `make test LANES=0`) none of this does anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
ALONE = "alone"
PACKAGES = {f"tests/integration/{name}" for name in ("page", "telemetry", "badluck", "gpu")}
# These change links outside of labs, or compare all of the machine's before and after.
WHOLE_MACHINE = (
    "tests/chaos/test_chaos.py",
    "tests/soak/",
    "tests/lab/",
    "tests/integration/compose/",
)
# All of it is alone: at the very end nobody waits for the other lane before every test of it.
LAST = tuple(f"tests/integration/{name}/" for name in ("aborts", "bench", "demo"))


def group_of(nodeid: str) -> str:
    """The tests that one lane takes together: a file, or a package whose files share a set-up."""
    path = nodeid.split("::")[0]
    if path.startswith(WHOLE_MACHINE):
        return "the whole machine"
    if path.startswith(LAST):
        return ALONE
    folder = path.rpartition("/")[0]
    return folder if folder in PACKAGES else path


def order(item: pytest.Item) -> int:
    """The longest group first, short tests to fill up its end, and last what is alone."""
    if item.nodeid.startswith(LAST):
        return 4
    if item.get_closest_marker(ALONE):
        return 3
    if item.nodeid.startswith(WHOLE_MACHINE):
        return 0
    return 1 if item.nodeid.startswith("tests/integration/") else 2


class Groups(LoadScopeScheduling):
    """xdist's scheduler of scopes, with groups of ours, in the order of `order`."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Lanes:
    """Two locks that end with their process; folders stand in for lock files, nothing is left.

    Whoever waits to be alone holds the gate meanwhile, else the other lane would never let it in.
    Nobody waits longer than for the other lane's test, which has its own time-out.
    """

    def __init__(self) -> None:
        self._open = [os.open(at, os.O_RDONLY | os.O_DIRECTORY) for at in (TESTS, HERE)]
        self._gate, self._machine = self._open
        os.register_at_fork(after_in_child=self.close)  # a child that outlives us locks nothing

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before any test's time begins to count
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        alone = item.get_closest_marker(ALONE) is not None
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        self.close()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


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
