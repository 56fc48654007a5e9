"""Which of the recorded connections are the job's own, and which lead out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from coordinator.core.model import Endpoint, WorkerRecord

NAMED = 4


def of_the_job(records: Iterable[WorkerRecord]) -> dict[int, tuple[Endpoint, ...]]:
    """By worker, the connections whose other end another worker recorded.

    Only these can come back established: the other end of every other one is not restored.
    """
    found = list(records)
    owner = {_key(end, record): record.worker for record in found for end in record.connections}
    return {
        record.worker: tuple(
            end
            for end in record.connections
            if owner.get(_key(_reverse(end), record), record.worker) != record.worker
        )
        for record in found
    }


def leaving(records: Iterable[WorkerRecord]) -> tuple[str, ...]:
    """One sentence a worker for its connections that lead out of the job."""
    found = list(records)
    ends = {_key(end, record) for record in found for end in record.connections}
    notes: list[str] = []
    for record in sorted(found, key=lambda r: r.worker):
        out = [end for end in record.connections if _key(_reverse(end), record) not in ends]
        if out:
            names = Counter(f"{end.remote_address}:{end.remote_port}" for end in out)
            told = [name if count == 1 else f"{name} ({count})" for name, count in names.items()]
            more = f" and {len(told) - NAMED} others" if len(told) > NAMED else ""
            notes.append(
                f"worker {record.worker}: what is connected to {', '.join(told[:NAMED])}{more}, "
                "outside the job, comes back closed"
            )
    return tuple(notes)


def _key(end: Endpoint, record: WorkerRecord) -> tuple[str, Endpoint]:
    """A connection over loopback is one of its node alone."""
    local = end.local_address == "::1" or end.local_address.startswith("127.")
    return (record.node if local else "", end)


def _reverse(end: Endpoint) -> Endpoint:
    return Endpoint(end.remote_address, end.remote_port, end.local_address, end.local_port)
