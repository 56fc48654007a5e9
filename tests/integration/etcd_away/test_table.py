"""Every row of design/failures.md: real etcd processes go away, real agents and a leader go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.etcd_away.coordinators import CoordinatorProcess, coordinator
from tests.integration.etcd_away.members import QUOTA_BYTES, Members, started
from tests.integration.etcd_away.stage import Case, Stage, staged, until
from tests.integration.etcd_away.tables import Row, rows

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(240)]

PATIENT = {"hold_s": 60.0, "park_s": 60.0}
HELD_S = 15.0  # in the long absences: a worker's timer runs out this long after its order, +1 s
BRIEF = {
    "hold_s": HELD_S, "park_s": HELD_S, "dump_s": HELD_S, "clear_s": HELD_S, "rebuild_s": HELD_S,
    "margin_s": 1.0, "adopt_s": 10.0,
}  # fmt: skip
ENDED_S = 60.0
PAUSE_S = 4.0
DOWN_S = 1.0
LONG_LEASE_S, SHORT_LEASE_S = 30.0, 8.0


def check(case: Case, row: Row, ends: str, read: str) -> None:
    """Hold one outcome against its row."""
    told = f"{case.phase}: {ends}: {read}"
    assert ends in row.ends, told
    assert any(words in read for words in row.reads), f"{told}\nexpected one of {row.reads}"
    for node in case.nodes:
        match row.workers:
            case "run on":
                assert node.free, told
                assert not node.let_go_by_itself, told
                assert "kill" not in node.process.calls, told
            case "run again, told to" | "run again by themselves":
                assert node.free, told
                assert node.let_go_by_itself == row.workers.endswith("themselves"), told
                assert "kill" not in node.process.calls, told
            case "run restored":
                assert node.free, told
                assert node.worker.incarnation > 1, told
                assert node.process.calls.count("kill") == 1, told
            case "are gone":
                assert node.gone, told
        assert not node.staged(), told
        committed = ends in ("COMMITTED", "RUNNING")
        if not case.restores and ends != "never was":
            assert bool(node.stored(case.action)) == committed, told


async def settled(stage: Stage, table: dict[str, Row]) -> None:
    """Wait for the end of every case and check it; all rows are looked at before any fails."""
    problems: list[str] = []
    for phase, case in stage.cases.items():
        ends, read = await stage.outcome(case)
        print(f"{phase}: {ends}: {read}")
        try:
            await until(lambda case=case: all(n.free or n.gone for n in case.nodes), 10.0)
            await until(lambda case=case: not any(n.staged() for n in case.nodes), 10.0)
            check(case, table[phase], ends, read)
        except (AssertionError, TimeoutError) as error:
            problems.append(f"{phase}: {ends}: {read}\n    {error!r}")
    assert not problems, "\n".join(problems)


async def heard_out(stage: Stage) -> None:
    """Wait until every operator who asked has an answer."""
    async with asyncio.timeout(ENDED_S):
        await asyncio.gather(*(case.asking for case in stage.cases.values() if case.asking))


def let_through(stage: Stage, *, but: tuple[str, ...] = ()) -> None:
    """Open the gates of all cases but some."""
    for phase, case in stage.cases.items():
        if phase not in but:
            case.open()


async def test_paused_shorter_than_the_lease(tmp_path: Path) -> None:
    table = rows("Paused, shorter than the lease")
    with started(tmp_path / "etcd") as members:
        async with (
            coordinator(members.endpoints, lease_s=LONG_LEASE_S, policy=PATIENT) as leader,
            staged(tmp_path / "nodes", leader) as stage,
        ):
            members.members[0].pause()
            stage.ask_new()
            let_through(stage, but=("PERSIST",))
            await asyncio.sleep(PAUSE_S)  # the fault itself
            members.members[0].go_on()
            let_through(stage)
            await heard_out(stage)
            await settled(stage, table)
            assert sum(line.startswith("leading ") for line in leader.lines) == 1


async def test_killed_and_started_again(tmp_path: Path) -> None:
    table = rows("Killed and started again")
    with started(tmp_path / "etcd") as members:
        async with (
            coordinator(members.endpoints, lease_s=LONG_LEASE_S, policy=PATIENT) as leader,
            staged(tmp_path / "nodes", leader) as stage,
        ):
            members.members[0].kill()
            await asyncio.sleep(DOWN_S / 2)  # the fault itself; its end has reached every client
            stage.ask_new()
            let_through(stage, but=("PERSIST",))
            await asyncio.sleep(DOWN_S / 2)
            members.members[0].start()
            let_through(stage)
            await heard_out(stage)
            await settled(stage, table)


@pytest.mark.parametrize("size", [1, 3])
async def test_away_for_longer_than_the_lease(tmp_path: Path, size: int) -> None:
    table = rows("Away for longer than the lease")
    with started(tmp_path / "etcd", size) as members:
        async with (
            coordinator(members.endpoints, lease_s=SHORT_LEASE_S, policy=BRIEF) as leader,
            staged(tmp_path / "nodes", leader) as stage,
        ):
            away = members.members[: max(1, size - 1)]
            for member in away:
                member.pause()
            stage.ask_new()
            stage.cases["COMMIT"].open()
            await leader.steps_down(within_s=SHORT_LEASE_S + 4)
            let_through(stage)
            held = [case for case in stage.cases.values() if "again" in table[case.phase].workers]
            held += [case for case in stage.cases.values() if "gone" in table[case.phase].workers]
            nodes = [node for case in held for node in case.nodes]
            await until(
                lambda: all((n.free or n.gone) and n.let_go_by_itself for n in nodes), HELD_S + 10
            )
            await heard_out(stage)
            before = len(leader.lines)
            for member in away:
                member.go_on()
            await leader.leads(since=before)
            await settled(stage, table)


async def test_full(tmp_path: Path) -> None:
    table = rows("Full")
    with started(tmp_path / "etcd", quota_bytes=QUOTA_BYTES) as members:
        async with (
            coordinator(members.endpoints, lease_s=SHORT_LEASE_S, policy=PATIENT) as leader,
            standby(leader, members) as second,
            staged(tmp_path / "nodes", leader, second) as stage,
        ):
            await members.fill()
            stage.ask_new()
            let_through(stage)
            await heard_out(stage)
            await settled(stage, table)
            await members.make_room()
            await leader.kill()
            await second.leads()
            await settled(stage, {phase: or_never_was(row) for phase, row in table.items()})


@asynccontextmanager
async def standby(
    leader: CoordinatorProcess, members: Members
) -> AsyncIterator[CoordinatorProcess]:
    """The next leader."""
    await leader.leads()
    async with coordinator(
        members.endpoints, lease_s=SHORT_LEASE_S, policy=PATIENT, name="second"
    ) as second:
        yield second


def or_never_was(row: Row) -> Row:
    """What the next leader says: of a request whose record was refused it knows nothing."""
    reads = (*row.reads, "ended while", "found", "runs")
    return replace(
        row, ends=(*row.ends, *(["never was"] if "ADMIT" in row.phase else [])), reads=reads
    )
