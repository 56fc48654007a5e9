"""The order of a rank's reads and writes, and what is in the page's fields."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker_shim.hook import rank
from worker_shim.hook.install import environment, install
from worker_shim.hook.measure import measure
from worker_shim.hook.page import SLOT_FIELDS
from worker_shim.hook.slot import HOLD, TARGET, Slot, start_ticks
from worker_shim.process.control import ControlPage


class Watched:
    """Words of a page that write down who reads and writes what, in order."""

    def __init__(self, size: int = 64) -> None:
        self.values = [0] * size
        self.story: list[tuple[str, int]] = []
        self.when_read: dict[int, list[int]] = {}  # index: values it takes, one a read

    def __getitem__(self, at: int) -> int:
        self.story.append(("read", at))
        if self.when_read.get(at):
            self.values[at] = self.when_read[at].pop(0)
        return self.values[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.story.append(("write", at))
        self.values[at] = value


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(rank, "POLL_S", 0.0)
    return Watched()


def slot_of(words: Watched) -> Slot:
    return Slot(words, 0)  # type: ignore[arg-type]


def test_the_boundary_is_published_before_the_flag_is_read(watched: Watched) -> None:
    slot = slot_of(watched)
    advance = rank._counting(slot)
    watched.story.clear()
    advance()
    assert watched.story == [("write", slot.at("boundary")), ("read", HOLD)]
    assert slot.get("boundary") == 1


def test_a_held_rank_goes_on_below_the_target_and_parks_at_it(watched: Watched) -> None:
    slot = slot_of(watched)
    advance = rank._counting(slot)
    watched.when_read = {HOLD: [5], TARGET: [0, 0, 2]}
    advance()
    assert slot.get("parked") == 0
    parked: list[int] = []
    watched.when_read = {HOLD: [5, 5, 5, 5, 0]}
    watch = watched.__class__.__setitem__

    class Noting(Watched):
        def __setitem__(self, at: int, value: int) -> None:
            if at == slot.at("parked") and value:
                parked.append(value)
            watch(self, at, value)

    watched.__class__ = Noting
    advance()
    assert parked == [5]
    assert slot.get("boundary") == 2
    assert slot.get("parked") == 0, "released"


def test_a_target_of_an_older_hold_does_not_keep_a_rank(watched: Watched) -> None:
    """The hold is released and raised again while the rank sleeps; the new target is higher."""
    slot = slot_of(watched)
    advance = rank._counting(slot)
    watched.when_read = {HOLD: [5, 5, 6, 6], TARGET: [1, 1, 9]}
    advance()
    assert slot.get("boundary") == 1
    assert watched.values[TARGET] == 9, "it goes on towards the new target"


def test_an_error_inside_the_hook_is_the_hooks_own(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(rank, "_synchronise_devices", fails)
    monkeypatch.setattr(rank, "_advance", rank._nothing)
    slot = slot_of(watched)
    watched.values[HOLD], watched.values[TARGET] = 3, 1
    rank._counting(slot)()
    assert slot.get("state") == 4


def test_devices_in_use_are_synchronised_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that the rank never used would be set up by touching it."""
    synchronised: list[int] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 3, synchronize=synchronised.append
    )
    in_use = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device != 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=in_use))
    rank._synchronise_devices()
    assert synchronised == [0, 2]
    cuda.is_initialized = lambda: False
    rank._synchronise_devices()
    assert synchronised == [0, 2]


def test_every_field_survives_a_snapshot(tmp_path: Path) -> None:
    fields = {name: 100 + at for at, name in enumerate(SLOT_FIELDS)}
    slots = [{"slot": 0, **fields}, {"slot": 3, **fields, "rank_plus_1": 9}]
    page = {"hold": 7, "target": 8, "slots": 5, "incarnation": 2, "tear_down": 6}
    with ControlPage.write_anew(tmp_path / "page", page, slots) as anew:
        assert anew.snapshot() == ({"magic": anew.snapshot()[0]["magic"], **page}, tuple(slots))
        assert (anew.hold, anew.target) == (7, 8)


def test_after_a_restore_the_slots_belong_to_the_same_pids(tmp_path: Path) -> None:
    old = {"slot": 0, "pid": os.getpid(), "start": 1, "rank_plus_1": 1, "boundary": 4}
    with ControlPage.write_anew(tmp_path / "page", {"slots": 1}, [old]) as page:
        assert page.ranks() == ()
        page.refresh_starts()
        (state,) = page.ranks()
        assert (state.rank, state.pid, state.boundary) == (0, os.getpid(), 4)
        assert page.snapshot()[1][0]["start"] == start_ticks(os.getpid())


def test_a_page_in_use_is_replaced_and_never_cut(tmp_path: Path) -> None:
    """A mapped file that is cut short kills whoever touches it."""
    with ControlPage.create(tmp_path / "page", 60) as old:
        inode = (tmp_path / "page").stat().st_ino
        with ControlPage.create(tmp_path / "page", 1):
            assert (tmp_path / "page").stat().st_ino != inode
            old.release()
            assert old.snapshot()[0]["slots"] == 60


def test_the_environment_keeps_what_is_the_users(tmp_path: Path) -> None:
    theirs = {"PYTHONPATH": "/a:/b", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    additions, notes = environment(theirs, tmp_path / "hook", tmp_path / "page", worker=3)
    assert additions["PYTHONPATH"] == f"{tmp_path / 'hook'}:/a:/b"
    assert additions["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"
    assert additions["ALLSTOP_WORKER"] == "3"
    assert len(notes) == 1
    assert environment({}, tmp_path / "hook", tmp_path / "page", worker=0)[1] == ()


def test_installing_again_replaces_what_was_there(tmp_path: Path) -> None:
    install(tmp_path / "hook")
    (tmp_path / "hook" / "worker_shim" / "hook" / "rank.py").write_text("broken")
    install(tmp_path / "hook")
    assert "broken" not in (tmp_path / "hook" / "worker_shim" / "hook" / "rank.py").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["hook"]


def test_the_cost_of_a_step_is_measured() -> None:
    cost = measure(rounds=3, calls=5_000)
    assert 10 < cost.step_ns < 20_000, "a sanity bound; `make bench` prints the figure"
    assert cost.step_ns < cost.optimizer_pair_ns < 40_000
