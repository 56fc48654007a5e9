"""Watch the node's GPUs through NVML: `python -m worker_shim.health.watcher POLL_S`.

Prints one JSON object a line: every event of the driver as it comes, and what its counters say,
each POLL_S, after each event, and when a line is read. Ends with its standard input. A process of
its own, since the driver's library can hang or crash whoever has loaded it, and keeps devices open.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

WAIT_S = 0.25  # for an event, before standard input is looked at
RESET_REQUIRED = 16  # NVML_ERROR_RESET_REQUIRED, which older pynvml does not name
GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, RESET_REQUIRED)
REFUSED = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
# what an event set may tell, by the names of whatever version of pynvml this is
WANTED = (
    "nvmlEventTypeXidCriticalError",
    "nvmlEventTypeDoubleBitEccError",
    "nvmlEventTypeDramRetirementFailure",
    "nvmlEventTypeGpuUnavailableError",
    "nvmlEventTypeGpuRecoveryAction",
)


class Watch:
    """The GPUs, and the set of their events where the library has such."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._events: Any = None
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                self._handles[index] = handle
                self._uuids[index] = _text(_ask(pynvml.nvmlDeviceGetUUID, handle) or "")
        self._begin_events()

    def _begin_events(self) -> None:
        wanted = 0
        for name in WANTED:
            wanted |= getattr(pynvml, name, 0)
        events = _ask(pynvml.nvmlEventSetCreate)
        if events is None:
            return
        registered = 0
        for handle in self._handles.values():
            can = _ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            if can and can & wanted:
                try:
                    pynvml.nvmlDeviceRegisterEvents(handle, can & wanted, events)
                    registered += 1
                except REFUSED:
                    continue
        self._events = events if registered else None

    @property
    def by_events(self) -> bool:
        """Whether the driver tells of events, so that not all depends on counters."""
        return self._events is not None

    def wait(self) -> dict[str, Any] | None:
        """The next event, or None after a while."""
        if self._events is None:
            select.select([sys.stdin], [], [], WAIT_S)
            return None
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, int(WAIT_S * 1000))
        except REFUSED as error:
            if getattr(error, "value", None) == pynvml.NVML_ERROR_TIMEOUT:
                return None
            if getattr(error, "value", None) in GONE:
                time.sleep(WAIT_S)  # it is seen when the counters are read
                return {"event": "lost"}
            raise
        uuid = _text(_ask(pynvml.nvmlDeviceGetUUID, data.device) or "")
        index = next((at for at, known in self._uuids.items() if uuid and known == uuid), -1)
        xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        code = int(data.eventData) if xid else 0
        return {"event": "xid" if xid else "other", "uuid": uuid, "index": index, "code": code}

    def look(self) -> list[dict[str, Any]]:
        """What the counters of each GPU say."""
        return [
            {"index": index, "uuid": self._uuids[index], **_counters(handle)}
            for index, handle in self._handles.items()
        ]


def _counters(handle: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"lost": _lost(handle)}
    if found["lost"]:
        return found
    ecc = _ask(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    pending = _ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    if ecc is not None:
        found["ecc"] = int(ecc)
    if rows is not None or pending is not None:
        found["remap_pending"] = bool(pending or (rows is not None and rows[2]))
        found["remap_failed"] = bool(rows is not None and rows[3])
    action = _recovery(handle)
    if action is not None:
        found["recovery"] = action
    return found


def _lost(handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except REFUSED as error:
        return getattr(error, "value", None) in GONE
    return False


def _recovery(handle: Any) -> int | None:
    """What the driver says is to be done with a GPU; None: this one says nothing."""
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    found = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [field]) if field is not None else None
    if not found or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(found[0].value.uiVal)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """An answer, or None where this driver does not know or the GPU does not have it."""
    try:
        return question(*arguments)
    except REFUSED:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _asked() -> bool | None:
    """Whether somebody wants a look; None: nobody is there any more."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return False
    return True if os.read(sys.stdin.fileno(), 4096) else None


def main(poll_s: float) -> None:
    """Watch until standard input ends."""
    watch, looked_at = Watch(), -poll_s
    _say({"event": "began", "by_events": watch.by_events})
    while True:
        asked = _asked()
        if asked is None:
            return
        event = watch.wait() if looked_at > 0 and not asked else None
        if event is not None:
            _say(event)
        if asked or event is not None or time.monotonic() - looked_at >= poll_s:
            _say({"event": "looked", "asked": bool(asked), "gpus": watch.look()})
            looked_at = time.monotonic()


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]))
    except REFUSED as failed:
        _say({"event": "trouble", "why": f"NVML: {failed}"})
        sys.exit(1)
