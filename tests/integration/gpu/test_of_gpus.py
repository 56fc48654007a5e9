"""The tests that need a GPU, tried over a fake one: on a machine that has one they must not rot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.gpu.kit import ROOT, fake_environment
from worker_shim.cuda.devices import KERNEL_DRIVER

RUN_S = 540

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(RUN_S + 30),
]


def test_all_of_them_pass_over_a_fake_device(tmp_path: Path) -> None:
    told = tmp_path / "told.xml"
    line = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-n0", f"--junitxml={told}"]
    done = subprocess.run(
        [*line, "-p", "no:cacheprovider"],
        env={**os.environ, "ALLSTOP_MUST_RUN": "1", **fake_environment(tmp_path / "fake")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    ran = ElementTree.parse(told).findall(".//testcase")
    assert [case.get("name") for case in ran if case.find("skipped") is not None] == []
    files = {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert {str(case.get("classname")).split(".")[2] for case in ran} == files


@pytest.mark.skipif(KERNEL_DRIVER.exists(), reason="there is a GPU, and this takes minutes")
def test_without_a_gpu_the_bench_ends_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing was measured: there is no NVIDIA driver here")
