"""The control page: one small file that a worker's ranks and their shim both map.

Layout, all fields unsigned 64-bit in native order. Header (64 bytes):

    0 magic     1 hold      2 target    3 slots     4 incarnation   5 tear_down     6..7 spare

then one slot of 128 bytes per local rank:

    0 pid       1 start     2 rank + 1  3 local rank    4 world size    5 local world size
    6 boundary  7 parked    8 state     9 sync_us      10 flags
    11 communicators        12 nccl_result             13 shim_nccl        14..15 spare

* `hold` is 0, or the generation of the present hold: a rank that finishes a step and sees it
  non-zero waits until `target` is set, goes on to the target, and there writes `parked = hold`.
* `target` is 0 (not known yet) or the boundary at which all ranks park.
* `tear_down` is 0, or the generation of a hold in which every rank of the job is parked: this one
  then destroys its NCCL communicators, and builds them anew as it is let go.
* `boundary` is written by the rank alone, before it reads `hold`; everything in the header is
  written by the shim alone. That is all the locking there is: see "Why max(n) + 1" in
  design/design.md.
* `flags` is written by the rank alone: bit 0 (`FLAG_NO_STEPS`) while it has said that it takes no
  steps for now.
* `shim_nccl` is the version code of the NCCL that the checkpoint shim in this process was built for
  (23007 is 2.30.7); 0: there is none, or it does not say.
* CRIU reopens the file like any other, with the content the file *then* has, so the shim writes
  every field anew before a restore.

Standard library only; this module runs inside the user's ranks.
"""

from __future__ import annotations

MAGIC = 0x616C6C73746F7031  # "allstop1"
HEADER_BYTES = 64
SLOT_BYTES = 128

HEADER_FIELDS = ("magic", "hold", "target", "slots", "incarnation", "tear_down")
SLOT_FIELDS = (
    "pid",
    "start",
    "rank_plus_1",
    "local_rank",
    "world_size",
    "local_world_size",
    "boundary",
    "parked",
    "state",
    "sync_us",
    "flags",
    "communicators",
    "nccl_result",
    "shim_nccl",
)

STATE_EMPTY = 0
STATE_RUNNING = 1
STATE_HELD = 2  # waits at a boundary, target not known yet
STATE_PARKED = 3
STATE_BROKEN = 4  # the hook met an error and has withdrawn; the rank runs on unobserved
STATE_REBUILDING = 5  # let go, and building its communicators anew

COMMUNICATORS_NONE = 0  # NCCL's checkpoint shim is not in this process, or not to be used
COMMUNICATORS_UP = 1
COMMUNICATORS_DOWN = 2
COMMUNICATORS_REBUILDING = 3
COMMUNICATORS_FAILED = 4  # `nccl_result` says how
COMMUNICATORS_GOING_DOWN = 5  # destroying them has begun; whatever happens, a rebuild follows

FLAG_NO_STEPS = 1

PATH_VARIABLE = "ALLSTOP_CONTROL_PAGE"


def page_bytes(slots: int) -> int:
    """Size of the file for so many local ranks, rounded up to 4 KiB."""
    return -(-(HEADER_BYTES + slots * SLOT_BYTES) // 4096) * 4096
