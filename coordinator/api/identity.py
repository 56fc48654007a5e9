"""Ids of attempts and restores: readable, sortable by time, unique."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def attempt_id(job: str, unix_s: float) -> str:
    """Such as `llm-20261129-132455-3f2a9c`; ids of one job sort by the second they were made in."""
    return f"{job}-{_stamp(unix_s)}-{secrets.token_hex(3)}"


def restore_id(job: str, unix_s: float) -> str:
    """Such as `llm-20261129-132455-r-3f2a9c`; the `r` tells a restore from a snapshot."""
    return f"{job}-{_stamp(unix_s)}-r-{secrets.token_hex(3)}"


def _stamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%d-%H%M%S")
