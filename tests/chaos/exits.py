"""How the programs that play runs end: their summary last, and their exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from coordinator.core.errors import AllstopError
from lab.errors import LabError

INTERRUPTED = 130


def ended(run: Callable[[], dict[str, Any]], well: Callable[[dict[str, Any]], bool]) -> int:
    """Run it and print its summary; 0: all was well, 1: it was not, 2: it could not be played."""
    try:
        summary = run()
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return INTERRUPTED
    except (LabError, AllstopError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary), flush=True)
    return 0 if well(summary) else 1
