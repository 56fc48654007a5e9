"""Whether a job that comes back gets anywhere: crashes counted by how far it got before each.

A crash at `crash_step` or before is one more of the same. One further on is the first of its kind,
but what was left behind stays so: only a snapshot from beyond `crash_step` shows that the job is
out of it. Snapshots that were taken on the way there again, after one was left behind, are
suspects: they are left behind too once that run has ended no further.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.job_policy import JobRecovery

SKIPPED_MAX = 100
FAILED_ON_MAX = 100


def crashed(record: JobRecovery, step: int, why: str) -> JobRecovery:
    """The job itself has failed at a step, and not a node of it."""
    again = record.crashes > 0 and step <= record.crash_step
    skipped = record.skipped
    if record.skipped and step <= record.crash_step:
        skipped = _with(record.skipped, *record.suspects)
    return replace(
        record,
        crashes=record.crashes + 1 if again else 1,
        crash_step=max(step, record.crash_step) if record.crashes or record.skipped else step,
        skipped=skipped,
        suspects=(),
        why=why,
    )


def committed(record: JobRecovery, snapshot: str, step: int) -> JobRecovery:
    """The job got as far as another snapshot; 0: nobody knows at which step that is."""
    if 0 < step <= record.crash_step and (record.crashes or record.skipped):
        suspects = _with(record.suspects, snapshot) if record.skipped else ()
        return replace(record, tries=0, suspects=suspects)
    return begun_anew(record)


def left(record: JobRecovery, snapshot: str) -> JobRecovery:
    """A snapshot is left behind, and an older one is to be tried."""
    return replace(
        record,
        skipped=_with(record.skipped, snapshot),
        left_behind=record.left_behind + 1,
        tries=0,
        crashes=0,
    )


def begun_anew(record: JobRecovery) -> JobRecovery:
    """What went wrong before is over, or is not to count any more."""
    return replace(
        record,
        tries=0,
        crashes=0,
        crash_step=0,
        skipped=(),
        suspects=(),
        left_behind=0,
        scratch=0,
        failed_on=(),
    )


def failed_on(record: JobRecovery, node: str) -> JobRecovery:
    """A restore has failed on a node, which may be at fault."""
    return replace(record, failed_on=(*record.failed_on, node)[-FAILED_ON_MAX:])


def _with(names: tuple[str, ...], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))[-SKIPPED_MAX:]
