"""What a rank that is a worker of its own finds in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_shim.agent.options import WorkerSpec
from worker_shim.agent.ranks import Ranks, rank_specs

TELL = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
# torchrun's own business, or by design another value here: see the module
THEIRS_ALONE = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"}
OURS_ALONE = {"PYTHONUNBUFFERED"}  # torchrun says it by `python -u`


def specs_of(ranks: Ranks, env: dict[str, str]) -> tuple[WorkerSpec, ...]:
    command = WorkerSpec("llm", 0, 1, ("python", "train.py"), env, slots=4)
    return rank_specs(ranks, command, Path("/run/allstop"))


def test_numbers_run_over_the_nodes() -> None:
    specs = specs_of(Ranks(here=2, nodes=3, node=1, master_addr="10.0.0.1"), {"HOME": "/root"})
    assert [(spec.worker, spec.workers) for spec in specs] == [(2, 6), (3, 6)]
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [[spec.env[name] for name in names] for spec in specs] == [
        ["2", "0", "1", "6", "2"],
        ["3", "1", "1", "6", "2"],
    ]
    assert specs[1].env["HOME"] == "/root"
    assert specs[1].env["TORCHELASTIC_ERROR_FILE"] == "/run/allstop/llm/3/error.json"


def test_what_the_user_has_set_stays() -> None:
    mine = {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "RANK": "9"}
    env = specs_of(Ranks(here=2), mine)[0].env
    assert (env["OMP_NUM_THREADS"], env["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("7", "0")
    assert env["RANK"] == "0"  # but who is who is not left to it
    assert specs_of(Ranks(here=2), {})[0].env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in specs_of(Ranks(here=1), {})[0].env


def test_every_rank_has_a_slot() -> None:
    assert specs_of(Ranks(here=2), {})[0].slots == 4
    assert specs_of(Ranks(here=8), {})[7].slots == 8


@pytest.mark.torch
def test_a_script_sees_what_torchrun_would_give_it(tmp_path: Path) -> None:
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    script = tmp_path / "tell.py"
    script.write_text(TELL.replace("sys.argv[1]", "sys.argv[1] + os.environ['RANK']"))
    place = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "29655"]
    run = [sys.executable, "-m", "torch.distributed.run", *place, str(script), f"{tmp_path}/env."]
    subprocess.run(run, env=base, check=True, timeout=120, capture_output=True)
    ours = specs_of(Ranks(here=2, master_port=29655), base)
    for rank in range(2):
        theirs = json.loads((tmp_path / f"env.{rank}").read_text())
        env = dict(ours[rank].env)
        assert {*env, "LC_CTYPE"} - OURS_ALONE == {*theirs, "LC_CTYPE"}
        differ = {name for name in theirs if name in env and theirs[name] != env[name]}
        assert differ <= THEIRS_ALONE, differ
