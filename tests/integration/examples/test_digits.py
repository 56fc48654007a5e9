"""examples/digits_ddp.py under unmodified torchrun, two nodes of two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ports import free_port

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "digits_ddp.py"
OPTIONS = ("--epochs", "2", "--batch-size", "16", "--hidden", "64", "--learning-rate", "0.01")
RUN_TIMEOUT_S = 120


def train(directory: Path, *options: str, ranks_per_node: int = 2) -> dict[str, Any]:
    """Run the script on two nodes of this machine and return its result."""
    result = directory / "result.json"
    port = str(free_port())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", str(ranks_per_node)]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", port]
    environment = {name: value for name, value in os.environ.items() if "ALLSTOP" not in name}
    nodes = []
    for node in range(2):
        with (directory / f"log{node}").open("wb") as log:
            command = [*torchrun, "--node-rank", str(node), str(SCRIPT), "--result", str(result)]
            nodes.append(
                subprocess.Popen(
                    [*command, *options],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        codes = [node.wait(RUN_TIMEOUT_S) for node in nodes]
    finally:
        for node in nodes:
            node.terminate()  # torchrun ends its ranks
            node.wait(30)
    assert codes == [0, 0], (directory / "log0").read_text() + (directory / "log1").read_text()
    answer = json.loads(result.read_text())
    assert isinstance(answer, dict)
    answer["log"] = (directory / "log0").read_text()
    return answer


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    results = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        results.append(train(tmp_path / name, *OPTIONS))
    first, second = results
    assert first["digest"] == second["digest"]
    assert first["losses"] == second["losses"]
    assert first["world_size"] == 4
    assert first["steps"] == 46
    losses = dict(first["losses"])
    assert losses[40] < losses[10]
    assert first["accuracy"] > 0.5  # guessing gives 0.1
    assert f"step 40 loss {losses[40]:.9g}" in first["log"]


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("digits_ddp", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
def test_the_digest_sees_one_bit_of_anything(digits: ModuleType) -> None:
    import torch

    model = digits.build_model(8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 64)).sum().backward()
    optimizer.step()

    def digest() -> str:
        return str(digits.state_digest(model, optimizer))

    seen = [digest()]
    assert digest() == seen[0]
    moments = optimizer.state_dict()["state"][0]["exp_avg"]
    for tensor in (next(model.parameters()), next(model.buffers()), moments):
        tensor.data.view(torch.int32).flatten()[0] ^= 1
        seen.append(digest())
    optimizer.param_groups[0]["lr"] *= 1.0000001
    seen.append(digest())
    assert len(set(seen)) == 5
