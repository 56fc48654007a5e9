"""Where the workers of a run were by the records of earlier leaders, and which node has lost one.

For a leader that has not seen them itself; see design/adr/0007-the-old-run.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.core.known import Job
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    RestoreRecord,
    RestoreState,
    WorkerState,
)


def remember(jobs: Mapping[str, Job], records: Iterable[AttemptRecord | RestoreRecord]) -> None:
    """Committed attempts, and restores that run, tell where workers were."""
    for record in sorted(records, key=lambda each: each.incarnation):
        job = jobs.get(record.job)
        if job is None or not job.base <= record.incarnation <= job.incarnation:
            continue
        if isinstance(record, RestoreRecord) and record.state is RestoreState.RUNNING:
            job.homes = {p.worker: p.to_node for p in record.plan.placements}
        elif isinstance(record, AttemptRecord) and record.state is AttemptState.COMMITTED:
            job.homes = dict(enumerate(record.nodes))


def look(jobs: Mapping[str, Job], node: str, alive: Iterable[WorkerState]) -> None:
    """A node comes with these workers: whoever was there and is not among them is gone."""
    there = {(state.job, state.worker) for state in alive}
    for job in jobs.values():
        if any(at == node and (job.name, worker) not in there for worker, at in job.homes.items()):
            job.vacated = True
