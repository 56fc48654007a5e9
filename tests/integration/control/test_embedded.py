"""The embedded etcd: a real one, started, found in use, killed, started again on its data."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import SetupError, StoreError
from coordinator.server.embedded import find_etcd, start_etcd
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Put, Range

pytestmark = pytest.mark.etcd


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="allstop-") as name:
        yield Path(name) / "etcd"


async def test_its_data_outlives_it(directory: Path) -> None:
    for round_number in range(2):
        etcd = await start_etcd(directory)
        kv = EtcdKeyValue(EtcdOptions((etcd.endpoint,)))
        found = (await kv.read(Range("key"))).found[0]
        assert [item.value for item in found] == [b"value"] * round_number
        await kv.write([], [Put("key", b"value")])
        await kv.close()
        await etcd.stop()
        await etcd.stop()  # no error when it has ended
        assert etcd.process.returncode is not None
    assert os.stat(directory).st_mode & 0o777 == 0o700


async def test_a_second_one_on_the_same_data_is_refused(directory: Path) -> None:
    etcd = await start_etcd(directory)
    try:
        with pytest.raises(SetupError, match="another etcd serves"):
            await start_etcd(directory)
        kv = EtcdKeyValue(EtcdOptions((etcd.endpoint,)))
        await kv.write([], [Put("key", b"the first one still works")])
        await kv.close()
    finally:
        await etcd.stop()


async def test_its_death_is_noticed_and_its_sockets_do_not_block_the_next(directory: Path) -> None:
    etcd = await start_etcd(directory)
    dying = asyncio.create_task(etcd.died())
    os.kill(etcd.process.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        assert isinstance(await dying, StoreError)
    again = await start_etcd(directory)
    await again.stop()


async def test_damaged_data_is_an_error_with_etcds_own_words(directory: Path) -> None:
    (directory / "data" / "member" / "snap").mkdir(parents=True)
    (directory / "data" / "member" / "snap" / "db").write_bytes(b"\xff" * 65536)
    (directory / "data" / "member" / "wal").mkdir()
    with pytest.raises(StoreError) as caught:
        await start_etcd(directory, deadline_s=10)
    assert caught.value.details
    assert "etcd.log" in caught.value.advice


async def test_it_does_not_outlive_a_killed_parent(directory: Path) -> None:
    script = (
        "import asyncio, sys, pathlib\n"
        "from coordinator.server.embedded import start_etcd\n"
        "async def main():\n"
        "    etcd = await start_etcd(pathlib.Path(sys.argv[1]))\n"
        "    print(etcd.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(30):
        lines = [await parent.stdout.readline() for _ in range(1)]
        while lines[-1] and not lines[-1].strip().isdigit():
            lines.append(await parent.stdout.readline())
        etcd_pid = int(lines[-1])
        watch = os.pidfd_open(etcd_pid)
        parent.kill()
        await parent.wait()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(watch, ended.set)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(watch)
    os.close(watch)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="/nowhere/etcd"):
        find_etcd(Path("/nowhere/etcd"))
    monkeypatch.setenv("ALLSTOP_ETCD_PROGRAM", "/nowhere/else")
    with pytest.raises(SetupError, match="/nowhere/else"):
        find_etcd()
