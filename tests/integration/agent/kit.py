"""Starting shims in lab hosts, and driving them as a coordinator would."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from allstop.v1 import shim_pb2

from coordinator.codec import from_proto
from coordinator.core.model import AddressMove, Endpoint, WorkerRecord
from lab import Host
from tests.support.fake_coordinator import FakeCoordinator, Peer

PROGRAMS = Path(__file__).parent / "programs"
LOOP = str(PROGRAMS / "loop.py")


def start_shim(
    host: Host, coordinator: FakeCoordinator, root: Path, criu: str, *worker: str
) -> subprocess.Popen[bytes]:
    """`worker`: number, how many, and the command; nothing for a spare."""
    line = [sys.executable, str(PROGRAMS / "shim.py"), host.name, coordinator.address, str(root)]
    with open(root / f"{host.name}.log", "ab") as log:
        return host.popen([*line, criu, *worker], stdout=log, stderr=log, cwd=root)


async def exit_of(shim: subprocess.Popen[bytes], deadline_s: float = 30.0) -> int:
    return await asyncio.to_thread(shim.wait, deadline_s)


def done(result: shim_pb2.OrderResult) -> shim_pb2.OrderResult:
    assert not result.HasField("failure"), result.failure
    return result


async def every(*orders: Any) -> list[shim_pb2.OrderResult]:
    """Give orders at once and want all of them done."""
    return [done(result) for result in await asyncio.gather(*orders)]


async def reached(peer: Peer, boundary: int, deadline_s: float = 60.0) -> None:
    """Wait until every rank has finished so many steps."""

    def there(message: shim_pb2.ShimMessage) -> bool:
        ranks = [rank for worker in message.report.workers for rank in worker.ranks]
        return bool(ranks) and all(rank.boundary >= boundary for rank in ranks)

    await peer.until(there, deadline_s)


async def checkpoint(peers: list[Peer], action: str) -> list[shim_pb2.OrderResult]:
    """One attempt over these workers, in order; returns the answers to PERSIST."""

    async def all_of(phase: str, **detail: Any) -> list[shim_pb2.OrderResult]:
        orders = [peer.order(phase, action, worker=n, **detail) for n, peer in enumerate(peers)]
        return await every(*orders)

    held = await all_of("HOLD", cut="CUT_STEP")
    target = max(rank.boundary for result in held for rank in result.ranks) + 1
    parked = await all_of("PARK", target=target)
    seen = {(rank.boundary, rank.parked) for result in parked for rank in result.ranks}
    assert seen == {(target, True)}
    await all_of("DUMP", cut="CUT_STEP")
    await all_of("RESUME")
    return await all_of("PERSIST")


async def restore(
    peers: list[Peer],
    action: str,
    saved: list[shim_pb2.OrderResult],
    incarnation: int,
    moves: tuple[AddressMove, ...] = (),
) -> list[shim_pb2.OrderResult]:
    """Bring these workers back on these peers, in order; what RESTORE was answered."""
    new = {move.old: move.new for move in moves}
    records = [from_proto(result.record, WorkerRecord) for result in saved]

    def moved(end: Endpoint) -> Endpoint:
        local, remote = end.local_address, end.remote_address
        return replace(
            end, local_address=new.get(local, local), remote_address=new.get(remote, remote)
        )

    async def all_of(phase: str, **detail: Any) -> list[shim_pb2.OrderResult]:
        orders = []
        for number, (peer, record) in enumerate(zip(peers, records, strict=True)):
            more = dict(detail)
            if phase != "RELEASE":
                more["record"] = record
            if phase == "CLEAR":
                more["connections"] = tuple(map(moved, record.connections))
            orders.append(peer.order(phase, action, worker=number, **more))
        return await every(*orders)

    await all_of("FETCH")
    await all_of("CLEAR")
    back = await all_of("RESTORE", incarnation=incarnation, workers=len(peers), addresses=moves)
    await all_of("RELEASE")
    return back


def contents(store: Path) -> dict[str, tuple[int, int, str]]:
    """Every file of an image store: mode, time of the last change, digest."""
    files = [path for path in sorted(store.rglob("*")) if path.is_file()]
    found = {}
    for path in files:
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(store))] = (status.st_mode, status.st_mtime_ns, digest)
    return found
