"""What the machine says is what the fake device says, or the rows are shown in which not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu.machine import Machine
from tests.fakes.gpu.build import said
from tests.gpu import kit
from tests.gpu.probe import differences, probe
from worker_shim.cuda.results import MEANINGS, of_exit_status

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(300)]


async def test_as_the_file_has_it(machine: Machine, tmp_path: Path) -> None:
    if set(machine.engines) != {"library", "program"}:
        pytest.skip(f"driver {machine.driver}: only {machine.engines[0]} is here")
    found = await probe(machine, tmp_path)
    print(f"driver {found['driver']}", *found["cases"].items(), found["help"], sep="\n")
    assert set(found["cases"]) == set(said()["cases"])
    told = differences(found)
    if told and not said()["driver"] and not kit.is_fake():
        print(*told, sep="\n")
        pytest.xfail("no driver was asked before: `python -m tests.gpu.probe` keeps what it says")
    assert not told, "\n".join(told)
    for name, case in found["cases"].items():
        if case["result"] in MEANINGS and "tid" not in name:
            assert of_exit_status(case["exit"], case["stderr"]) == case["result"], name
