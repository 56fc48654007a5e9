"""The table of GPU trouble for people.

`python -m coordinator.health.page > docs/gpu-health.md` writes the page anew; a test fails when it
differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from coordinator.health.table import Row, table

BEGIN = """\
# What is done about sick GPUs

Every shim on a node with an NVIDIA driver watches its GPUs: a helper process waits for the driver's
events (Xids, memory errors, changes of the recovery action) and reads its counters every five
seconds. With `--dcgm-url http://127.0.0.1:9400/metrics` DCGM's exporter is read beside it: Xids,
row remaps, retired pages and, where its counters file has it, `DCGM_FI_DEV_ECC_DBE_VOL_TOTAL`. The
file that comes with the exporter has not: there an uncorrected error shows as its Xid alone, and
the same Xid twice in a row is seen once. Add that counter and `DCGM_FI_DEV_ROW_REMAP_PENDING` to
it. What happens is told to the leading coordinator, which looks it up in the rows below and then

* **ignores** it: `allstop nodes` shows it, and that is all;
* **drains** the node, as `allstop drain` does: its jobs are saved and go on elsewhere, no step is
  lost. Each such row has a time for the last checkpoint to be whole. Where the job's checkpoints
  are known to take longer, or the checkpoint fails, the next one holds;
* **restores** elsewhere: jobs with a rank on a GPU of that node go back to their last good
  snapshot, on other nodes. Nothing is stopped before a plan was found: without other nodes the run
  goes on where it is, and is tried again, at once when nodes come, for as long as the job's policy
  waits.

Both move only jobs whose policy says `--on-failure restore`; others are left alone, and told of. A
node is not drained while a job on it is to be left alone. What was done and why is in
`allstop story JOB`, and below the table of `allstop nodes`.

A node with a GPU that a row drains or restores for takes no workers with GPUs, until its shim says
otherwise. It does that when the driver's count of memory errors has begun anew, when a lost GPU
answers again, and when it was started anew itself: **end the shim before you reset a GPU** (its
helper has the device open, which `nvidia-smi` refuses to reset), and start it again afterwards.
What was there when a shim began moves no job, since its workers began after it.

## Suspect snapshots

A snapshot that a rank was saved into through a GPU with an uncorrected memory error is **suspect**
where that happened before or during the attempt, and the GPU was not reset since: what it holds may
be wrong, though every byte is stored as it was read. Where it is known which GPUs a worker used,
only these count. The commit itself records why; `allstop snapshots` and `allstop show` tell it.

* A restore without `--snapshot`, a recovery and a drain take the newest snapshot that is whole and
  not suspect.
* Where all are suspect, a restore without `--snapshot` is refused, and a recovery goes on as
  without a snapshot (its last resort). `allstop restore JOB --snapshot ID` takes a suspect one all
  the same, with a warning. Nobody but you can say whether the error hit the job: look at its loss.
* A drain that had to stop a job with a suspect snapshot and finds no good one puts that one back:
  with just this state the run would have gone on without the drain. What that run saves is suspect
  too, also on healthy GPUs, until it goes on from a snapshot that you have named.
* Retention never lets a suspect snapshot push out a good one: it is not counted among the last n,
  and the newest good one always stays.

## The rows

They are those of [table.toml](../coordinator/health/table.toml), which says at its top what a row
has and what the short sources are. A file like it with rows of your own, given to every coordinator
by `--gpu-policy FILE`, comes before them: to have Xid 63 drain a node,

<!-- not run: rows of a table, no options -->
```toml
[[row]]
code = "our_remap_event"
xid = "63"
verdict = "drain"
deadline_s = 300
words = "a part of its memory is replaced at the next reset"
source = ["our runbook"]
```

What no row speaks of is ignored, and told.

| code | seen | verdict | suspect | deadline | what it is | known from |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return BEGIN + "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    for row in table().row:
        suspect = "suspect" if row.uncorrected else ""
        deadline = f"{row.deadline_s:.0f} s" if row.deadline_s else ""
        cells = (row.verdict, suspect, deadline, row.words, "; ".join(row.source))
        yield f"| `{row.code}` | {_seen(row)} | {' | '.join(cells)} |"


def _seen(row: Row) -> str:
    if row.xid:
        return f"Xid {row.xid}"
    return f"{row.seen} {row.action}".strip()


if __name__ == "__main__":
    sys.stdout.write(page())
