"""What each cloud says, over real HTTP: the notice, in how long, once, and that it is off again."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.integration.preemption.kit import Listener, until, watching
from tests.support.metadata_service import MetadataService, serving
from worker_shim.preemption import aws, azure

ACTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
PREEMPTED, MAINTENANCE = "instance/preempted", "instance/maintenance-event"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws.Spot, "pause_s", 0.05)
    monkeypatch.setattr(azure.ScheduledEvents, "pause_s", 0.05)


def looks(service: MetadataService, word: str) -> int:
    return sum(word in each for each in service.asked)


async def looked_on(service: MetadataService, word: str, times: int = 3) -> None:
    """It was asked for again and again."""
    before = looks(service, word)
    await until(lambda: looks(service, word) >= before + times)


def only(listener: Listener) -> tuple[str, str, float | None]:
    (told,) = listener.told
    return told


@pytest.mark.parametrize("action", ["terminate", "stop"])
async def test_a_spot_instance_is_interrupted(action: str) -> None:
    service = MetadataService("aws")
    with serving(service) as url:
        async with watching("aws", f"{url}/latest") as listener:
            await looked_on(service, "instance-action")
            assert not listener.told
            at = datetime.now(UTC) + timedelta(seconds=120)
            service.set(ACTION, {"action": action, "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"})
            await listener.until(lambda told: bool(told.told))
            await looked_on(service, "instance-action")
            source, why, left_s = only(listener)
    assert (source, why) == ("aws spot", f"spot interruption: {action}")
    assert left_s is not None
    assert 100 < left_s <= 120
    assert looks(service, "PUT /latest/api/token") == 1


async def test_a_token_that_is_over_is_renewed() -> None:
    service = MetadataService("aws")
    with serving(service) as url:
        async with watching("aws", f"{url}/latest") as listener:
            await looked_on(service, "instance-action")
            service.token = "another"
            service.set(REBALANCE, {"noticeTime": "2020-10-27T08:22:00Z"})
            await listener.until(lambda told: bool(told.told))
            source, why, left_s = only(listener)
    assert (source, left_s) == ("aws rebalance", None)
    assert "recommends" in why
    assert looks(service, "PUT /latest/api/token") == 2


async def test_an_instance_that_hibernates_leaves_no_time() -> None:
    service = MetadataService("aws")
    service.set(ACTION, {"action": "hibernate", "time": "2020-10-27T08:22:00Z"})
    with serving(service) as url:
        async with watching("aws", f"{url}/latest") as listener:
            await listener.until(lambda told: bool(told.told))
            assert only(listener)[2] == 0.0


async def test_a_vm_is_preempted_the_moment_that_is_known() -> None:
    service = MetadataService("gcp")
    service.set(PREEMPTED, "FALSE")
    service.set(MAINTENANCE, "NONE")
    with serving(service) as url:
        async with watching("gcp", f"{url}/computeMetadata/v1") as listener:
            await until(lambda: looks(service, "preempted?wait_for_change=true") > 0)
            began = time.monotonic()
            service.set(PREEMPTED, "TRUE")
            await listener.until(lambda told: bool(told.told))
            assert time.monotonic() - began < 1.0, "it did not wait for the change"
            assert only(listener) == ("gcp preempted", "the VM is preempted", 30.0)


@pytest.mark.parametrize(("gpus", "left_s"), [(True, 3600.0), (False, 60.0)])
async def test_maintenance_that_stops_a_vm_and_is_called_off(gpus: bool, left_s: float) -> None:
    service = MetadataService("gcp")
    service.set(PREEMPTED, "FALSE")
    service.set(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    with serving(service) as url:
        async with watching("gcp", f"{url}/computeMetadata/v1", gpus=gpus) as listener:
            await until(lambda: looks(service, "maintenance-event?wait_for_change=true") > 0)
            assert not listener.told, "it goes on elsewhere by itself"
            service.set(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
            await listener.until(lambda told: bool(told.told))
            assert only(listener)[::2] == ("gcp maintenance-event", left_s)
            service.set(MAINTENANCE, "NONE")
            await listener.until(lambda told: bool(told.off))
    assert listener.off == ["gcp maintenance-event"]


def event(name: str, kind: str, *vms: str, status: str = "Scheduled") -> dict[str, Any]:
    at = datetime.now(UTC) + timedelta(seconds=600)
    return {
        "EventId": name,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(vms),
        "EventStatus": status,
        "NotBefore": format_datetime(at, usegmt=True) if status == "Scheduled" else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def scheduled(service: MetadataService, *events: dict[str, Any]) -> None:
    service.set("scheduledevents", {"DocumentIncarnation": service.version, "Events": list(events)})


async def azure_service() -> MetadataService:
    service = MetadataService("azure")
    service.set("compute/name", "WestNO_0")
    scheduled(service)
    return service


async def test_an_event_of_this_vm_is_told_and_once_nothing_runs_it_may_start() -> None:
    service = await azure_service()
    with serving(service) as url:
        async with watching("azure", f"{url}/metadata") as listener:
            others = (event("e1", "Reboot", "WestNO_1"), event("e2", "Freeze", "WestNO_0"))
            scheduled(service, *others, event("e3", "Preempt", "westno_0"))
            await listener.until(lambda told: bool(told.told))
            await looked_on(service, "GET /metadata/scheduledevents")
            source, why, left_s = only(listener)
            assert (source, why) == ("azure e3", "scheduled event: Preempt")
            assert left_s is not None
            assert 590 < left_s <= 600
            assert not service.posted, "something runs here"
            listener.empty = True
            await until(lambda: bool(service.posted))
            await looked_on(service, "GET /metadata/scheduledevents")
            assert service.posted == [{"StartRequests": [{"EventId": "e3"}]}]
            scheduled(service)
            await listener.until(lambda told: told.off == ["azure e3"])


async def test_an_event_of_other_vms_too_is_theirs_to_start() -> None:
    service = await azure_service()
    with serving(service) as url:
        async with watching("azure", f"{url}/metadata") as listener:
            listener.empty = True
            scheduled(service, event("e1", "Redeploy", "WestNO_0", "WestNO_1"))
            await listener.until(lambda told: bool(told.told))
            await looked_on(service, "GET /metadata/scheduledevents")
            scheduled(service, event("e1", "Redeploy", "WestNO_0", status="Started"))
            await listener.until(lambda told: len(told.told) == 2)
            assert listener.told[1][2] == 0.0, "it has started"
    assert not service.posted
