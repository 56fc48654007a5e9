"""What processes show of NCCL: threads, files, the neighbours that they have, and environment."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.compatibility.kit import FORK, GPU, NCCL, Look, Start, said
from worker_shim.compatibility import libraries
from worker_shim.compatibility.features import TreeFeature
from worker_shim.process import proc
from worker_shim.process.view import view


def test_a_second_rank_of_the_node_makes_neighbours(look: Look) -> None:
    own = "os.closerange(3, 9); again = [opened('nvidiactl'), opened('nvidia1')]"
    mark = f"{own}; thread('pt_nccl_watchdg'); open(done, 'w').close()"
    until = "while not os.path.exists(done): time.sleep(0.001)\n"
    both = NCCL + FORK.format(child=mark) + until
    of_neighbours = {
        TreeFeature.NCCL_CUMEM, TreeFeature.NCCL_P2P,
        TreeFeature.NCCL_CUMEM_HOST, TreeFeature.NCCL_NVLS,
    }  # fmt: skip
    assert not of_neighbours & set(look(NCCL).features)
    situation = look(both, WORLD_SIZE="2")
    assert of_neighbours <= set(situation.features)
    assert len(situation.features[TreeFeature.NCCL_NVLS]) == 2
    for variable, value, feature in (
        ("NCCL_CUMEM_ENABLE", "0", TreeFeature.NCCL_CUMEM),
        ("NCCL_P2P_DISABLE", "1", TreeFeature.NCCL_P2P),
        ("NCCL_CUMEM_HOST_ENABLE", "0", TreeFeature.NCCL_CUMEM_HOST),
        ("NCCL_SHM_DISABLE", "1", TreeFeature.NCCL_CUMEM_HOST),
        ("NCCL_NVLS_ENABLE", "0", TreeFeature.NCCL_NVLS),
    ):
        off = set(look(both, WORLD_SIZE="2", **{variable: value}).features)
        assert of_neighbours - off == {feature}, variable


def test_nccls_shared_memory_is_evidence(look: Look) -> None:
    segment = Path(f"/dev/shm/nccl-test{os.getpid()}")
    segment.write_bytes(bytes(4096))
    try:
        what = said(look(GPU + f"mapped({str(segment)!r})"), TreeFeature.NCCL)
    finally:
        segment.unlink()
    assert what == f"maps {segment}"


def test_the_checkpoint_shim_of_nccl_is_seen_by_its_name(look: Look, tmp_path: Path) -> None:
    shim = tmp_path / "libnccl-checkpoint-shim.so"
    shim.write_bytes(bytes(4096))
    assert TreeFeature.NCCL_REBUILD not in look(NCCL).features
    situation = look(NCCL + f"mapped({str(shim)!r})")
    assert said(situation, TreeFeature.NCCL_REBUILD) == "has libnccl-checkpoint-shim.so"
    kept = look(NCCL + f"mapped({str(shim)!r})", ALLSTOP_NCCL_MODE="keep")
    assert TreeFeature.NCCL_REBUILD not in kept.features, "nobody will call it"


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
        situation = look(GPU + f"mapped({str(path)!r})")
        assert situation.versions["nccl"] == (version,), path
    (process,) = view(proc.look(start(GPU + f"mapped({str(told)!r})").pid)).processes
    sentence = b"NCCL version 2.31.12+cuda13.0\0"
    for shift in range(len(sentence)):  # a new build there, cut anywhere by the way it is read
        told.write_bytes(bytes(libraries.CHUNK_BYTES - shift) + sentence + bytes(shift))
        assert libraries.nccl_versions(process) == ("2.31.12",), shift
