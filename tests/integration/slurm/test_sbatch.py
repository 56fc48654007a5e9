"""deploy/slurm/allstop.sbatch under a real SLURM: saved at a notice, requeued, and gone on with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from tests.integration.examples.test_digits import train
from tests.integration.examples.test_ring import undisturbed_digest
from tests.integration.slurm.site import ROOT, SCRIPT, Site

DIGITS = ("--epochs", "4", "--hidden", "64", "--workers", "0", "--log-every", "5")
ROUNDS = 600
RING = f"""exec {sys.executable} {ROOT}/examples/tcp_ring.py --node $SLURM_NODEID \
    --hosts "$(scontrol show hostnames | paste -sd,)" \
    --rounds {ROUNDS} --log-every 10 --result ring.json"""
WAITING = "until [[ -e end ]]; do sleep 0.2; done"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")

pytestmark = [pytest.mark.slow]


@pytest.fixture
def site(make_lab: Callable[..., Lab], tmp_path: Path) -> Site:
    """Three idle nodes."""
    made = Site(make_lab(["n0", "n1", "n2"]), tmp_path / "site")
    made.start()
    return made


def goes_on(log: str, restores: int) -> bool:
    """Whether the ring has made progress after so many restores."""
    _, *runs = log.split("goes on from")
    return len(runs) == restores and "\nround " in runs[-1].rpartition("runs again")[2]


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Marks of a test for which all of a site is started."""
    for mark in ("root", "criu", "etcd", "slurm"):
        test = getattr(pytest.mark, mark)(test)
    return pytest.mark.timeout(400)(test)


def test_the_script_is_clean() -> None:
    done = subprocess.run(
        [str(SHELLCHECK), str(SCRIPT)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr


@real
@pytest.mark.torch
def test_a_job_that_is_preempted_ends_with_the_same_bits(site: Site, tmp_path: Path) -> None:
    paced = ROOT / "tests" / "chaos" / "programs" / "paced.py"
    digits = ROOT / "examples" / "digits_ddp.py"
    diary, result = site.shared / "diary", site.shared / "result.json"
    diary.mkdir()
    training = [str(paced), "0.05", str(diary), str(digits), *DIGITS, "--result", str(result)]
    job = site.submit([], ["torchrun", "--nproc-per-node", "1", *training])
    site.wait_for_run(job, 0)
    site.wait("some steps", lambda: " step 10 loss" in site.log(job), job)
    assert site.show(job, "NodeList") == "n[0-1]"
    # The first node is not given again, so the coordinator moves as well.
    site.ask("scontrol", "update", "NodeName=n0", "State=DRAIN", "Reason=test")
    site.notice(job)
    site.wait_for_run(job, 1)
    site.wait_for_end(job)
    assert site.show(job, "NodeList") == "n[1-2]"

    assert len(re.findall(r"goes on from \S+", site.log(job))) == 1
    undisturbed = train(tmp_path, *DIGITS, ranks_per_node=1)
    told = json.loads(result.read_text())
    assert (told["digest"], told["losses"]) == (undisturbed["digest"], undisturbed["losses"])
    steps = [int(line.split()[4]) for line in (diary / "0").read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step was taken twice: the stop has lost something"


@real
def test_notice_during_a_checkpoint_then_another_and_then_none(site: Site) -> None:
    job = site.submit([], ["bash", "-c", RING], ALLSTOP_CHECKPOINT="--cut freeze")
    name = f"slurm-{job}"
    site.wait("round 10", lambda: "round 10 " in site.log(job), job)
    by_hand = f"source allstop/{name}/env && allstop checkpoint {name} --cut freeze --detach"
    site.ask("bash", "-c", by_hand)
    site.notice(job)

    site.wait("the first restore", lambda: goes_on(site.log(job), 1), job)
    site.notice(job)
    site.wait("the second restore", lambda: goes_on(site.log(job), 2), job)
    # An administrator's way, and that of a preemption without notice: everything is killed at once.
    site.ask("scontrol", "requeue", str(job))
    site.wait_for_run(job, 3)
    site.wait_for_end(job)
    first, second, again = re.findall(r"goes on from (\S+)", site.log(job))
    assert first != second == again, site.log(job)
    result = json.loads((site.shared / "ring.json").read_text())
    assert result["digest"] == undisturbed_digest(ROUNDS)


@real
def test_what_cannot_be_saved_begins_anew_and_may_end_by_itself(site: Site) -> None:
    job = site.submit([], ["bash", "-c", WAITING], ALLSTOP_NOTICE_S="30")
    for run in (0, 1):
        site.wait_for_run(job, run)
        attached = 2 * (run + 1)
        site.wait("both", lambda n=attached: site.log(job).count("taken in") == n, job)
        site.notice(job)
        site.wait("it", lambda n=run + 1: site.log(job).count("notice of the end") == n, job)
    (site.shared / "end").touch()
    site.wait_for_end(job)
    assert site.show(job, "Restarts") == "1"
    log = site.log(job)
    assert log.count("could not be saved in time") == 1, log
    assert "goes on from" not in log
