"""One front: a process that carries shims and answers operators for a coordinator, and never leads.

`python -m coordinator.server.front` takes its options as JSON from stdin and says `serving` once
it does, then again and again. It ends with its coordinator, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from coordinator.api.forwarding import Forwarding
from coordinator.core.errors import AllstopError
from coordinator.link.carrier import Carrier
from coordinator.link.options import Keepalive
from coordinator.link.security import NO_TLS, Dialler, Tls
from coordinator.link.service import NODE_LEASE_S
from coordinator.server.collecting import collect_seldom
from coordinator.server.following import Following
from coordinator.server.process import allow_many_files, first_of, log_to_stderr, stop_signals
from coordinator.server.serving import Seat, start_serving
from coordinator.store.election import TTL_S, Election
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions

log = structlog.get_logger(__name__)

PR_SET_PDEATHSIG = 1
SERVING = "serving"
BEAT_S = 2.0


@dataclass(frozen=True)
class FrontOptions:
    """What a front is told by its coordinator."""

    name: str
    parent: int  # pid of the coordinator
    listen: tuple[str, ...]
    etcd: EtcdOptions
    prefix: str = "/allstop"
    lease_s: float = TTL_S
    keepalive: Keepalive = field(default_factory=Keepalive)
    node_lease_s: float = NODE_LEASE_S
    tls: Tls = NO_TLS
    any_role: bool = False

    def encoded(self) -> bytes:
        """For the front's stdin."""
        return msgspec.json.encode(self, enc_hook=str)

    @staticmethod
    def decoded(data: bytes) -> FrontOptions:
        """What `encoded` made."""
        return msgspec.json.decode(data, type=FrontOptions, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else value


async def run_front(options: FrontOptions) -> None:
    """Serve until SIGTERM; raises SetupError, StoreError or BugError with everything ended."""
    async with AsyncExitStack() as stack:
        stopping = stack.enter_context(stop_signals())
        kv = EtcdKeyValue(options.etcd)
        stack.push_async_callback(kv.close)
        election = Election(kv, options.name, prefix=options.prefix, ttl_s=options.lease_s)
        carrier = Carrier(options.name)
        following = Following(election, carrier, Dialler(options.tls, keepalive=options.keepalive))
        stack.push_async_callback(following.close)
        serving = await start_serving(
            Seat(carrier, empty=f"{options.name} never leads"),
            operator=Forwarding(
                options.name,
                own=lambda: None,
                leader=lambda: following.leader,
                channels=following.channels,
            ),
            listen=options.listen,
            shared_ports=True,
            keepalive=options.keepalive,
            node_lease_s=options.node_lease_s,
            tls=options.tls,
            any_role=options.any_role,
        )
        stack.push_async_callback(serving.stop)
        log.info("serving", pid=os.getpid(), addresses=serving.addresses)
        await first_of(following.run(), _say_so(), stopping.wait())


async def _say_so() -> None:
    """Tell the coordinator every BEAT_S that this loop turns; if it does not listen, go on."""
    os.set_blocking(sys.stdout.fileno(), False)
    while True:
        with contextlib.suppress(BlockingIOError):
            os.write(sys.stdout.fileno(), f"{SERVING}\n".encode())
        await asyncio.sleep(BEAT_S)


def _end_with(parent: int) -> bool:
    """Be killed when the coordinator ends; False when it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent


def main() -> int:
    """Run one front; returns its exit code."""
    options = FrontOptions.decoded(sys.stdin.buffer.read())
    if not _end_with(options.parent):
        return 0
    log_to_stderr()
    structlog.contextvars.bind_contextvars(front=options.name)
    collect_seldom()
    allow_many_files()
    try:
        asyncio.run(run_front(options))
    except AllstopError as error:
        log.error("a front ended", error=str(error), advice=error.advice)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
