"""Fronts: processes that share the coordinator's port, carry shims, and never lead."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import BadRequest, SetupError
from coordinator.link.security import Tls
from coordinator.server.front import FrontOptions
from coordinator.server.fronts import Fronts
from coordinator.store.etcd import EtcdOptions
from tests.integration.replicas.kit import (
    WAIT_S,
    Replica,
    Watchful,
    allstop,
    attach,
    environment,
    eventually,
    replicas,
    until,
)
from tests.support.cluster import follow
from tests.support.ports import free_ports

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(240)]

Place = tuple[str, str, Path]  # endpoint, prefix, folder


@pytest.fixture
def place(etcd_server: object, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    endpoint: str = etcd_server.endpoint  # type: ignore[attr-defined]
    return endpoint, f"/{request.node.name}", tmp_path


def children(replica: Replica) -> list[int]:
    """Its fronts' pids."""
    listed = Path(f"/proc/{replica.process.pid}/task/{replica.process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()]


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(pids: list[int]) -> None:
    """Wait until none of them is left."""
    await until(lambda: not any(alive(pid) for pid in pids))


async def attached(address: str, count: int, job: str = "llm") -> list[Watchful]:
    """The shims of one job, each with a connection of its own: the kernel deals them out."""
    made = [
        Watchful(address, f"{job}-{index}", job=job, worker=index, workers=count)
        for index in range(count)
    ]
    await asyncio.gather(*(attach(shim) for shim in made))
    return made


async def dismiss(shims: list[Watchful]) -> None:
    for shim in shims:
        await shim.leave(goodbye=False)


async def checkpoint(address: str, job: str = "llm") -> str:
    async with OperatorClient([address], patience_s=WAIT_S) as client:
        went = await follow(client.checkpoint(job))
        assert went.error is None
        assert went.last.snapshot is not None
        return went.last.snapshot.snapshot


def fields(replica: Replica, event: str, name: str) -> list[Any]:
    """A field of all log lines of one event."""
    lines = [json.loads(line) for line in replica.lines if f'"event": "{event}"' in line]
    return [line[name] for line in lines if name in line]


async def test_shims_and_operators_are_served_by_fronts(place: Place) -> None:
    async with replicas(*place, "one", options=("--fronts", "3")) as them:
        one = them.running["one"]
        pids = children(one)
        assert len(pids) == 3
        shims = await attached(one.address, 12)
        taken = await checkpoint(one.address)
        carriers = fields(one, "shim attached", "front")
        assert len(carriers) == 12
        assert set(carriers) <= {"one-front-1", "one-front-2", "one-front-3"}
        assert len(set(carriers)) > 1  # that all are one front's happens once in 177,000 runs
        async with OperatorClient([one.addresses[-1]]) as client:  # by the unix socket: no front
            assert (await client.snapshots("llm")).latest == taken
        await dismiss(shims)
        one.kill(signal.SIGTERM)
        assert await one.ended() == 0
        await gone(pids)


async def test_fronts_do_not_outlive_a_coordinator_that_is_killed(place: Place) -> None:
    async with replicas(*place, "one", options=("--fronts", "2")) as them:
        one = them.running["one"]
        pids = children(one)
        os.kill(pids[0], signal.SIGSTOP)  # a frozen one neither
        one.kill(signal.SIGKILL)
        await gone(pids)


async def test_a_front_that_is_killed_comes_back_and_the_others_lose_nothing(place: Place) -> None:
    async with replicas(*place, "one", options=("--fronts", "2")) as them:
        one = them.running["one"]
        shims = await attached(one.address, 12)
        nodes, fronts = (fields(one, "shim attached", name) for name in ("node", "front"))
        carriers = dict(zip(nodes, fronts, strict=True))
        pids = dict(zip(*(fields(one, "serving", name) for name in ("front", "pid")), strict=True))
        victim = pids["one-front-1"]
        mark = len(one.lines)
        os.kill(victim, signal.SIGKILL)
        mine = [shim for shim in shims if carriers[shim.node] == "one-front-1"]
        others = [shim for shim in shims if carriers[shim.node] == "one-front-2"]
        assert len(mine) + len(others) == 12
        for shim in mine:
            await shim.until(lambda shim=shim: shim.ended is not None, WAIT_S)
        await asyncio.gather(*(attach(shim) for shim in mine))
        await one.said("started again", mark)
        await until(lambda: len(children(one)) == 2)
        assert victim not in children(one)
        await checkpoint(one.address)
        assert all(shim.ended is None and not shim.epochs for shim in others)
        await dismiss(shims)


async def test_a_port_is_nobody_elses_even_while_no_front_lives(place: Place) -> None:
    async with replicas(*place, "one", options=("--fronts", "2")) as them:
        one = them.running["one"]
        taken = ("--listen", one.address)
        for pid in children(one):
            os.kill(pid, signal.SIGKILL)
        for options in (taken, (*taken, "--fronts", "0")):
            with pytest.raises(AssertionError, match="cannot listen on"):
                await them.start("two", *options)
            assert await them.running.pop("two").ended() == SetupError.exit_code
        await eventually(lambda: jobs(one.address))


async def jobs(address: str) -> None:
    async with OperatorClient([address], patience_s=WAIT_S) as client:
        await client.jobs()


async def test_a_leader_that_dies_with_its_fronts_drops_no_stream_of_anothers(
    place: Place,
) -> None:
    async with replicas(*place, "one", "two", options=("--fronts", "2")) as them:
        one, two = them.running["one"], them.running["two"]
        shims = await attached(two.address, 6)
        first = await checkpoint(two.address)
        mark = them.marks()
        one.kill(signal.SIGKILL)
        leader = await them.leader(since=mark)
        assert leader is two
        second = await checkpoint(two.address)
        assert second != first
        for shim in shims:
            assert shim.ended is None
            assert len(shim.epochs) == 1  # one Welcome more, on the stream it has
            assert not shim.late
        await dismiss(shims)


async def test_the_streams_of_fronts_stand_while_their_coordinator_is_frozen(place: Place) -> None:
    async with replicas(*place, "one", "two", options=("--fronts", "2")) as them:
        one, two = them.running["one"], them.running["two"]
        shims = await attached(one.address, 4)
        pids = children(one)
        mark = them.marks()
        one.kill(signal.SIGSTOP)
        assert await them.leader(since=mark) is two
        taken = await checkpoint(one.address)  # its fronts answer, and pass on to the new leader
        one.kill(signal.SIGCONT)
        await one.said("not leading any more", mark["one"])
        assert await checkpoint(one.address) != taken
        assert children(one) == pids
        for shim in shims:
            assert shim.ended is None
            assert len(shim.epochs) == 1
            assert not shim.late
        await dismiss(shims)


async def test_others_are_not_sent_to_the_fronts(place: Place) -> None:
    async with replicas(*place) as them:
        (port,) = free_ports(1)
        with pytest.raises(AssertionError, match="is where the fronts listen"):
            await them.start(
                "one", "--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{port}",
                "--fronts", "1",
            )  # fmt: skip
        assert await them.running["one"].ended() == BadRequest.exit_code


async def test_a_machine_of_its_own_may_have_fronts_too(tmp_path: Path) -> None:
    """With an etcd of its own the fronts reach their coordinator by its unix socket."""
    process = await asyncio.create_subprocess_exec(
        *allstop("up", "--listen", "127.0.0.1:0", "--fronts", "2", "--node-lease", "1h"),
        *("--state-dir", str(tmp_path)),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    own = Replica("own", process)
    own.start_reading()
    try:
        await own.said("listening on ")
        shims = await attached(own.address, 2)
        await checkpoint(own.address)
        await checkpoint(own.addresses[-1])
        await dismiss(shims)
        own.kill(signal.SIGINT)
        assert await own.ended() == 0
    finally:
        await own.close()


def front_options(**more: object) -> FrontOptions:
    return FrontOptions(
        name="f",
        parent=os.getpid(),
        listen=("127.0.0.1:0",),
        etcd=EtcdOptions(("127.0.0.1:1",), connect_s=0.2),
        **more,  # type: ignore[arg-type]
    )


async def test_a_front_that_hangs_is_killed_and_started_again() -> None:
    async with Fronts(1, front_options(), lease_s=5.0) as fronts:
        (frozen,) = fronts.pids
        os.kill(frozen, signal.SIGSTOP)
        await gone([frozen])
        await until(lambda: fronts.pids and fronts.pids != (frozen,))
    assert not fronts.pids


async def test_what_a_front_cannot_do_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="0 fronts"):
        Fronts(0, front_options())
    (tmp_path / "no.pem").write_text("nothing")
    wrong = Tls(tmp_path / "no.pem", tmp_path / "no.pem", tmp_path / "no.pem")
    fronts = Fronts(2, front_options(tls=wrong))
    with pytest.raises(SetupError, match=r"front . does not start \(it ended with 14\)"):
        await fronts.__aenter__()
    assert not fronts.pids


def test_a_front_is_told_all_options_there_are() -> None:
    options = front_options(node_lease_s=7.0)
    assert FrontOptions.decoded(options.encoded()) == options
    tls = Path("/a")
    options = front_options(tls=Tls(tls, tls, tls, "n"))
    assert FrontOptions.decoded(options.encoded()) == options
