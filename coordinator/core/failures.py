"""Errors as values: what the core keeps in records and announces, and back again."""

from __future__ import annotations

from coordinator.core.errors import AllstopError, Where, all_kinds
from coordinator.core.model import Failure


def failure_of(error: AllstopError) -> Failure:
    """The error as a value; parts of the place that are not known become -1 or empty."""
    where = error.where
    return Failure(
        kind=type(error).__name__,
        what=error.what,
        job=where.job,
        worker=-1 if where.worker is None else where.worker,
        rank=-1 if where.rank is None else where.rank,
        node=where.node,
        phase=where.phase,
        advice=error.advice,
        definite=error.definite,
        details=error.details,
    )


def error_of(failure: Failure) -> AllstopError:
    """The value as an error to raise; an unknown kind becomes AllstopError."""
    kind = all_kinds().get(failure.kind, AllstopError)
    return kind(
        failure.what,
        where=Where(
            job=failure.job,
            worker=failure.worker if failure.worker >= 0 else None,
            rank=failure.rank if failure.rank >= 0 else None,
            node=failure.node,
            phase=failure.phase,
        ),
        advice=failure.advice,
        definite=failure.definite,
        details=failure.details,
    )


def listed(names: list[str], limit: int = 8) -> str:
    """Join names for a sentence, with a count in place of what is over the limit."""
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"
