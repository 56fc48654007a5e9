"""A wall clock that a test sets: `time.time` plus the seconds in the file $CLOCK_OFFSET.

For allstop's own code alone: gRPC takes `time.time` for deadlines that its core holds against the
machine's clock, which a test cannot set.
"""

import os
import sys
import time

_real = time.time
_file = os.environ["CLOCK_OFFSET"]


def _shifted() -> float:
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if not caller.startswith("coordinator."):
        return _real()
    with open(_file) as offset:
        return _real() + float(offset.read())


time.time = _shifted
