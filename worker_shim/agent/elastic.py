"""torchrun's elasticity, which a worker may bring along: said at its launch, and left as it is.

torchrun starts ranks again from the beginning of the script. A job below allstop has not failed
then, as far as anybody can tell, so nothing is restored, and the next snapshot is of less progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

MODULES = ("torch.distributed.run", "torch.distributed.launch")
RESTARTS = ("--max-restarts", "--max_restarts")
RESTARTS_VARIABLE = "PET_MAX_RESTARTS"
NO_RESTARTS = {RESTARTS_VARIABLE: "0"}  # of a worker whose torchrun is to leave failures alone
NODES = ("--nnodes",)
NODES_VARIABLE = "PET_NNODES"


def notes(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """What to tell people about a worker's command; nothing where it is not torchrun's own."""
    words = _after_torchrun(argv)
    if words is None:
        return ()
    told: list[str] = []
    restarts = _value(words, RESTARTS, env.get(RESTARTS_VARIABLE, ""))
    if restarts.isdecimal() and int(restarts):
        told.append(
            f"torchrun may start the ranks again by itself, {restarts} times and from the script's"
            " beginning: that is no failure to allstop. With --max-restarts 0 the job's policy"
            " (--on-failure restore) brings back its last snapshot in place of it"
        )
    least, _, most = _value(words, NODES, env.get(NODES_VARIABLE, "")).partition(":")
    if most and least != most:
        told.append(
            f"torchrun may go on with {least} to {most} nodes; a snapshot is of a fixed number of"
            " ranks, and can only be restored as that"
        )
    return tuple(told)


def _after_torchrun(argv: Sequence[str]) -> Sequence[str] | None:
    """What torchrun itself is told, and its script; None when the command does not begin so."""
    for at, word in enumerate(argv[:6]):
        if PurePath(word).name == "torchrun" or (word in MODULES and argv[at - 1] == "-m"):
            return argv[at + 1 :]
    return None


def _value(words: Sequence[str], names: Sequence[str], default: str) -> str:
    """An option's value, before the script begins as far as that can be told."""
    value = default
    for at, word in enumerate(words):
        name, equals, given = word.partition("=")
        if name in names:
            value = given if equals else "".join(words[at + 1 : at + 2])
        elif word.endswith(".py") or word in ("-m", "--module", "--no-python", "--no_python"):
            break
    return value
