"""DCGM's exporter as a source, over a real HTTP server that answers in its format."""

from __future__ import annotations

import threading

import pytest

from coordinator.core.errors import BadRequest
from coordinator.core.health_records import TroubleKind
from tests.support.dcgm import Exporter, exporter
from tests.support.ports import free_port
from worker_shim.health import dcgm
from worker_shim.health.dcgm import DcgmWatch, check_url
from worker_shim.health.troubles import Troubles

A, B = "GPU-aaaa", "GPU-bbbb"
K = TroubleKind


@pytest.fixture
def node():  # type: ignore[no-untyped-def]
    """An exporter of two GPUs."""
    with exporter(A, B) as made:
        yield made


def watch(node: Exporter, **how: float) -> DcgmWatch:
    return DcgmWatch(Troubles(), node.url, **how)


def told(watch: DcgmWatch) -> list[tuple[str, TroubleKind, int, int, bool]]:
    troubles = watch._troubles.now()
    assert all(each.source == "dcgm" for each in troubles)
    return [(each.uuid, each.kind, each.code, each.count, each.fresh) for each in troubles]


async def test_the_last_xid_is_told_when_it_is_another(node: Exporter) -> None:
    node.values["DCGM_FI_DEV_XID_ERRORS", 0] = 13
    source = watch(node)
    await source.look()
    assert told(source) == [(A, K.XID, 13, 1, False)], "it was there at first"
    await source.look()
    node.values["DCGM_FI_DEV_XID_ERRORS", 1] = 79
    await source.look()
    await source.look()
    assert told(source)[1:] == [(B, K.XID, 79, 1, True)]
    node.values["DCGM_FI_DEV_XID_ERRORS", 1] = 0
    await source.look()
    node.values["DCGM_FI_DEV_XID_ERRORS", 1] = 79
    await source.look()
    assert told(source)[1:] == [(B, K.XID, 79, 2, True)]


@pytest.mark.parametrize(
    ("metric", "value", "kind", "count"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, K.ECC, 2),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, K.REMAP_FAILED, 1),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, K.REMAP_PENDING, 1),
        ("DCGM_FI_DEV_RETIRED_PENDING", 3, K.REMAP_PENDING, 1),
        ("DCGM_FI_DEV_ROW_REMAP_FAILED", 1, K.REMAP_FAILED, 1),
        ("DCGM_FI_DEV_PAGE_RETIRED_PENDING", 3, K.REMAP_PENDING, 1),
    ],
)
async def test_counters_are_told(
    node: Exporter, metric: str, value: int, kind: TroubleKind, count: int
) -> None:
    source = watch(node)
    await source.look()
    assert told(source) == []
    node.values[metric, 1] = value
    await source.look()
    assert told(source) == [(B, kind, 0, count, True)]


async def test_what_dcgm_does_not_know_is_nothing(node: Exporter) -> None:
    source = watch(node)
    await source.look()
    for blank in (9223372036854775794, float("nan"), float("inf")):
        node.values["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0] = blank
        node.values["DCGM_FI_DEV_XID_ERRORS", 0] = blank
        await source.look()
    assert told(source) == []
    assert not source.why


async def test_the_name_of_dcgm_4_7_is_known_too() -> None:
    source = DcgmWatch(Troubles(), "http://127.0.0.1:1/metrics")
    for code in (0, 79):
        source.take(f'DCGM_FI_DEV_XID_ERROR{{gpu="0",UUID="{A}"}} {code}\n')
    assert told(source) == [(A, K.XID, 79, 1, True)]


async def test_a_gpu_without_a_uuid_goes_by_its_number() -> None:
    source = DcgmWatch(Troubles(), "http://127.0.0.1:1/metrics")
    source.take('DCGM_FI_DEV_XID_ERRORS{gpu="3"} 0\n')
    source.take('DCGM_FI_DEV_XID_ERRORS{gpu="3"} 48\n')
    source.take('DCGM_FI_DEV_XID_ERRORS{host="x"} 48\n')
    (trouble,) = source._troubles.now()
    assert (trouble.uuid, trouble.index, trouble.code) == ("", 3, 48)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"<html>hello</html>", 200, "metrics"),
        (b"\xff\xfe", 200, "decode"),
        (b"no", 500, "500"),
        (b"x" * 2000, 200, "more than 1000 bytes"),
    ],
)
async def test_what_cannot_be_read_is_told_and_tried_again(
    node: Exporter, body: bytes, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm, "ANSWER_BYTES_MAX", 1000)
    node.body, node.status = body, status
    source = watch(node)
    await source.look()
    assert said in source.why
    assert told(source) == []
    monkeypatch.undo()
    node.body, node.status = None, 200
    await source.look()
    assert source.why == ""


async def test_an_exporter_that_does_not_answer_is_given_up(node: Exporter) -> None:
    node.hold = threading.Event()
    source = watch(node, answer_s=0.2)
    await source.look()
    assert "timed out" in source.why


async def test_nobody_there_is_told() -> None:
    source = DcgmWatch(Troubles(), f"http://127.0.0.1:{free_port()}/metrics")
    await source.look()
    assert "refused" in source.why


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9400", "file:///etc/passwd", "ftp://x/y", "http://"]
)
def test_only_addresses_of_exporters_are_taken(url: str) -> None:
    with pytest.raises(BadRequest, match="no address of an exporter"):
        check_url(url)
