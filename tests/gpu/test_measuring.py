"""What `make bench-gpu` measures can be measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import machine as machines
from bench.gpu.__main__ import run
from bench.gpu.machine import Machine
from bench.gpu.measuring import measure_one
from tests.gpu.kit import is_fake, size_mib

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(400)]

RESULTS = Path(machines.__file__).parents[1] / "results"


async def test_without_criu(machine: Machine, tmp_path: Path) -> None:
    """Another process then has the device's memory between save and restore."""
    taken = await measure_one(machine, machine.engines[0], 1, size_mib(), tmp_path, 1, criu="")
    assert min(taken.copy_out_ms, taken.copy_back_ms) > 0
    assert min(taken.steps.save_ms, taken.steps.restore_ms) > 0
    assert (taken.steps.dump_ms, taken.image_bytes) == (None, 0)


@pytest.mark.criu
@pytest.mark.etcd
def test_all_of_it_into_a_file(machine: Machine, tmp_path: Path) -> None:
    if is_fake():
        machine = replace(machine, engines=machine.engines[:1])  # minutes, for no other figures
    before = sorted(RESULTS.iterdir())
    sizes = ("--sizes-mib", str(size_mib()), "--job-mib", "8" if is_fake() else "256")
    assert run(lambda: machine, [*sizes, "--rounds", "1", "--into", str(tmp_path)]) == 0
    assert sorted(RESULTS.iterdir()) == before
    (path,) = tmp_path.glob("gpu-*.json")
    found = json.loads(path.read_text())
    assert (found["model"], found["driver"]) == (machine.model, machine.driver)
    assert {"kernel", "python"} <= found["versions"].keys()
    taken = {(one["engine"], one["processes"]) for one in found["steps"]}
    assert taken == {(engine, count) for engine in machine.engines for count in (1, 2)}
    for one in found["steps"]:
        assert one["save_gb_per_s"] > 0
        assert (one["dump_ms"] is None) == bool(found["without_criu"])
    if not found["not_compared"]:
        assert [one["engine"] for one in found["against_by_hand"]] == [*machine.engines]
        for one in found["against_by_hand"]:
            assert min(one["pause_ratio"], one["restore_ratio"]) > 0
            assert one["gpu_bytes"] > 0
