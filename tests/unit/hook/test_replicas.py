"""Ranks of replica groups: their number in the job, their slot, and the step they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from worker_shim.hook import rank, replicas
from worker_shim.hook.page import MAGIC, page_bytes
from worker_shim.hook.slot import Slot, claim, open_page
from worker_shim.hook.world import job_rank, job_world_size

SLOTS = 3
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS")


def environ(words: str) -> dict[str, str]:
    """`rank/world group/groups`, with - for what is not said."""
    values = words.replace("/", " ").split()
    names = ("RANK", "WORLD_SIZE", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS")
    return {name: value for name, value in zip(names, values, strict=True) if value != "-"}


@pytest.mark.parametrize(
    ("words", "number", "size"),
    [
        ("1/4 -/-", 1, 4),
        ("1/4 -/2", 1, 4),  # no group: the number of them says nothing
        ("0/1 0/2", 0, 2),
        ("0/1 1/2", 1, 2),
        ("3/4 2/3", 11, 12),
        ("0/1 1/-", 1, 0),  # how many groups there are is not known
        ("0/1 first/2", 0, 1),
        ("-/- 1/2", -1, 2),
    ],
)
def test_the_number_in_the_job(words: str, number: int, size: int) -> None:
    assert (job_rank(environ(words)), job_world_size(environ(words))) == (number, size)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[memoryview, int]]:
    path = tmp_path / "page"
    header = b"".join(word.to_bytes(8, sys.byteorder) for word in (MAGIC, 0, 0, SLOTS, 0))
    path.write_bytes(header.ljust(page_bytes(SLOTS), b"\0"))
    words, fd = open_page(str(path))
    yield words, fd
    os.close(fd)


def be(monkeypatch: pytest.MonkeyPatch, words: str, local_rank: int = 0) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environ(words), "LOCAL_RANK": str(local_rank)}.items():
        monkeypatch.setenv(name, value)


def of_another(slot: Slot) -> None:
    """Let the slot be that of another process, which lives."""
    parent = os.getppid()
    slot.put("pid", parent)
    slot.put("start", int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]))


def test_groups_on_one_node_have_slots_of_their_own(
    page: tuple[memoryview, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in range(SLOTS):
        be(monkeypatch, f"0/1 {group}/4")
        slot = claim(*page, stepping=group == 1)  # one that has not stepped keeps its slot
        assert slot is not None
        assert (slot.number, slot.get("rank_plus_1")) == (group, group + 1)
        assert (slot.get("local_rank"), slot.get("world_size")) == (0, 4)
        of_another(slot)
    be(monkeypatch, "0/1 3/4")
    assert claim(*page, stepping=True) is None, "there is no slot for it"


def test_a_rank_takes_the_slot_of_its_own_helper_only(
    page: tuple[memoryview, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, "0/1 0/2")
    helper = claim(*page, stepping=False)
    assert helper is not None
    of_another(helper)
    assert claim(*page, stepping=False) is None, "one slot for one number"
    taken = claim(*page, stepping=True)
    assert taken is not None
    assert (taken.number, taken.is_mine()) == (0, True)


def test_a_group_that_was_started_again_has_its_old_slot(
    page: tuple[memoryview, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = []
    for group in (0, 1):
        be(monkeypatch, f"0/1 {group}/2")
        slot = claim(*page, stepping=True)
        assert slot is not None
        slot.put("boundary", 9)
        of_another(slot)
        slots.append(slot)
    for slot in slots:
        slot.put("start", 1)  # its process has ended
    again = claim(*page, stepping=False)
    assert again is not None
    assert (again.number, again.get("boundary")) == (1, 0)


class Manager:
    """As torchft's: it counts a step before it is taken."""

    def __init__(self, step: int) -> None:
        self.now = step

    def current_step(self) -> int:
        return self.now


class Wrapped:
    """As torchft's optimizer."""

    def __init__(self, manager: object) -> None:
        self.manager = manager

    def step(self) -> object:
        return replicas.shared_step(sys._getframe())


@pytest.fixture
def _torchft(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(replicas.MANAGER_MODULE)
    module.Manager = Manager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, replicas.MANAGER_MODULE, module)


@pytest.mark.usefixtures("_torchft")
def test_the_managers_step_is_found_above_the_optimizer() -> None:
    manager = Manager(40)

    class Loop:
        """Something between torchft's optimizer and torch's, with another manager."""

        manager = "none of torchft's"

        def step(self) -> object:
            return replicas.shared_step(sys._getframe())

    class Outer(Wrapped):
        def step(self) -> object:
            return Loop().step()

    for optimizer in (Wrapped(manager), Outer(manager)):
        found = optimizer.step()
        assert callable(found)
        assert found() == 40
    assert Wrapped("none of torchft's").step() is None
    assert replicas.shared_step(sys._getframe()) is None


def test_without_torchft_nothing_is_looked_for() -> None:
    assert Wrapped(Manager(1)).step() is None


def test_boundaries_are_the_steps_that_groups_share(
    page: tuple[memoryview, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, "0/1 1/2")
    slot = claim(*page, stepping=True)
    assert slot is not None
    manager = Manager(40)
    advance = rank._counting(slot, manager.current_step)
    advance()
    assert slot.get("boundary") == 40, "it has joined those that are there"
    manager.now += 1
    advance()
    assert slot.get("boundary") == 41
