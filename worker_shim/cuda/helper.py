"""The process that calls the CUDA driver API for a shim: one request a line, one answer a line.

Started as `python -m worker_shim.cuda.helper`. Calls may hang or kill their caller, so they are
made neither in the shim, which answers a coordinator, nor in a rank. Requests are carried out one
after another. It holds no context, so no device memory; it ends with its standard input.

    (its first word)                                  {"result": 0, "version": 13000, "moves": true}
    {"call": "state", "pid": 1000}                    {"result": 0, "value": 1}
    {"call": "lock", "pid": 1000, "timeout_ms": 500}  {"result": 600, "words": "device not ready"}
    {"call": "restore", "pid": 1000, "devices": [["GPU-…", "GPU-…"]]}
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

MAP_VERSION = 13000  # of the driver API, the first whose restore takes a map
NEEDED = (
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessGetRestoreThreadId",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
)
_UNKNOWN = re.compile(r"(\d+) is not a valid (CUprocessState|CUresult)")


def main() -> int:
    """Answer until the input ends."""
    try:
        calls = Calls()
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return 1
    answer({"result": 0, "version": calls.version, "moves": calls.moves})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(calls.carry_out(request))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
    return 0


def answer(fields: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Calls:
    """The driver API, initialised once."""

    def __init__(self, driver: Any = None) -> None:
        """Raise where there is no driver, or these bindings have no checkpointing.

        `driver`: the module of the bindings; None: the one that is installed.
        """
        if driver is None:
            driver = importlib.import_module("cuda.bindings.driver")
        self._driver = driver
        missing = [name for name in NEEDED if not hasattr(driver, name)]
        if missing:
            raise RuntimeError(f"these cuda-bindings lack {missing[0]}")
        (result,) = driver.cuInit(0)
        if int(result):
            raise RuntimeError(f"cuInit: {self._words(result)}")
        result, self.version = driver.cuDriverGetVersion()
        if int(result):
            raise RuntimeError(f"cuDriverGetVersion: {self._words(result)}")
        self.moves = self.version >= MAP_VERSION and self._bindings_map()
        self._by_name: dict[str, Callable[[int, dict[str, Any]], tuple[Any, ...]]] = {
            "state": lambda pid, _: driver.cuCheckpointProcessGetState(pid),
            "thread": lambda pid, _: driver.cuCheckpointProcessGetRestoreThreadId(pid),
            "lock": self._lock,
            "checkpoint": lambda pid, _: driver.cuCheckpointProcessCheckpoint(pid, None),
            "restore": self._restore,
            "unlock": lambda pid, _: driver.cuCheckpointProcessUnlock(pid, None),
        }

    def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """One call and what came of it."""
        try:
            result, *values = self._by_name[request["call"]](request["pid"], request)
        except (ValueError, KeyError) as error:
            return _without_name(error)
        if int(result):
            return {"result": int(result), "words": self._words(result)}
        return {"result": 0, "value": int(values[0]) if values else 0}

    def _bindings_map(self) -> bool:
        """Bindings of CUDA 12 lack the field, and some of 13 the class of a pair."""
        arguments = getattr(self._driver, "CUcheckpointRestoreArgs", None)
        return hasattr(arguments, "gpuPairs") and hasattr(self._driver, "CUcheckpointGpuPair")

    def _lock(self, pid: int, request: dict[str, Any]) -> tuple[Any, ...]:
        arguments = self._driver.CUcheckpointLockArgs()
        arguments.timeoutMs = request["timeout_ms"]
        made: tuple[Any, ...] = self._driver.cuCheckpointProcessLock(pid, arguments)
        return made

    def _restore(self, pid: int, request: dict[str, Any]) -> tuple[Any, ...]:
        arguments = None
        if request["devices"]:
            pairs = [self._pair(old, new) for old, new in request["devices"]]
            arguments = self._driver.CUcheckpointRestoreArgs()
            arguments.gpuPairs = pairs
            arguments.gpuPairsCount = len(pairs)
        made: tuple[Any, ...] = self._driver.cuCheckpointProcessRestore(pid, arguments)
        return made

    def _pair(self, old: str, new: str) -> Any:
        pair = self._driver.CUcheckpointGpuPair()
        pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
        return pair

    def _uuid(self, text: str) -> Any:
        made = self._driver.CUuuid()
        raw = uuid.UUID(text.removeprefix("GPU-")).bytes
        ctypes.memmove(made.getPtr(), raw, len(raw))  # its `bytes` can only be read
        return made

    def _words(self, result: Any) -> str:
        _, words = self._driver.cuGetErrorString(result)
        return words.decode() if words else f"result {int(result)}"


def _without_name(error: ValueError | KeyError) -> dict[str, Any]:
    """What the driver said where it is newer than the bindings, which have no name for it.

    They raise ValueError then, of the enum; some look results up in a dictionary.
    """
    unknown = _UNKNOWN.search(str(error))
    if unknown is not None and unknown[2] == "CUprocessState":
        return {"result": 0, "value": int(unknown[1])}
    number = int(unknown[1]) if unknown is not None else error.args[0]
    if not isinstance(number, int):
        raise error
    return {"result": number, "words": f"result {number}"}


if __name__ == "__main__":
    sys.exit(main())
