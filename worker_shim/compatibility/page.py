"""The table for people: by `allstop doctor --matrix`, and on the page docs/gpus.md.

`python -m worker_shim.compatibility.page > docs/gpus.md` writes the page anew; a test fails when it
differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker_shim.compatibility.judging import answer
from worker_shim.compatibility.situation import VERSIONED, Situation
from worker_shim.compatibility.table import Row, table

SEEN = " ({seen})"
BEGIN = """\
# What can be checkpointed on GPUs

Ranks that use NVIDIA GPUs are saved with them: the driver brings device memory into the process
(CUDA's checkpoint API, or the program cuda-checkpoint), and CRIU saves the process. It takes

* driver 570 or newer, better 580 or newer; on aarch64 595;
* whole GPUs, used directly: no MIG, no MPS;
* NCCL in a mode of the job's ([operating.md](operating.md#nccl)): torn down for a moment by its
  checkpoint shim, of the very same version (2.30 or newer), or over TCP alone with driver 610;
* TCP between nodes: NCCL keeps InfiniBand and RoCE cards open when it is torn down;
* no process that was forked after CUDA was used and still holds the device;
* memory on the host for what is on the GPUs.

**Not tried on hardware.** All of this has been run with NVIDIA's own bindings and real CRIU, but
only over a device and a driver that are fakes (`tests/fakes/gpu`), and NCCL's rebuild only with a
stand-in for its checkpoint shim. What drivers do and say comes from their documentation and from
reports of others, the signs of managed memory and of MIG instances too. `make test-gpu` tries it on
a machine with a GPU, `make bench-gpu` measures there, and `python -m tests.gpu.probe` asks a driver
for its own words; results of such runs would be in `bench/results`.

**Not seen from outside**, and so said by no preflight: CUDA graphs that hold collectives (with
driver 610 they and NVLS exclude each other), Transformer Engine's `tp_comm_overlap`, PyTorch's
symmetric memory and other memory that two processes share by CUDA IPC without NCCL, NCCL's device
API, and managed memory for certain. Switch them off. A save that fails for one of them is undone,
and the job runs on; where the driver has ended the process in trying, the job goes back to its last
snapshot.

The preflight holds every worker against the rows below. They are those of
[table.toml](../worker_shim/compatibility/table.toml), which says at its top how to add one, and
what the short sources are. `allstop doctor` tells what speaks against a node, `allstop doctor
--matrix` all of them, and which apply there. What is done when a GPU falls sick is in
[gpu-health.md](gpu-health.md).

| code | about | driver | when | verdict | why | known from |
|---|---|---|---|---|---|---|
"""
MEANINGS = """
`when` names what must have been seen, or not:

| name | means |
|---|---|
"""


@dataclass(frozen=True)
class Told:
    """A row as people read it."""

    here: str  # yes, no, depends; empty: no node was looked at
    code: str
    about: str
    verdict: str
    driver: str
    when: str
    words: str
    advice: str
    source: str


def told(situation: Situation | None = None, rows: Sequence[Row] | None = None) -> Iterator[Told]:
    """Every row; with a node's situation, whether it applies there."""
    for row in table().row if rows is None else rows:
        yield Told(
            here=str(answer(row, situation)) if situation else "",
            code=row.code,
            about=row.about,
            verdict=str(row.verdict),
            driver=row.driver,
            when=_when(row),
            words=_in_general(row, row.words),
            advice=_in_general(row, row.advice),
            source=", ".join(row.source),
        )


def _when(row: Row) -> str:
    """The conditions beside the driver's."""
    named = [(name, getattr(row, name)) for name in VERSIONED if name != "driver"]
    conditions = [f"{name} {wanted}" for name, wanted in named if wanted]
    conditions += [row.architecture] if row.architecture else []
    conditions += [*row.seen, *(f"no {name}" for name in row.unseen)]
    return ", ".join(conditions)


def _in_general(row: Row, text: str) -> str:
    """The sentence without a worker: what would be seen is left out, a version is its range."""
    versions = {name: getattr(row, name).removeprefix("==") for name in VERSIONED}
    return text.replace(SEEN, "").format(**versions, architecture=row.architecture)


def page() -> str:
    """The whole of docs/gpus.md."""
    rows = "".join(f"| {' | '.join(map(_cell, _cells(row)))} |\n" for row in told())
    known = (*table().node.items(), *table().tree.items())
    return BEGIN + rows + MEANINGS + "".join(f"| {name} | {text} |\n" for name, text in known)


def _cells(row: Told) -> tuple[str, ...]:
    why = f"{row.words}; {row.advice}"
    return (f"`{row.code}`", row.about, row.driver, row.when, row.verdict, why, row.source)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
