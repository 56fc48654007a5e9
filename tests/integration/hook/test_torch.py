"""The hook inside real PyTorch processes, loaded by `import torch` alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker_shim.hook.install import environment, install
from worker_shim.process.control import ControlPage

pytestmark = pytest.mark.torch

RANK = {"RANK": "4", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}
MODEL = """
import os, sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
def loss():
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
"""

Train = Callable[..., ControlPage]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Run a script to its end as a rank; return the page as it left it."""
    pages: list[ControlPage] = []

    def run(script: str, env: dict[str, str] = RANK, **more: str) -> ControlPage:
        install(tmp_path / "hook")
        pages.append(ControlPage.create(tmp_path / "page", 4))
        base = {"PATH": os.environ["PATH"], **env, **more}
        additions, _ = environment(base, tmp_path / "hook", tmp_path / "page", worker=2)
        (tmp_path / "train.py").write_text(MODEL + textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, "train.py"],
            env={**base, **additions},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert done.returncode == 0, done.stderr
        return pages[-1]

    yield run
    for page in pages:
        page.close()


def slots(page: ControlPage) -> list[tuple[int, int, int, int, int]]:
    return [
        (s["slot"], s["rank_plus_1"] - 1, s["world_size"], s["local_world_size"], s["boundary"])
        for s in page.snapshot()[1]
    ]


def test_an_unmodified_script_is_counted(train: Train) -> None:
    page = train("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(7):
            loss()
            optimizer.step()
    """)
    assert slots(page) == [(1, 4, 6, 3, 7)]


def test_only_the_outermost_step_counts_also_after_an_exception(train: Train) -> None:
    page = train("""
        class Outer(torch.optim.SGD):
            def __init__(self, inner):
                super().__init__(model.parameters(), lr=0.1)
                self.inner = inner
            def step(self, closure=None):
                self.inner.step()
                self.inner.step()
        class Fails(torch.optim.SGD):
            def step(self, closure=None):
                raise ValueError("out of memory, say")
        inner = torch.optim.Adam(model.parameters())
        outer = Outer(inner)
        def fails():
            try:
                Fails(model.parameters(), lr=0.1).step()
            except ValueError:
                return
        for _ in range(3):
            loss()
            outer.step()
            fails()
            inner.step()
    """)
    assert slots(page) == [(1, 4, 6, 3, 6)]


def test_explicit_steps_take_over(train: Train) -> None:
    page = train("""
        from worker_shim.hook import step
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            step()
            loss()
            optimizer.step()
    """)
    assert slots(page) == [(1, 4, 6, 3, 5)]


def test_data_loader_workers_and_threads_stay_out(train: Train) -> None:
    page = train("""
        import threading
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                from worker_shim.hook import step
                step()  # a worker that stepped would be taken for the rank
                return torch.ones(4)
        def other():
            side = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
            side.step()
        def main():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for context in "fork", "spawn":
                data = torch.utils.data.DataLoader(Data(), num_workers=1,
                    multiprocessing_context=context)
                for _ in data:
                    loss()
                    optimizer.step()
                    thread = threading.Thread(target=other)
                    thread.start()
                    thread.join()
        if __name__ == "__main__":
            main()
    """)
    assert slots(page) == [(1, 4, 6, 3, 8)]


def test_a_process_without_a_rank_is_the_worker_once_it_steps(train: Train) -> None:
    script = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    assert slots(train(script, env={})) == [], "a launcher that imports torch is no rank"
    assert slots(train(script + "loss()\noptimizer.step()", env={})) == [(0, 2, 1, 1, 1)]


def test_a_job_that_turned_autoloading_off_is_counted_all_the_same(train: Train) -> None:
    page = train(
        "torch.optim.SGD(model.parameters(), lr=0.1).step()", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert slots(page) == [(1, 4, 6, 3, 1)]


def test_the_users_own_path_stays(train: Train, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "their_module.py").write_text("")
    train("import their_module", PYTHONPATH=str(tmp_path / "theirs"))
