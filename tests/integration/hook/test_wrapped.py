"""Optimizers around optimizers: one boundary for each call that the training loop makes.

Real ranks on gloo under torchrun. Megatron's wrappers are played by a program of our own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.ports import free_port
from worker_shim.hook.install import environment, install
from worker_shim.process.control import ControlPage

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).with_name("programs") / "megatron_like.py"
STEPS = 9
RANKS = 2


def train(place: Path, script: Path, *argv: str) -> list[int]:
    """Run a script to its end under torchrun; return the boundaries that the ranks published."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    meeting = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return run(place, [*torchrun, *meeting, str(script), *argv])


def run(place: Path, argv: Sequence[str], env: Mapping[str, str] = {}) -> list[int]:
    """Run a command with the hook; return the boundaries that its ranks published."""
    install(place / "hook")
    base = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **env}
    additions, _ = environment(base, place / "hook", place / "page", worker=0)
    everything = {**base, **additions}
    with ControlPage.create(place / "page", RANKS) as page:
        done = subprocess.run(
            argv, env=everything, cwd=place, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        return [slot["boundary"] for slot in page.snapshot()[1]]


def test_chained_optimizers_and_skipped_steps_are_one_boundary_a_step(tmp_path: Path) -> None:
    """Of two ranks one steps two optimizers in a chain, the other a single one."""
    boundaries = train(tmp_path, PROGRAM, str(STEPS), "3", str(tmp_path))
    told = [(tmp_path / "told" / str(rank)).read_text().split("\n")[:-1] for rank in range(RANKS)]
    skipped = [[line.split()[1] for line in lines].count("skipped") for lines in told]
    assert skipped == [3, 3], "the program overflows in three steps, the first two among them"
    # the first that stepped is known once the next begins; what was skipped before it is not
    assert boundaries == [STEPS - 2] * RANKS
    assert sorted(path.name for path in tmp_path.glob("iter_*.pt")) == [
        f"iter_{at:07d}.pt" for at in (3, 6, 9)
    ], "the job's own checkpoints"


def test_a_gradient_scaler_that_skips_and_accumulated_gradients(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import torch
            import torch.distributed as dist
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            for at in range(6):
                optimizer.zero_grad()
                data = torch.full((2, 4), float("inf") if at in (2, 3) else 1.0)
                with model.no_sync():
                    scaler.scale(model(data).sum()).backward()
                scaler.scale(model(data).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            assert scaler.get_scale() == 1.0, "halved twice"
        """)
    )
    assert train(tmp_path, script) == [6] * RANKS


LOOP = """
    import torch
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    class Wrapper:
        param_groups, zero_grad, state_dict = (), None, None
"""


@pytest.mark.parametrize(
    ("loop", "boundaries"),
    [
        pytest.param(
            """
                def step(self, fail):
                    if fail:
                        raise ValueError("a step that failed is not counted")
                    optimizer.step(), optimizer.step()
            wrapper = Wrapper()
            for fail in (False, True, False, False):
                try:
                    wrapper.step(fail)
                except ValueError:
                    pass
            optimizer.step()
            """,
            4,
            id="a wrapper that raises, and its optimizer used alone",
        ),
        pytest.param(
            """
                def step(this):
                    optimizer.step(), optimizer.step()
            wrapper = Wrapper()
            plain = wrapper.step
            wrapper.step = lambda: plain()
            for _ in range(5):
                wrapper.step()
            """,
            5,
            id="a wrapper whose method was wrapped by a scheduler",
        ),
        pytest.param(
            """
                def step(self):
                    optimizer.step(), optimizer.step()
            import weakref
            class Batch:
                pass
            def train(wrapper=Wrapper()):
                for _ in range(3):
                    batch = Batch()
                    seen = weakref.ref(batch)
                    wrapper.step()
                    del batch
                    assert seen() is None, "the hook keeps what the loop let go"
            train()
            """,
            3,
            id="what the loop lets go is not kept",
        ),
        pytest.param(
            """
                pass
            class Agent:
                def step(self):
                    for _ in range(3):
                        optimizer.step()
            for _ in range(2):
                Agent().step()
            """,
            6,
            id="what is no optimizer may step for hours",
        ),
    ],
)
def test_every_call_of_the_outermost_step_counts(
    tmp_path: Path, loop: str, boundaries: int
) -> None:
    script = textwrap.dedent(LOOP) + textwrap.dedent(loop).lstrip("\n")
    assert run(tmp_path, [sys.executable, "-c", script], {"RANK": "0"}) == [boundaries]
