"""What processes show of NCCL: threads, files, the neighbours that they have, and environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.compatibility.kit import FORK, GPU, NCCL, Look, Start, said
from worker_shim.compatibility import libraries
from worker_shim.compatibility.features import TreeFeature
from worker_shim.compatibility.node import STAND_STILL_S, NodeEyes
from worker_shim.nccl.launching import HEARTBEAT_S
from worker_shim.process import proc
from worker_shim.process.view import view

OF_NEIGHBOURS = {
    TreeFeature.NCCL_CUMEM, TreeFeature.NCCL_P2P, TreeFeature.NCCL_SHM,
    TreeFeature.NCCL_CUMEM_HOST, TreeFeature.NCCL_NVLS,
}  # fmt: skip
OFF = [
    ("NCCL_CUMEM_ENABLE", "0", (TreeFeature.NCCL_CUMEM,)),
    ("NCCL_P2P_DISABLE", "1", (TreeFeature.NCCL_P2P,)),
    ("NCCL_CUMEM_HOST_ENABLE", "0", (TreeFeature.NCCL_CUMEM_HOST,)),
    ("NCCL_SHM_DISABLE", "1", (TreeFeature.NCCL_SHM, TreeFeature.NCCL_CUMEM_HOST)),
    ("NCCL_NVLS_ENABLE", "0", (TreeFeature.NCCL_NVLS,)),
]


def test_a_second_rank_of_the_node_makes_neighbours(look: Look) -> None:
    own = "os.closerange(3, 9); again = [opened('nvidiactl'), opened('nvidia1')]"
    mark = f"{own}; thread('pt_nccl_watchdg'); open(done, 'w').close()"
    until = "while not os.path.exists(done): time.sleep(0.001)\n"
    both = NCCL + FORK.format(child=mark) + until
    assert not OF_NEIGHBOURS & set(look(NCCL).features)
    situation = look(both, WORLD_SIZE="2")
    assert set(situation.features) >= OF_NEIGHBOURS
    assert len(situation.features[TreeFeature.NCCL_NVLS]) == 2


@pytest.mark.parametrize(
    "said", ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"]
)
def test_ranks_in_trees_of_their_own_are_neighbours_too(look: Look, said: str) -> None:
    """As `--ranks` starts them: each tree has one rank, and the environment says how many."""
    assert set(look(NCCL, WORLD_SIZE="16", **{said: "8"}).features) >= OF_NEIGHBOURS
    assert not OF_NEIGHBOURS & set(look(NCCL, WORLD_SIZE="2", **{said: "1"}).features)
    assert not OF_NEIGHBOURS & set(look(NCCL, WORLD_SIZE="2", **{said: "no"}).features)


@pytest.mark.parametrize(("variable", "value", "features"), OFF, ids=lambda each: str(each))
def test_what_is_switched_off_is_not_told(
    look: Look, variable: str, value: str, features: tuple[TreeFeature, ...]
) -> None:
    neighbours = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    off = set(look(NCCL, **neighbours, **{variable: value}).features)
    assert OF_NEIGHBOURS - off == set(features)


def test_nccls_shared_memory_is_evidence(look: Look) -> None:
    segment = Path(f"/dev/shm/nccl-test{os.getpid()}")
    segment.write_bytes(bytes(4096))
    try:
        what = said(look(GPU + f"mapped({str(segment)!r})"), TreeFeature.NCCL)
    finally:
        segment.unlink()
    assert what == str(segment)


def test_the_checkpoint_shim_counts_where_somebody_calls_it(look: Look, tmp_path: Path) -> None:
    shim = tmp_path / "libnccl-checkpoint-shim.so"
    shim.write_bytes(bytes(4096))
    mode = {"ALLSTOP_NCCL_MODE": "rebuild"}
    assert TreeFeature.NCCL_REBUILD not in look(NCCL, **mode).features
    situation = look(NCCL + f"mapped({str(shim)!r})", **mode)
    assert said(situation, TreeFeature.NCCL_REBUILD) == "has libnccl-checkpoint-shim.so"
    for other in ({}, {"ALLSTOP_NCCL_MODE": "keep"}, {"ALLSTOP_NCCL_MODE": "none"}):
        left = look(NCCL + f"mapped({str(shim)!r})", **other)
        assert TreeFeature.NCCL_REBUILD not in left.features, other


def test_a_mode_is_that_of_the_environment(look: Look) -> None:
    modes = {TreeFeature.MODE_REBUILD, TreeFeature.MODE_KEEP, TreeFeature.MODE_NONE}
    for mode, feature in (
        ("rebuild", TreeFeature.MODE_REBUILD),
        ("keep", TreeFeature.MODE_KEEP),
        ("none", TreeFeature.MODE_NONE),
    ):
        seen = set(look(NCCL, ALLSTOP_NCCL_MODE=mode).features)
        assert seen & modes == {feature}
    assert set(look(NCCL).features) & modes == {TreeFeature.MODE_NONE}
    assert not set(look(GPU, ALLSTOP_NCCL_MODE="keep").features) & modes


def test_a_process_that_has_only_the_library_is_told_of_its_settings(
    look: Look, tmp_path: Path
) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(bytes(4096))
    program = GPU + f"mapped({str(library)!r})"
    settings = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    early = set(look(program, ALLSTOP_NCCL_MODE="rebuild", **settings).features)
    assert {TreeFeature.MODE_REBUILD, TreeFeature.NCCL_NVLS} <= early
    assert not {TreeFeature.NCCL, TreeFeature.NCCL_LIVE, TreeFeature.NCCL_PEERS} & early
    assert TreeFeature.NCCL_NVLS not in look(program, **settings).features


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", True),
        ("480", True),
        (f"{STAND_STILL_S - 1:.0f}", True),
        (f"{STAND_STILL_S:.0f}", False),
        ("7200", False),
    ],
)
def test_a_heartbeat_is_held_against_the_longest_hold(look: Look, given: str, told: bool) -> None:
    settings = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": given} if given else {}
    assert (TreeFeature.NCCL_HEARTBEAT in look(NCCL, **settings).features) is told


def test_a_coordinator_that_holds_longer_is_believed(look: Look) -> None:
    settings = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(HEARTBEAT_S)}
    assert STAND_STILL_S < HEARTBEAT_S, "what a launch sets is enough by default"
    eyes = NodeEyes()
    assert TreeFeature.NCCL_HEARTBEAT not in look(NCCL, eyes.look(), **settings).features
    eyes.stand_still_s = HEARTBEAT_S + 1
    told = said(look(NCCL, eyes.look(), **settings), TreeFeature.NCCL_HEARTBEAT)
    assert told == "3600 s, and it may be 3601 s"


def test_nccls_version_is_in_the_name_or_in_the_file(
    look: Look, start: Start, tmp_path: Path
) -> None:
    named = tmp_path / "libnccl.so.2.27.3"
    named.write_bytes(bytes(4096))
    (tmp_path / "a").mkdir()
    told = tmp_path / "a" / "libnccl.so.2"
    told.write_bytes(bytes(5000) + b"NCCL version %d\0NCCL version 2.30.7+cuda13.0\0" + bytes(99))
    (tmp_path / "b").mkdir()
    silent = tmp_path / "b" / "libnccl.so.2"
    silent.write_bytes(bytes(4096))
    for path, version in ((named, "2.27.3"), (told, "2.30.7"), (silent, "unknown")):
        situation = look(NCCL + f"mapped({str(path)!r})")
        assert situation.versions["nccl"] == (version,), path
        assert (TreeFeature.NCCL_UNKNOWN in situation.features) is (version == "unknown")
        assert TreeFeature.NCCL_STATIC not in situation.features
    (process,) = view(proc.look(start(GPU + f"mapped({str(told)!r})").pid)).processes
    sentence = b"NCCL version 2.31.12+cuda13.0\0"
    for shift in range(len(sentence)):  # a new build there, cut anywhere by the way it is read
        told.write_bytes(bytes(libraries.CHUNK_BYTES - shift) + sentence + bytes(shift))
        assert libraries.nccl_versions(process) == ("2.31.12",), shift
