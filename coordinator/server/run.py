"""One coordinator process: store, election, sockets, and an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from coordinator.core.errors import AllstopError, BadRequest, BugError, Fenced, StoreError
from coordinator.core.policy import Policy
from coordinator.link.options import Keepalive
from coordinator.link.service import NODE_LEASE_S
from coordinator.link.uplink import LocalUplink
from coordinator.server.collecting import collect_seldom
from coordinator.server.embedded import EmbeddedEtcd, start_etcd
from coordinator.server.reign import Reign
from coordinator.server.serving import Seat, Serving, start_serving
from coordinator.store.election import TTL_S, Election
from coordinator.store.election import Leadership as Right
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.records import Records

log = structlog.get_logger(__name__)

DEFAULT_LISTEN = ("127.0.0.1:7411",)
CAMPAIGN_PAUSE_S = 0.5
LAY_DOWN_S = 15.0  # a worker is let go within seconds, but its criu is waited for


@dataclass(frozen=True)
class CoordinatorOptions:
    """How to run one coordinator. Without `etcd` an embedded one keeps its data below `data`."""

    listen: tuple[str, ...] = DEFAULT_LISTEN
    unix_socket: Path | None = None
    etcd: tuple[str, ...] = ()
    etcd_ca: Path | None = None
    etcd_certificate: Path | None = None
    etcd_key: Path | None = None
    etcd_server_name: str = ""
    data: Path | None = None  # directory of the embedded etcd
    etcd_program: Path | None = None
    name: str = ""  # of this replica; default: host name and pid
    prefix: str = "/allstop"
    lease_s: float = TTL_S
    policy: Mapping[str, float] = field(default_factory=dict)  # fields of Policy
    keepalive: Keepalive = field(default_factory=Keepalive)
    node_lease_s: float = NODE_LEASE_S  # a shim that says nothing for so long is lost
    on_serving: Callable[[Sequence[str]], None] | None = None  # gets the addresses
    on_leading: Callable[[int], None] | None = None  # gets the epoch, each time it leads


def policy_of(overrides: Mapping[str, float]) -> Policy:
    """The default policy with some of its numbers changed; raises BadRequest naming a wrong one."""
    known = Policy.__dataclass_fields__
    for name, value in overrides.items():
        if name not in known:
            raise BadRequest(
                f"policy: there is no {name}", advice=f"there are: {', '.join(sorted(known))}"
            )
        if name.endswith("_limit") and value != int(value):
            raise BadRequest(f"policy: {name} must be a whole number")
    return replace(
        Policy(),
        **{
            name: int(value) if name.endswith("_limit") else float(value)
            for name, value in overrides.items()
        },  # type: ignore[arg-type]
    )


async def run_coordinator(options: CoordinatorOptions) -> int:
    """Serve until SIGTERM or SIGINT; lead whenever this replica is elected.

    Returns 0 after an orderly end. Raises SetupError, StoreError or BugError otherwise, with
    everything that was started ended again: sockets, streams, the lease, the embedded etcd.
    """
    _log_to_stderr()
    collect_seldom()
    policy = policy_of(options.policy)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
            stack.callback(loop.remove_signal_handler, number)
        seat = Seat(empty="this coordinator is still starting")
        etcd = await _embedded(options, stack)
        kv = EtcdKeyValue(_etcd_options(options, etcd))
        stack.push_async_callback(kv.close)
        serving = await start_serving(
            seat,
            listen=options.listen,
            unix_socket=options.unix_socket,
            keepalive=options.keepalive,
            node_lease_s=options.node_lease_s,
        )
        stack.push_async_callback(serving.stop)
        _announce(options, serving)
        replica = _Replica(options, policy, kv, seat)
        await _first_of(replica, stopping, etcd)
    log.info("stopped")
    return 0


async def _embedded(options: CoordinatorOptions, stack: AsyncExitStack) -> EmbeddedEtcd | None:
    if options.etcd:
        return None
    if options.data is None:
        raise BadRequest("an embedded etcd needs a data directory, or name one with --etcd")
    etcd = await start_etcd(options.data, program=options.etcd_program)
    stack.push_async_callback(etcd.stop)
    return etcd


def _etcd_options(options: CoordinatorOptions, etcd: EmbeddedEtcd | None) -> EtcdOptions:
    if etcd is not None:
        return EtcdOptions((etcd.endpoint,))
    return EtcdOptions(
        options.etcd,
        ca=options.etcd_ca,
        certificate=options.etcd_certificate,
        key=options.etcd_key,
        server_name=options.etcd_server_name,
    )


def _announce(options: CoordinatorOptions, serving: Serving) -> None:
    log.info("serving", addresses=serving.addresses)
    if options.on_serving is not None:
        options.on_serving(serving.addresses)


async def _first_of(replica: _Replica, stopping: asyncio.Event, etcd: EmbeddedEtcd | None) -> None:
    """Run until told to stop, until etcd dies, or until the replica fails; end it in any case."""
    running = asyncio.create_task(replica.run())
    told = asyncio.create_task(stopping.wait())
    died = asyncio.create_task(etcd.died()) if etcd is not None else None
    tasks: list[asyncio.Task[Any]] = [running, told, *([died] if died is not None else [])]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        elif died is not None and died.done():
            raise died.result()
        else:
            await replica.lay_down()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Replica:
    """Campaigns, reigns, and campaigns again; ends when cancelled or by a defect."""

    def __init__(
        self, options: CoordinatorOptions, policy: Policy, kv: EtcdKeyValue, seat: Seat
    ) -> None:
        self._options = options
        self._policy = policy
        self._kv = kv
        self._seat = seat
        self._name = options.name or f"{socket.gethostname()}-{os.getpid()}"
        self._election = Election(kv, self._name, prefix=options.prefix, ttl_s=options.lease_s)

    async def run(self) -> None:
        """Raises BugError when a reign ended by a defect; everything else is tried again."""
        while True:
            self._seat.empty = f"{self._name} is a candidate"
            right = await self._election.campaign()
            try:
                why = await self._reign(right)
            finally:
                self._seat.reign = None
                await right.resign()
            if isinstance(why, BugError):
                raise why
            log.warning("not leading any more", epoch=right.epoch, reason=str(why))
            await asyncio.sleep(CAMPAIGN_PAUSE_S)

    async def lay_down(self) -> None:
        """Before an orderly end: let go whoever is held, since nobody may lead for a long time."""
        reign = self._seat.reign
        if reign is not None:
            self._seat.ending = f"{self._name} was told to end"
            await reign.lay_down(self._seat.ending, deadline_s=LAY_DOWN_S)

    async def _reign(self, right: Right) -> AllstopError:
        structlog.contextvars.bind_contextvars(epoch=right.epoch)
        reign = Reign(
            epoch=right.epoch,
            coordinator=self._name,
            store=Records(self._kv, right, self._options.prefix),
            policy=self._policy,
            check=right.check,
        )
        right.on_lost(lambda reason: reign.stop(Fenced(f"epoch {right.epoch} ended: {reason}")))
        try:
            await reign.begin()
            self._seat.reign = reign
            self._seat.carrier.follow(LocalUplink(self._seat.carrier, reign.hub))
            if self._options.on_leading is not None:
                self._options.on_leading(right.epoch)
            return await reign.ended()
        except (StoreError, Fenced) as error:
            return error
        finally:
            self._seat.reign = None
            await reign.close()


def _log_to_stderr() -> None:
    """Data goes to stdout, the log to stderr; whoever has set up structlog keeps their way."""
    if structlog.is_configured():
        return
    people = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(
                [structlog.dev.ConsoleRenderer()]
                if people
                else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
