"""What is told of torchrun's own restarts, held against torchrun's own parser."""

from __future__ import annotations

import shlex

import pytest

from worker_shim.agent.elastic import NO_RESTARTS, RESTARTS_VARIABLE, notes

RESTARTS, NODES = "may start the ranks again", "may go on with"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("torchrun train.py", {}),
        ("torchrun --max-restarts 3 train.py", {}),
        ("torchrun --max_restarts=3 train.py --max-restarts 0", {}),
        ("torchrun --max-restarts=0 train.py --max-restarts 3", {RESTARTS_VARIABLE: "2"}),
        ("torchrun --nnodes 2 train.py", {RESTARTS_VARIABLE: "2"}),
        ("torchrun --nnodes=1:4 --max-restarts 1 -m my.trainer --max-restarts 0", {}),
        ("torchrun -m my.trainer --max-restarts 7 --nnodes 1:2", {}),
        ("torchrun --nnodes 2:2 --nproc-per-node 8 train.py", {}),
    ],
)
def test_notes_are_given_where_torchrun_would_be_elastic(
    command: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    from torch.distributed.run import get_args_parser

    program, *words = shlex.split(command)
    parsed = get_args_parser().parse_args(words)
    least, _, most = str(parsed.nnodes).partition(":")
    wanted = [RESTARTS] * bool(int(parsed.max_restarts)) + [NODES] * bool(most and least != most)
    for argv in (
        [f"/opt/bin/{program}", *words],
        ["python3", "-m", "torch.distributed.run", *words],
    ):
        told = notes(argv, env)
        assert len(told) == len(wanted)
        assert all(words in note for words, note in zip(wanted, told, strict=True))


@pytest.mark.torch
def test_a_worker_may_be_started_without_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {RESTARTS_VARIABLE: "3"} | NO_RESTARTS
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    from torch.distributed.run import get_args_parser

    assert int(get_args_parser().parse_args(["train.py"]).max_restarts) == 0
    assert notes(["torchrun", "train.py"], env) == ()
    own = ["--max-restarts", "3", "train.py"]
    assert int(get_args_parser().parse_args(own).max_restarts) == 3
    assert RESTARTS in "".join(notes(["torchrun", *own], env)), "it is told that its own counts"


def test_other_commands_are_nobodys_business() -> None:
    for command in ("python train.py --max-restarts 3", "mpirun -n 2 train", ""):
        assert notes(command.split(), {}) == ()
