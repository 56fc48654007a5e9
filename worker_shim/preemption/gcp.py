"""Compute Engine: `instance/preempted` and `instance/maintenance-event`.

As its documentation has it ("Create and use preemptible/Spot VMs", "Query metadata server for
maintenance event notices", "Handle GPU host maintenance events", "wait_for_change"): requests carry
`Metadata-Flavor: Google`. `preempted` is FALSE, then TRUE, and 30 s later the VM is stopped.
`maintenance-event` is NONE, MIGRATE_ON_HOST_MAINTENANCE (it goes on elsewhere by itself: no notice
for us) or TERMINATE_ON_HOST_MAINTENANCE, one hour before on VMs with GPUs and 60 s on others. With
`wait_for_change=true`, the `last_etag` that was seen and `timeout_sec` the service answers at the
next change, or with the old value after that time.
"""

from __future__ import annotations

from coordinator.core.errors import DriverError
from worker_shim.preemption.metadata import REQUEST_S, Metadata
from worker_shim.preemption.watching import Going, Heard

URL = "http://metadata.google.internal/computeMetadata/v1"
WAIT_S = 60
ETAG_CHARS_MAX = 200
HEADERS = {"Metadata-Flavor": "Google"}
STAYS = frozenset({"FALSE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE"})


class Key:
    """One key, waited on for its next change."""

    pause_s = 1.0  # where the service does not wait

    def __init__(self, metadata: Metadata, heard: Heard, key: str, goes: dict[str, Going]) -> None:
        """`goes`: values that mean that the VM goes."""
        self.name = f"gcp {key}"
        self._metadata = metadata
        self._heard = heard
        self._key = key
        self._goes = goes
        self._etag = ""

    async def look(self) -> None:
        """Wait for a change; raises DriverError, and then asks without waiting the next time."""
        etag, self._etag = self._etag, ""
        path, deadline_s = f"/instance/{self._key}", REQUEST_S
        if etag:
            path += f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={etag}"
            deadline_s += WAIT_S
        answer = await self._metadata.ask(path, HEADERS, deadline_s=deadline_s)
        value = answer.require(self._key).text.strip()
        if value not in STAYS and value not in self._goes:
            raise DriverError(f"{self._key} is {value[:60]!r}, which is not known")
        if answer.etag.isalnum() and answer.etag.isascii():
            self._etag = answer.etag[:ETAG_CHARS_MAX]
        self._heard.say(self.name, self._goes.get(value))


def keys(metadata: Metadata, heard: Heard, *, gpus: bool) -> tuple[Key, ...]:
    """What is watched; `gpus`: this VM has some."""
    hour = 3600.0 if gpus else 60.0
    preempted = {"TRUE": Going("the VM is preempted", within_s=30.0)}
    maintained = {
        "TERMINATE_ON_HOST_MAINTENANCE": Going("the VM is stopped for maintenance", within_s=hour)
    }
    return (
        Key(metadata, heard, "preempted", preempted),
        Key(metadata, heard, "maintenance-event", maintained),
    )
