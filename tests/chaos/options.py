"""What a run of chaos is told, and the numbers that it goes by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOB = "digits"
BUSY = ("n0", "n1")
SPARES = ("n2",)
NODES = (*BUSY, *SPARES)
COORDINATORS = ("c0", "c1", "c2")
MEMBERS = ("e0", "e1", "e2")
HOSTS = (*NODES, *COORDINATORS, *MEMBERS)
RANKS = range(len(BUSY))  # one of each busy node; torchrun is part of the tree all the same

LEASE_S = 4.0
POLICY = {
    "attempt_s": 60,
    "hold_s": 8,
    "park_s": 8,
    "dump_s": 20,
    "resume_s": 15,
    "persist_s": 45,
    "commit_s": 15,
    "undo_s": 15,
    "adopt_s": 12,
    "margin_s": 3,
    "restore_s": 90,
    "fetch_s": 45,
    "clear_s": 20,
    "rebuild_s": 30,
    "release_s": 15,
}
STAGING_BYTES = 2 << 30  # of each node, in memory; only what is staged takes room
SOUND_S = 100.0  # until the job steps again: dead-man timers, then TCP's own patience
CLEAN_S = 40.0  # until an attempt that failed has left nothing
ACTION_S = 200.0  # until an action has ended, whatever happens to it
START_S = 240.0
VERIFY_STEPS = 8  # after a restore, of each rank; all are compared with the undisturbed run
UNVERIFIED_MAX = 3  # snapshots whose images wait to be restored


@dataclass(frozen=True)
class ChaosOptions:
    """How long, with what chance, and what is kept."""

    minutes: float = 10.0
    seed: int = 0
    pause_s: float = 0.08  # of a rank after each step: the processors are for allstop
    epochs: int = 4000  # more than any run comes to
    keep: Path | None = None  # history and logs are copied there
    only: tuple[str, ...] = ()  # kinds of fault; empty: all
