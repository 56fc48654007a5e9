"""Real coordinator processes over a real etcd: start, stop, kill, stand by, take over."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import LinkError, SetupError
from coordinator.server.serving import Seat, start_serving
from tests.support.cluster import follow
from tests.support.fake_shim import attached

pytestmark = pytest.mark.etcd

SCRIPT = """
import asyncio, sys
from pathlib import Path
from coordinator.server.run import CoordinatorOptions, run_coordinator

mode, place = sys.argv[1], sys.argv[2]
options = CoordinatorOptions(
    listen=("127.0.0.1:0",),
    unix_socket=Path(place) / "sock" if mode == "embedded" else None,
    data=Path(place) / "etcd" if mode == "embedded" else None,
    etcd=() if mode == "embedded" else (place,),
    prefix=sys.argv[3],
    lease_s=2.0,
    on_serving=lambda addresses: print("serving", *addresses, flush=True),
    on_leading=lambda epoch: print("leading", epoch, flush=True),
)
sys.exit(asyncio.run(run_coordinator(options)))
"""


class Process:
    """A coordinator in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ""

    async def line(self, word: str, timeout_s: float = 30.0) -> list[str]:
        """The next line of its output that begins with `word`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            while raw := await self.process.stdout.readline():
                if raw.decode().split()[:1] == [word]:
                    return raw.decode().split()[1:]
        raise AssertionError(f"the coordinator ended before it said {word!r}")

    async def ended(self, timeout_s: float = 20.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()


@asynccontextmanager
async def coordinator(mode: str, place: str, prefix: str = "/allstop") -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        mode,
        place,
        prefix,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ".:proto"},
    )
    started = Process(process)
    try:
        started.address = (await started.line("serving"))[0]
        yield started
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


@pytest.fixture
def state() -> AsyncIterator[Path]:  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="allstop-") as name:
        yield Path(name)


async def checkpoint(address: str) -> str:
    """A snapshot taken through this coordinator."""
    async with attached(address, 2), OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
        assert went.error is None
        assert went.last.snapshot is not None
        return went.last.snapshot.snapshot


@pytest.mark.slow
async def test_snapshots_outlive_an_orderly_end_and_a_kill(state: Path) -> None:
    taken = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        async with coordinator("embedded", str(state)) as process:
            await process.line("leading")
            async with OperatorClient([f"unix:{state / 'sock'}"]) as client:
                if taken:
                    found = (await client.snapshots("llm")).snapshots
                    assert [each.snapshot for each in found] == taken
                taken.append(await checkpoint(process.address))
            process.process.send_signal(number)
            code = await process.ended()
            if number is not signal.SIGKILL:
                assert code == 0
                assert "sock" not in os.listdir(state)
    assert len(set(taken)) == 3


async def test_a_second_coordinator_does_not_take_the_socket_of_the_first(state: Path) -> None:
    async with coordinator("embedded", str(state)) as process:
        await process.line("leading")
        with pytest.raises(SetupError, match="already running"):
            await start_serving(Seat(), unix_socket=state / "sock")
        host_and_port = process.address
        with pytest.raises(SetupError, match="cannot listen"):
            await start_serving(Seat(), listen=[host_and_port])
        async with OperatorClient([f"unix:{state / 'sock'}"]) as client:
            assert await client.jobs() == ()


async def eventually(ask: Callable[[], Awaitable[object]], timeout_s: float = 15.0) -> object:
    """The first answer that is no LinkError."""
    for _ in range(round(timeout_s / 0.1)):
        try:
            return await ask()
        except LinkError:
            await asyncio.sleep(0.1)
    return await ask()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_standby_takes_over(etcd_server: object, how: signal.Signals) -> None:
    endpoint = etcd_server.endpoint  # type: ignore[attr-defined]
    prefix = f"/takeover-{how}"
    async with coordinator("etcd", endpoint, prefix) as first:
        epoch = int((await first.line("leading"))[0])
        async with coordinator("etcd", endpoint, prefix) as second:
            async with OperatorClient([second.address]) as client:
                # the standby passes it on, as soon as it has heard who leads
                assert await eventually(client.jobs) == ()
            taken = await checkpoint(first.address)
            first.process.send_signal(how)
            assert int((await second.line("leading"))[0]) > epoch
            addresses = [first.address, second.address]
            async with OperatorClient(addresses, connect_deadline_s=1, call_deadline_s=2) as client:
                if how is signal.SIGSTOP:
                    first.process.send_signal(signal.SIGCONT)  # it must find itself replaced
                found = await eventually(lambda: client.snapshots("llm"))
                assert found.latest == taken  # type: ignore[attr-defined]
            if how is signal.SIGSTOP:
                async with OperatorClient([first.address]) as client:
                    found = await eventually(lambda: client.snapshots("llm"))
                    assert found.latest == taken  # type: ignore[attr-defined]
            assert await checkpoint(second.address) > taken
