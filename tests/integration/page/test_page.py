"""The page in a real browser: a checkpoint while it runs, what it left, and a node that is lost.

The tests share one cluster and go on where the one before ended. Pictures are in artefacts/page.
"""

from __future__ import annotations

import platform

import pytest
from selenium.webdriver.common.keys import Keys

from tests.integration.badluck.kit import JOB, Action, until
from tests.integration.page.kit import PAGE, SPARE, UNFIT, Viewer

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

STALLED = 2  # a rank, of worker 1 on n1
TABS_MAX = 12


async def test_the_keyboard_opens_a_job(viewer: Viewer) -> None:
    browser = viewer.browser
    await browser.looks()
    await viewer.go()
    await viewer.sees(JOB)
    assert [row["Job"] for row in await viewer.rows("Jobs")] == [JOB]
    await viewer.sees("running")
    await viewer.reads_well("jobs")
    for _ in range(TABS_MAX):
        await browser.press(Keys.TAB)
        focus = await browser.measure("focus")
        assert focus["ring"], focus
        if focus["text"] == JOB:
            break
    assert focus["href"] == f"#/jobs/{JOB}"
    await browser.press(Keys.ENTER)
    await viewer.sees("No snapshot yet")
    assert await browser.text("h1") == f"{JOB}\nrunning"
    await browser.press(Keys.ESCAPE)
    await viewer.sees("Newest snapshot", "thead")
    await browser.press("j")
    assert (await browser.measure("focus"))["text"] == JOB
    await browser.press("2")
    await viewer.sees("Staging free", "thead")


async def test_who_is_awaited_is_named_phase_by_phase(viewer: Viewer) -> None:
    pair, browser = viewer.pair, viewer.browser
    await viewer.go(f"#/jobs/{JOB}")
    await pair.stall(STALLED)
    pair.tell_criu("n1", "wait")
    attempt = pair.checkpoint()
    try:
        now = await viewer.sees("PARKING", "[aria-current=step]")
        assert "0 of 2" in now
        said = await viewer.sees(f"Furthest behind: rank {STALLED}, at step", ".callout")
        assert "Waiting for worker 0 on n0, worker 1 on n1" in said
        await until("the rank", lambda: drawn(viewer, {str(STALLED): "behind", "0": "awaited"}))
        assert "worker 1 n1" in await viewer.sees("held", ".worker:last-child")
        before = await browser.text("#elapsed")
        await until("time to go on", lambda: differs(viewer, "#elapsed", before))
        await viewer.reads_well("parking")
        pair.untell(STALLED)
        await dumping(viewer)
        pair.tell_criu("n1")
        last = await attempt.ended()
    finally:
        pair.behave()
    assert last.snapshot is not None
    said = await viewer.sees("COMMITTED", ".callout.good")
    assert f"snapshot {last.snapshot.snapshot} at step {last.snapshot.step} is committed" in said
    took = await viewer.phases()
    assert list(took)[-4:] == ["PARKING", "DUMPING", "PERSISTING", "COMMITTING"]
    assert all(took[each] for each in list(took)[-4:]), took
    await until("the ranks to run", lambda: drawn(viewer, dict.fromkeys("0123", "runs")))


async def dumping(viewer: Viewer) -> None:
    """Worker 0 is dumped, and only the other one is waited for; all are parked."""
    assert "1 of 2" in await viewer.sees("1 of 2", "[data-phase=DUMPING]")
    said = await viewer.sees("Waiting for worker 1 on n1, for", ".callout")
    assert "worker 0" not in said
    assert "behind" not in said
    await until("all to be parked", lambda: drawn(viewer, dict.fromkeys("0123", "parked")))
    assert (await viewer.phases())["PARKING"]
    await viewer.browser.picture(viewer.pictures / "dumping.png")


async def drawn(viewer: Viewer, wanted: dict[str, str]) -> bool:
    return wanted.items() <= (await viewer.ranks()).items()


async def differs(viewer: Viewer, selector: str, before: str) -> bool:
    return await viewer.browser.text(selector) not in ("", before)


