"""The garbage collector of a coordinator's process, which holds much and makes little garbage."""

from __future__ import annotations

import gc

# Python's own first threshold is 700 objects: one message of a thousand streams makes that many,
# and each full collection walks all streams. Measured with 1,024 shims: a quarter of all time.
THRESHOLDS = (50_000, 20, 50)


def collect_seldom() -> None:
    """Collect less often, for the whole process: reference counts free nearly everything anyway."""
    gc.set_threshold(*THRESHOLDS)
