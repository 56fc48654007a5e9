"""A metadata service that is away, slow, talks without end, or says what makes no sense."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from coordinator.core.errors import BadRequest, DriverError
from tests.integration.preemption.kit import answering, until, watching
from tests.integration.preemption.test_clouds import ACTION, event, looked_on, scheduled
from tests.support.metadata_service import MetadataService, serving
from worker_shim.preemption import aws, azure, gcp
from worker_shim.preemption import watching as loop
from worker_shim.preemption.metadata import BODY_BYTES_MAX, HEAD_BYTES_MAX, Metadata

LONG = b"x" * (BODY_BYTES_MAX + 1)


async def test_whoever_answers_with_garbage_is_told_of_by_what_it_is() -> None:
    for answer in (
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\n\r\n" + LONG,
    ):
        async with answering(answer) as url:
            with pytest.raises(DriverError):
                await Metadata(url).ask("/", {})


async def test_a_service_that_is_slow_or_away_is_waited_for_no_longer_than_allowed() -> None:
    began = time.monotonic()
    drip = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
    async with answering(drip, drip_s=0.02) as url:
        with pytest.raises(DriverError, match=r"does not answer within 0\.3 s"):
            await Metadata(url).ask("/", {}, deadline_s=0.3)
    with pytest.raises(DriverError):
        await Metadata(url).ask("/", {}, deadline_s=5.0)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    "url", ["", "https://h/", "http://", "file:///etc", "http://h:x/", "http://h/?q", "http://[/"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadRequest):
        Metadata(url)


@pytest.mark.parametrize(
    "value",
    [
        "no object",
        "[]",
        "[" * 100_000,
        {"action": "explode", "time": "2017-09-18T08:22:00Z"},
        {"action": "stop"},
        {"action": "stop", "time": 7},
        {"action": "stop", "time": "soon"},
        {"action": "stop", "time": "2017-09-18T08:22:00"},
    ],
)
def test_notices_of_aws_that_make_no_sense(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(DriverError):
        aws.interruption(text)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"Events": {}},
        {"Events": [7]},
        {"Events": [{"EventType": "Preempt"}]},
        {"Events": [{"EventId": "e"}] * 1_001},
    ],
)
def test_notices_of_azure_that_make_no_sense(document: Any) -> None:
    with pytest.raises(DriverError):
        list(azure.events_of(document, "vm"))
    with pytest.raises(DriverError):
        azure.going({"EventId": "e", "EventType": "Preempt", "NotBefore": "soon"})


async def test_whatever_the_service_does_a_later_notice_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aws.Spot, "pause_s", 0.02)
    monkeypatch.setattr(loop, "PAUSE_S_MAX", 0.05)
    service = MetadataService("aws")
    with serving(service) as url:
        async with watching("aws", f"{url}/latest") as listener:
            service.status = 500
            await looked_on(service, "instance-action")
            service.status = 0
            service.set(ACTION, "garbage")
            await looked_on(service, "instance-action")
            service.token = "\x07"
            await until(lambda: "PUT /latest/api/token" in service.asked[-3:])
            service.token = "good"
            assert not listener.told
            service.set(ACTION, {"action": "stop", "time": "2099-01-01T00:00:00Z"})
            await listener.until(lambda told: bool(told.told))


async def test_a_service_that_comes_later_is_heard_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcp.Key, "pause_s", 0.02)
    monkeypatch.setattr(loop, "PAUSE_S_MAX", 0.05)
    service = MetadataService("gcp")
    service.set("instance/preempted", "TRUE")
    with serving(service) as url:
        port = int(url.rpartition(":")[2])
    async with watching("gcp", f"http://127.0.0.1:{port}/computeMetadata/v1") as listener:
        await asyncio.sleep(0.2)  # nobody is there for so long
        assert not listener.told
        with serving(service, port=port):
            await listener.until(lambda told: bool(told.told))


async def test_a_value_that_is_not_known_and_one_that_waits_too_briefly_do_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcp.Key, "pause_s", 0.05)
    monkeypatch.setattr(gcp, "WAIT_S", 0)
    service = MetadataService("gcp")
    service.set("instance/preempted", "MAYBE")
    service.set("instance/maintenance-event", "NONE")
    began = time.monotonic()
    with serving(service) as url:
        async with watching("gcp", f"{url}/computeMetadata/v1") as listener:
            await looked_on(service, "maintenance-event", 5)
            took_s = time.monotonic() - began
            asked = sum("maintenance-event" in each for each in service.asked)
            assert asked <= 2 + took_s / 0.05, "it is asked without a pause"
            assert not listener.told


async def test_an_event_that_cannot_be_acknowledged_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(azure.ScheduledEvents, "pause_s", 0.02)
    monkeypatch.setattr(loop, "PAUSE_S_MAX", 0.05)
    service = MetadataService("azure")
    service.set("compute/name", "vm")
    scheduled(service, event("e1", "Terminate", "vm"))
    service.post_status = 500
    with serving(service) as url:
        async with watching("azure", f"{url}/metadata") as listener:
            listener.empty = True
            await until(lambda: len(service.posted) >= 2)
            service.post_status = 200
            before = len(service.posted)
            await until(lambda: len(service.posted) > before)
            assert len(listener.told) == 1
