"""Real etcd members on loopback that a test may pause, kill, fill and start again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aetcd import rpc

from coordinator.core.errors import StoreError
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Put
from tests.contract.etcd_process import EtcdProcess, etcd_path
from tests.support.ports import free_ports

HEALTHY_S = 30.0
FILLING_BYTES = 1_000_000
FILLINGS_MAX = 64
QUOTA_BYTES = 16 << 20


@dataclass
class Member(EtcdProcess):
    """One of them."""

    name: str
    arguments: list[str]
    endpoint: str
    metrics: int

    def start(self) -> None:
        """Start it, or start it again on its data; `Members.healthy` waits for it."""
        self.launch(self.arguments)


@dataclass
class Members:
    """A cluster of one or three members."""

    folder: Path
    size: int = 1
    quota_bytes: int = 0
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = free_ports(3 * self.size)
        client, peer, metrics = (ports[at::3] for at in range(3))
        names = [f"m{number}" for number in range(self.size)]
        urls = [f"http://127.0.0.1:{port}" for port in peer]
        cluster = ",".join(f"{name}={url}" for name, url in zip(names, urls, strict=True))
        for number, name in enumerate(names):
            folder = self.folder / name
            folder.mkdir(parents=True)
            endpoint = f"http://127.0.0.1:{client[number]}"
            arguments = [
                etcd_path(),
                f"--name={name}",
                f"--data-dir={folder / 'data'}",
                "--unsafe-no-fsync",  # the machine does not crash here, only the processes
                f"--listen-client-urls={endpoint}",
                f"--advertise-client-urls={endpoint}",
                f"--listen-peer-urls={urls[number]}",
                f"--initial-advertise-peer-urls={urls[number]}",
                f"--initial-cluster={cluster}",
                f"--listen-metrics-urls=http://127.0.0.1:{metrics[number]}",
                "--log-level=error",
                *([f"--quota-backend-bytes={self.quota_bytes}"] if self.quota_bytes else []),
            ]
            self.members.append(Member(folder, name, arguments, endpoint, metrics[number]))

    @property
    def endpoints(self) -> list[str]:
        """Where clients reach the members."""
        return [member.endpoint for member in self.members]

    def start(self) -> None:
        """Start all and wait until all are healthy; raises AssertionError with etcd's own words."""
        for member in self.members:
            member.start()
        self.healthy()

    def healthy(self) -> None:
        """Wait until every member says that it serves and knows its leader."""
        for member in self.members:
            member.wait_healthy(member.metrics, HEALTHY_S)

    def stop(self) -> None:
        """End all of them."""
        for member in self.members:
            member.kill()

    async def fill(self) -> None:
        """Write until etcd raises its alarm NOSPACE; from then on it refuses every put."""
        kv = EtcdKeyValue(EtcdOptions(tuple(self.endpoints)))
        try:
            for number in range(FILLINGS_MAX):
                await kv.write([], [Put(f"/filling/{number}", b"\0" * FILLING_BYTES)])
        except StoreError as error:
            if "database space exceeded" not in error.what:
                raise
            return
        finally:
            await kv.close()
        raise AssertionError("etcd took everything and was never full")

    async def make_room(self) -> None:
        """What an operator does: take the filling out, compact, defragment, disarm the alarm."""
        kv = EtcdKeyValue(EtcdOptions(tuple(self.endpoints), deadline_s=20.0))
        try:
            member = await kv._members.pick()
            gone = await member.kv.DeleteRange(
                rpc.DeleteRangeRequest(key=b"/filling/", range_end=b"/filling0")
            )
            await kv.compact(gone.header.revision)
            await member.maintenance.Defragment(rpc.DefragmentRequest())
            alarms = await member.maintenance.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET))
            for alarm in alarms.alarms:
                disarm = rpc.AlarmRequest(
                    action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm
                )
                await member.maintenance.Alarm(disarm)
        finally:
            await kv.close()


@contextmanager
def started(folder: Path, size: int = 1, *, quota_bytes: int = 0) -> Iterator[Members]:
    """Members that serve, and that end whatever happens."""
    members = Members(folder, size, quota_bytes)
    try:
        members.start()
        yield members
    finally:
        members.stop()
