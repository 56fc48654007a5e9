"""Azure: Scheduled Events of the Instance Metadata Service.

As its documentation has it ("Azure Metadata Service: Scheduled Events for Linux VMs", api-version
2020-07-01): `GET /metadata/scheduledevents` with the header `Metadata: true` gives
`{"DocumentIncarnation": 1, "Events": [{"EventId", "EventType", "ResourceType", "Resources",
"EventStatus", "NotBefore", …}]}`. Events of other VMs of a scale set are among them: `Resources`
has the names. EventType is Reboot, Redeploy, Preempt, Terminate, or Freeze, which pauses the VM for
some seconds and is no notice for us. `NotBefore` is `Mon, 19 Sep 2016 18:29:47 GMT`, and empty once
the event has started. `POST {"StartRequests": [{"EventId": …}]}` says that it may start now. That
is for all its resources, so it is said only of an event of this VM alone, once nothing runs here.
The first request of all may take two minutes; they recommend one a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import structlog

from coordinator.core.errors import DriverError
from worker_shim.preemption.metadata import REQUEST_S, Metadata
from worker_shim.preemption.watching import Going, Heard, read_object

log = structlog.get_logger(__name__)

URL = "http://169.254.169.254/metadata"
EVENTS = "/scheduledevents?api-version=2020-07-01"
NAME = "/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
FIRST_S = 130.0
GO = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})
EVENTS_MAX = 1_000


class ScheduledEvents:
    """Those of this VM."""

    name = "azure"
    pause_s = 1.0

    def __init__(self, metadata: Metadata, heard: Heard) -> None:
        """Nothing is asked before `look`."""
        self._metadata = metadata
        self._heard = heard
        self._vm = ""
        self._deadline_s = FIRST_S
        self._started: set[str] = set()  # events that were said to be welcome

    async def look(self) -> None:
        """Ask for all; raises DriverError."""
        if not self._vm:
            told = await self._metadata.ask(NAME, HEADERS)
            self._vm = told.require("the name of this VM").text.strip()
            if not self._vm:
                raise DriverError("the metadata service has no name for this VM")
        answer = await self._metadata.ask(EVENTS, HEADERS, deadline_s=self._deadline_s)
        document = read_object(answer.require("scheduledevents").text, "scheduledevents")
        self._deadline_s = REQUEST_S
        found = {f"azure {e['EventId']}": e for e in events_of(document, self._vm)}
        for source in (*self._heard.sources, *found):
            event = found.get(source)
            self._heard.say(source, None if event is None else going(event))
        for event in found.values():
            await self._welcome(event)

    async def _welcome(self, event: Mapping[str, Any]) -> None:
        """Once the VM is empty, an event of it alone may start."""
        name = event["EventId"]
        waits = event.get("EventStatus") == "Scheduled" and name not in self._started
        if not waits or len(event["Resources"]) != 1 or not self._heard.ears.empty:
            return
        body = json.dumps({"StartRequests": [{"EventId": name}]}).encode()
        answer = await self._metadata.ask(EVENTS, HEADERS, method="POST", body=body)
        answer.require("StartRequests")
        self._started.add(name)
        log.info("the node is empty; its event may start", event_id=name)


def events_of(document: Mapping[str, Any], vm: str) -> Iterator[Mapping[str, Any]]:
    """Events after which nothing of this VM runs; raises DriverError."""
    events = document.get("Events")
    if not isinstance(events, list) or len(events) > EVENTS_MAX:
        raise DriverError("scheduledevents has no list of Events")
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("EventId"), str):
            raise DriverError("scheduledevents has an event without an EventId")
        names = event.get("Resources")
        names = names if isinstance(names, list) else []
        here = any(isinstance(name, str) and name.lower() == vm.lower() for name in names)
        if here and event.get("EventType") in GO:
            yield event


def going(event: Mapping[str, Any]) -> Going:
    """What one event says; raises DriverError."""
    why = f"scheduled event: {event['EventType']}"
    text = event.get("NotBefore")
    if event.get("EventStatus") == "Started" or not text:
        return Going(f"{why}, which has started", within_s=0.0)
    try:
        return Going(why, at_unix_s=parsedate_to_datetime(text).timestamp())
    except (TypeError, ValueError, IndexError, OverflowError):
        raise DriverError(f"the NotBefore {text!r} is no time") from None