async def test_the_snapshot_and_where_its_time_went(viewer: Viewer) -> None:
    browser = viewer.browser
    taken = await viewer.pair.snapshot()
    await viewer.go(f"#/jobs/{JOB}")
    await viewer.sees(taken.snapshot, "table[aria-label=Snapshots]")
    newest, older = await viewer.rows("Snapshots")
    assert newest["Snapshot"] == f"{taken.snapshot} newest"
    assert (newest["Step"], newest["Ranks"], newest["Cut"]) == (str(taken.step), "4", "step")
    assert newest["Size"].endswith(" MB")
    await browser.click("table[aria-label=Snapshots] tbody tr:last-child a")
    await until(
        "the older timeline", lambda: has(viewer, ".panel:has(#timeline)", older["Snapshot"])
    )
    rows = (await browser.text("#timeline")).split("\n")
    assert [each for each in rows if each in ("HOLD", "PARK", "DUMP", "PERSIST", "COMMIT")] == [
        "HOLD", "PARK", "DUMP", "PERSIST", "COMMIT",
    ]  # fmt: skip
    assert {"worker 0 n0", "worker 1 n1", f"rank {STALLED}", "criu"} <= set(rows)
    assert {"stood still", "cut at", "committed at"} <= set(
        (await browser.text(".chips")).split("\n")
    )
    await viewer.reads_well("timeline")
    await browser.click(".panel:has(#timeline) a")
    assert f"rank {STALLED}" in await viewer.sees("COMMITTED", "body")
    await viewer.reads_well("trace")


async def has(viewer: Viewer, selector: str, words: str) -> bool:
    return words in await viewer.browser.text(selector)


async def test_nodes_and_what_they_are(viewer: Viewer) -> None:
    await viewer.go("#/nodes")
    await viewer.sees(UNFIT)
    rows = {row["Node"]: row for row in await viewer.rows("Nodes")}
    assert list(rows) == ["n0", "n1", UNFIT, SPARE]
    assert rows["n0"]["Workers"].split() == [JOB, "0", "running"]
    assert rows[SPARE]["Workers"] == "spare"
    for name, row in rows.items():
        assert row["State"] == "attached"
        assert row["Address"] == viewer.pair.host(name).address
        assert platform.release() in row["Machine"]
        assert platform.machine() in row["Machine"]
        assert " GB of " in row["Memory free"]
        assert row["CRIU"] == "none that works" if name == UNFIT else row["CRIU"][0].isdigit()
    await viewer.reads_well("nodes")


async def test_a_lost_node_and_where_its_worker_would_go(viewer: Viewer) -> None:
    pair = viewer.pair
    await viewer.go(f"#/jobs/{JOB}")
    await viewer.sees("Where a restore would put each worker now")
    pair.host("n1").cut_off()
    await viewer.sees("moves", "table[aria-label=Plan]")
    await viewer.sees("incomplete", "h1")
    stays, moves = await viewer.rows("Plan")
    assert stays["To"].split() == ["n0", pair.host("n0").address]
    assert stays["Why"] == "it was here when the snapshot was taken"
    assert moves["From"].split() == ["n1", pair.host("n1").address]
    assert moves["To"].split() == [SPARE, pair.host(SPARE).address, "moves"]
    assert "n1 cannot take it (it was lost" in moves["Why"]
    reasons = {row["Node"]: row for row in await viewer.rows("Reasons")}
    assert reasons["n1"]["Reasons"].startswith("it was lost: ")
    assert reasons[UNFIT] == {"Node": UNFIT, "Workers": "0, 1", "Reasons": "no usable CRIU"}
    await viewer.reads_well("plan")

    pair.host(SPARE).power_off()
    said = await viewer.sees("It would be refused", ".panel:last-child")
    assert "no node for worker 1" in said
    assert await viewer.rows("Plan") == []
    assert {row["Node"] for row in await viewer.rows("Reasons")} == {"n1", UNFIT, SPARE}
    await viewer.reads_well("refused")
    failure = await Action(pair.client.restore(JOB)).failed()
    assert failure.what in said
    await viewer.go("#/nodes")
    await viewer.sees("lost")
    first, second, *_ = await viewer.rows("Nodes")
    assert {first["Node"].split("\n")[0], second["Node"].split("\n")[0]} == {"n1", SPARE}
    assert "was running" in first["Workers"]


async def test_nothing_else_was_asked_for_and_nothing_complained(viewer: Viewer) -> None:
    await viewer.browser.hear()
    requests = viewer.browser.requests
    assert f"{PAGE}/api/events" in requests
    inside = (f"{PAGE}/", "data:", "about:", "chrome:")  # the last: what the first tab is made of
    assert {url for url in requests if not url.startswith(inside)} == set()
    assert viewer.browser.complaints == []
