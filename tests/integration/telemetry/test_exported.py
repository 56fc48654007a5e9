"""What is really exported, and that docs, alerts and dashboard name nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from coordinator.core.errors import AllstopError
from tests.integration.badluck.kit import JOB, NODES, Pair, until
from tests.integration.telemetry.kit import PAGE, SHIM, get
from tests.support import promql

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.promtool,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

METRICS_PAGE = promql.ROOT / "docs" / "metrics.md"
SUFFIXES = ("_bucket", "_count", "_sum")
OF_THE_CLIENT = "_created"  # prometheus_client tells when it began to count


async def asked(pair: Pair) -> list[str]:
    """What the coordinator and each shim answer now."""
    places = [(pair.lab.control, f"{PAGE}/metrics")]
    places += [(pair.host(node), f"http://{SHIM}/metrics") for node in NODES]
    return list(await asyncio.gather(*(asyncio.to_thread(get, *place) for place in places)))


async def everything(pair: Pair) -> list[str]:
    """Answers with every metric: a hold, a commit, an abort, a restore and a refusal were there."""
    await pair.stall(2)
    attempt = pair.checkpoint(deadline_s=6.0)
    try:
        await attempt.reached("PARKING")

        async def held() -> list[str]:
            told = await asked(pair)
            return told if "allstop_shim_hold_left_seconds{" in told[2] else []

        told = list(await until("the hold", held))
        await attempt.failed()
    finally:
        pair.untell(2)
    await pair.moves()
    await until("that nothing speaks against a checkpoint", pair.no_findings)
    await pair.snapshot()
    await pair.restore()
    with pytest.raises(AllstopError):
        async for _ in pair.client.checkpoint("nobody"):
            pass
    return told + await asked(pair)


def documented() -> dict[str, set[str]]:
    """Each metric of docs/metrics.md with its labels."""
    found: dict[str, set[str]] = {}
    for line in METRICS_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].startswith("`"):
            for name in re.findall(r"`(\w+)`", cells[1]):
                found[name] = {label.strip() for label in cells[3].split(",") if label.strip()}
    return found


async def test_all_that_is_named_is_exported(pair: Pair, promtool: Callable[..., str]) -> None:
    told = await everything(pair)
    for text in told:
        promtool("check", "metrics", stdin=text)
    there = promql.exported(*told)
    named = [*promql.of_the_rules(), *promql.of_the_dashboard()]
    missing = {each.where: promql.unknown(each, there) for each in named}
    assert {where: names for where, names in missing.items() if names} == {}
    families: dict[str, set[str]] = {}
    for name, labels in there.items():
        if name.startswith("allstop_") and not name.endswith(OF_THE_CLIENT):
            base = re.sub(f"({'|'.join(SUFFIXES)})$", "", name)
            families.setdefault(base, set()).update(labels - {"le"})
    assert families == documented()
    assert {each.labels["job"] for each in promql.samples(*told) if "job" in each.labels} == {JOB}
