"""Ids of attempts, restores and cleanings: readable, sortable by time, unique."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from coordinator.core.errors import BadRequest

ATTEMPT = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{6}")  # what follows the job's name
RESTORE = re.compile(r"-\d{8}-\d{6}-r-[0-9a-f]{6}")
CLEANING = re.compile(r"-\d{8}-\d{6}-c-[0-9a-f]{6}")


def attempt_id(job: str, unix_s: float) -> str:
    """Such as `llm-20261129-132455-3f2a9c`; ids of one job sort by the second they were made in."""
    return f"{job}-{_stamp(unix_s)}-{secrets.token_hex(3)}"


def restore_id(job: str, unix_s: float) -> str:
    """Such as `llm-20261129-132455-r-3f2a9c`; the `r` tells a restore from a snapshot."""
    return f"{job}-{_stamp(unix_s)}-r-{secrets.token_hex(3)}"


def cleaning_id(job: str, unix_s: float) -> str:
    """Such as `llm-20261129-132455-c-3f2a9c`, of a deletion or collection."""
    return f"{job}-{_stamp(unix_s)}-c-{secrets.token_hex(3)}"


def chosen_id(kind: re.Pattern[str], job: str, identity: str) -> str:
    """The id that whoever asks has chosen, or empty; raises BadRequest for one not as ours are."""
    if identity and not (
        identity.startswith(job) and kind.fullmatch(identity.removeprefix(job)) is not None
    ):
        raise BadRequest(
            f"{identity[:200]!r} cannot be the id of this request about job {job}",
            advice=f"leave it empty, or choose one such as {attempt_id(job, 1.8e9)}",
        )
    return identity


def _stamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%d-%H%M%S")
