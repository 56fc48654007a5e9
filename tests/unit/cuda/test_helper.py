"""The helper over bindings of several versions: what they lack, and what they cannot name."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from worker_shim.cuda.helper import NEEDED, Calls


class States(IntEnum):
    """Those that the bindings know."""

    RUNNING = 0


class PlainArguments:
    """CUcheckpointRestoreArgs of CUDA 12: reserved bytes, and nothing can be put into it."""

    __slots__ = ()


class Arguments:
    """CUcheckpointRestoreArgs of CUDA 13."""

    __slots__ = ("gpuPairs", "gpuPairsCount")


class Pair:
    """CUcheckpointGpuPair."""


class Bindings(SimpleNamespace):
    """`cuda.bindings.driver`, as far as it is needed; `said` are arguments of the last call."""


def bindings(version: int = 13000, **more: Any) -> Bindings:
    """Whole ones, but for `more`; what is None there is not there at all."""
    made = Bindings(
        cuInit=lambda flags: (0,),
        cuDriverGetVersion=lambda: (0, version),
        cuGetErrorString=lambda result: (0, b"its words"),
        CUcheckpointRestoreArgs=Arguments,
        CUcheckpointGpuPair=Pair,
    )

    def call(*arguments: Any) -> tuple[int, int]:
        made.said = arguments
        return 0, 0

    for name in NEEDED:
        setattr(made, name, call)
    vars(made).update(more)
    for name in [name for name, value in vars(made).items() if value is None]:
        delattr(made, name)
    return made


@pytest.mark.parametrize(
    ("made", "moves"),
    [
        (bindings(), True),
        (bindings(12080), False),
        (bindings(CUcheckpointRestoreArgs=PlainArguments), False),
        (bindings(CUcheckpointGpuPair=None), False),
        (bindings(CUcheckpointRestoreArgs=None), False),
    ],
    ids=["whole", "old driver", "old bindings", "no pair", "no arguments"],
)
def test_whether_it_takes_a_map(made: Bindings, moves: bool) -> None:
    assert Calls(made).moves is moves


def test_a_restore_without_a_map_needs_nothing_of_the_bindings() -> None:
    made = bindings(12080, CUcheckpointRestoreArgs=PlainArguments)
    request = {"call": "restore", "pid": 5, "devices": []}
    assert Calls(made).carry_out(request) == {"result": 0, "value": 0}
    assert made.said == (5, None)


def test_bindings_without_checkpointing_are_refused() -> None:
    made = bindings(cuCheckpointProcessLock=None)
    with pytest.raises(RuntimeError, match="lack cuCheckpointProcessLock"):
        Calls(made)


def unknown_result(pid: int) -> Any:
    raise ValueError("917 is not a valid CUresult")


def unknown_result_of_old_bindings(pid: int) -> Any:
    raise KeyError(917)


@pytest.mark.parametrize("raising", [unknown_result, unknown_result_of_old_bindings])
def test_a_result_without_a_name_is_told_by_its_number(raising: Any) -> None:
    told = Calls(bindings(cuCheckpointProcessGetState=raising)).carry_out(
        {"call": "state", "pid": 5}
    )
    assert told == {"result": 917, "words": "result 917"}


def test_a_state_without_a_name_is_told_by_its_number() -> None:
    made = bindings(cuCheckpointProcessGetState=lambda pid: (0, States(7)))
    with pytest.raises(ValueError, match="7 is not a valid States"):
        Calls(made).carry_out({"call": "state", "pid": 5})  # some other enum is a bug of ours

    def as_the_bindings(pid: int) -> Any:
        raise ValueError("7 is not a valid CUprocessState")

    made = bindings(cuCheckpointProcessGetState=as_the_bindings)
    assert Calls(made).carry_out({"call": "state", "pid": 5}) == {"result": 0, "value": 7}


def test_another_mistake_is_not_taken_for_an_answer() -> None:
    with pytest.raises(KeyError):
        Calls(bindings()).carry_out({"call": "sing", "pid": 5})
