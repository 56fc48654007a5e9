"""Real shims beside NVML: one that tells, one that crashes, one that hangs, and a node without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.view import NodeView
from lab import Lab
from lab.deployment import Deployment
from tests.integration.runs.kit import until
from tests.support.nvml import A, B, NvmlNode

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(120),
]

FAULTS = {
    "n0": (),
    "n1": ("fault nvmlDeviceGetName crash",),
    "n2": ("fault nvmlDeviceGetName hang",),
}


async def test_whatever_nvml_does_every_shim_attaches(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> None:
    lab = make_lab([*FAULTS, "n3"])
    deployment = Deployment(lab, tmp_path / "shared", options=("--criu", criu_path))
    deployment.start_control_plane()
    for name, lines in FAULTS.items():
        folder = tmp_path / name
        folder.mkdir()
        node = NvmlNode(folder)
        node.has(*lines)
        deployment.start_spare(lab.hosts[name], node.environment())
    deployment.start_spare(lab.hosts["n3"])
    client = OperatorClient([deployment.socket])

    async def told() -> dict[str, NodeView] | None:
        """The shims attach, and some time later it is known that NVML hangs on one node."""
        try:
            views = {view.facts.node: view for view in await client.nodes()}
        except AllstopError:  # nobody leads yet
            return None
        all_there = len(views) == len(FAULTS) + 1
        return views if all_there and views["n2"].facts.gpu_trouble else None

    try:
        views = await until("every shim", told)
    finally:
        await client.close()
    assert {view.state for view in views.values()} == {"attached"}
    facts = {name: view.facts for name, view in views.items()}
    assert [gpu.uuid for gpu in facts["n0"].gpus] == [A, B]
    assert facts["n0"].gpu_trouble == ""
    assert "SIGSEGV" in facts["n1"].gpu_trouble
    assert "NVML did not answer within" in facts["n2"].gpu_trouble
    bare = facts["n3"]
    if not bare.gpus:  # unless this machine has some
        assert (bare.gpu_trouble, bare.gpu_driver) == ("", "")
