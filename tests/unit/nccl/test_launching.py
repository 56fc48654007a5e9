"""What a worker's environment becomes, by mode; the user's own values stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.nccl.launching import Launch, environment
from worker_shim.nccl.modes import SHIM_LIBRARY


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / SHIM_LIBRARY
    path.parent.mkdir()
    path.touch()
    return path


def launch(
    tmp_path: Path, mode: str, base: dict[str, str], library: Path | None = None, gpus: bool = True
) -> Launch:
    return environment(base, tmp_path / "run", mode=mode, library=library, gpus=gpus)


def test_a_job_without_gpus_and_without_a_mode_is_left_as_it_is(tmp_path: Path) -> None:
    assert launch(tmp_path, "auto", {"A": "b"}, gpus=False) == Launch({})


def test_rebuild_loads_the_shim_and_says_why_of_each(tmp_path: Path, library: Path) -> None:
    made = launch(tmp_path, "rebuild", {"LD_PRELOAD": "/x/a.so:/x/b.so"}, library, gpus=False)
    assert made.additions == {
        "ALLSTOP_NCCL_MODE": "rebuild",
        "LD_PRELOAD": f"{library} /x/a.so /x/b.so",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_HOST_ENABLE": "0",
        "NCCL_RAS_ENABLE": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3600",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "NCCL_IB_DISABLE": "1",
        "NCCL_CHECKPOINT_KVS_TIMEOUT": "600",
        "NCCL_CHECKPOINT_KVS_PATH": str(tmp_path / "run" / "kvs"),
    }
    for name in made.additions.keys() - {"ALLSTOP_NCCL_MODE"}:
        assert any(note.startswith(name) for note in made.notes), name


def test_keep_leaves_nothing_but_sockets(tmp_path: Path) -> None:
    made = launch(tmp_path, "keep", {}, gpus=False)
    wanted = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    wanted |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert wanted.items() <= made.additions.items()
    assert "LD_PRELOAD" not in made.additions


def test_what_the_user_has_set_stays_with_a_warning(tmp_path: Path, library: Path) -> None:
    base = {"NCCL_NVLS_ENABLE": "2", "NCCL_RAS_ENABLE": "0", "NCCL_CHECKPOINT_KVS_PATH": "/mine"}
    made = launch(tmp_path, "rebuild", base, library)
    assert made.additions.keys() & base.keys() == {"NCCL_CHECKPOINT_KVS_PATH"}
    assert any(note.startswith("NCCL_NVLS_ENABLE=2 is set already") for note in made.notes)
    assert any("/mine is replaced" in note for note in made.notes)
    assert not any(note.startswith("NCCL_RAS") for note in made.notes)


def test_auto_rebuilds_where_the_shim_is_found(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_shim.nccl.launching.USUAL_PLACES", ())
    for base in (
        {"LD_LIBRARY_PATH": f"/nowhere:{library.parent}"},
        {"VIRTUAL_ENV": str(tmp_path)},
        {"LD_PRELOAD": str(library)},
    ):
        assert launch(tmp_path, "auto", base).additions["ALLSTOP_NCCL_MODE"] == "rebuild"
    without = launch(tmp_path, "auto", {})
    assert without.additions == {"ALLSTOP_NCCL_MODE": "none"}
    assert "cannot be saved" in without.notes[0]
    with pytest.raises(DriverError, match="not found"):
        launch(tmp_path, "rebuild", {})


def test_a_longer_time_and_another_case_serve_as_well(tmp_path: Path) -> None:
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    for base, noted in (
        ({name: "7200"}, False),
        ({name: "600"}, True),
        ({name: "long"}, True),
        ({"NCCL_NET": "socket"}, False),
        ({"NCCL_NET": "IB"}, True),
    ):
        made = launch(tmp_path, "keep", base)
        (theirs,) = base.items()
        told = f"{'='.join(theirs)} is set already and stays"
        assert any(note.startswith(told) for note in made.notes) is noted, base
        assert theirs[0] not in made.additions
