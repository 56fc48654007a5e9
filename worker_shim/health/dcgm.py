"""DCGM's exporter as a source of trouble: its metrics, read every few seconds."""

from __future__ import annotations

import asyncio
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import structlog
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.errors import BadRequest
from worker_shim.health.troubles import Counters, Troubles

log = structlog.get_logger(__name__)

SOURCE = "dcgm"
POLL_S = 5.0
ANSWER_S = 10.0  # for one scrape
ANSWER_BYTES_MAX = 16 << 20
PIECE_BYTES = 1 << 16
ADDED = "_total"  # by the reader, to the name of a counter
BLANK = 1 << 62  # DCGM's values for "not known" are near the end of 64 bits
# the last Xid, 0: none; names of DCGM before 4.7, and since
XIDS = frozenset({"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"})
FIELDS: Mapping[str, str] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_FAILED": "remap_failed",
    "DCGM_FI_DEV_RETIRED_PENDING": "remap_pending",
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": "remap_pending",
}


def check_url(url: str) -> str:
    """The address of an exporter; raises BadRequest for one that makes no sense."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(
            f"{url!r} is no address of an exporter",
            advice="such as http://127.0.0.1:9400/metrics",
        )
    return url


class DcgmWatch:
    """Reads one exporter; what it cannot read it tries again."""

    def __init__(
        self,
        troubles: Troubles,
        url: str,
        *,
        poll_s: float = POLL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`answer_s`: for one scrape, all of it."""
        self._troubles = troubles
        self._url = check_url(url)
        self._poll_s, self._answer_s = poll_s, answer_s
        self._xids: dict[str, int] = {}  # the last one of each GPU
        self.why = ""  # it could not be read; empty: it could

    async def run(self) -> None:
        """Read it for as long as the shim lives."""
        while True:
            await self.look()
            await asyncio.sleep(self._poll_s)

    async def look(self) -> None:
        """Read it once."""
        try:
            text = await asyncio.to_thread(_fetch, self._url, self._answer_s)
            self.take(text)
            why = ""
        except (OSError, ValueError) as error:
            why = f"{self._url}: {error}"
        if why and why != self.why:
            log.warning("DCGM's exporter cannot be read", why=why)
        self.why = why

    def take(self, text: str) -> None:
        """What the exporter says; raises ValueError for what is not its format."""
        seen: dict[str, Counters] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix(ADDED)
                if name not in XIDS and name not in FIELDS:
                    continue
                gpu = Counters(sample.labels.get("UUID", ""), _index(sample.labels.get("gpu", "")))
                place = gpu.uuid or f"GPU {gpu.index}"
                if not (gpu.uuid or gpu.index >= 0) or not _known(sample.value):
                    continue
                if name in XIDS:
                    self._xid(place, gpu, int(sample.value))
                else:
                    before = seen.get(place, gpu)
                    seen[place] = _with(before, FIELDS[name], sample.value)
        for each in seen.values():
            self._troubles.looked(each, SOURCE)

    def _xid(self, place: str, gpu: Counters, code: int) -> None:
        """The gauge keeps the last one: a value that was there at first is from before."""
        last = self._xids.get(place)
        self._xids[place] = code
        if code and code != last:
            self._troubles.xid(gpu.uuid, gpu.index, code, SOURCE, before=last is None)


def _with(seen: Counters, field: str, value: float) -> Counters:
    if field == "ecc":
        return replace(seen, ecc=max(int(value), seen.ecc or 0))
    if field == "remap_failed":
        return replace(seen, remap_failed=bool(value or seen.remap_failed))
    return replace(seen, remap_pending=bool(value or seen.remap_pending))


def _known(value: float) -> bool:
    return math.isfinite(value) and 0 <= value < BLANK


def _index(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 5 else -1


def _fetch(url: str, within_s: float) -> str:
    """The text at an address; raises OSError, or ValueError for more than is read of any."""
    until = time.monotonic() + within_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this node
    read = bytearray()
    with opener.open(url, timeout=within_s) as answer:
        while piece := answer.read1(PIECE_BYTES):
            read += piece
            if len(read) > ANSWER_BYTES_MAX:
                raise ValueError(f"it answers with more than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"it has not answered within {within_s:g} s")
    return read.decode()
