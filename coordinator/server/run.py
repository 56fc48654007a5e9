"""One coordinator process: store, election, sockets, fronts, and an orderly end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from coordinator.api.channels import OWN_POOL
from coordinator.api.forwarding import Forwarding
from coordinator.api.service import OperatorService
from coordinator.core.errors import BadRequest, SetupError
from coordinator.core.health_rules import HealthRules
from coordinator.core.policy import Policy
from coordinator.health.table import rules
from coordinator.link.carrier import Carrier
from coordinator.link.names import check_name
from coordinator.link.options import Keepalive
from coordinator.link.security import NO_TLS, Dialler, Tls
from coordinator.link.service import NODE_LEASE_S
from coordinator.security.plain import require_encrypted
from coordinator.server.addresses import advertised, is_loopback, is_unix, split
from coordinator.server.collecting import collect_seldom
from coordinator.server.embedded import EmbeddedEtcd, start_etcd
from coordinator.server.following import Following
from coordinator.server.front import FrontOptions
from coordinator.server.fronts import NAME_CHARS_MAX, Fronts
from coordinator.server.process import allow_many_files, first_of, log_to_stderr, stop_signals
from coordinator.server.replica import Replica
from coordinator.server.serving import Seat, Serving, start_serving
from coordinator.store.election import TTL_S, Election, Leader
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import KeyValue
from coordinator.store.timed import TimedKeyValue
from coordinator.telemetry.metrics import Now
from coordinator.telemetry.observer import Telemetry
from coordinator.telemetry.wanted import exporter_wanted

log = structlog.get_logger(__name__)

DEFAULT_LISTEN = ("127.0.0.1:7411",)


@dataclass(frozen=True)
class CoordinatorOptions:
    """How to run one coordinator. Without `etcd` an embedded one keeps its data below `data`."""

    listen: tuple[str, ...] = DEFAULT_LISTEN
    unix_socket: Path | None = None
    advertise: str = ""  # host or host:port by which other replicas reach it; default: `listen`
    fronts: int = 0  # processes that have `listen` instead of this one
    peer: str = ""  # what this one listens on when it has fronts; default: a free port beside them
    tls: Tls = NO_TLS  # of all TCP connections but those to etcd
    any_role: bool = False  # every certificate of the authority may do everything
    insecure: bool = False  # TCP may be plain beyond this machine, and anybody may do anything
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
    gpu_policy: Path | None = None  # rows that come before those that are shipped
    keepalive: Keepalive = field(default_factory=Keepalive)
    http: str = ""  # host:port of page and metrics; empty: neither
    hook_token: Path | None = None  # a file: whoever shows what is in it may use hooks
    http_must: bool = True  # else it goes on without, where somebody else has that port
    node_lease_s: float = NODE_LEASE_S  # a shim that says nothing for so long is lost
    on_serving: Callable[[Sequence[str]], None] | None = None  # gets the addresses
    on_page: Callable[[str], None] | None = None  # gets the page's URL
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
    """Serve until SIGTERM or SIGINT; lead whenever this replica is elected, else follow.

    Returns 0 after an orderly end. Raises SetupError, BadRequest, StoreError or BugError otherwise,
    with everything that was started ended again: sockets, streams, fronts, lease, embedded etcd.
    """
    log_to_stderr()
    collect_seldom()
    allow_many_files()
    policy, health = policy_of(options.policy), rules(options.gpu_policy)
    _require_safe(options)
    name = options.name or f"{socket.gethostname()[:NAME_CHARS_MAX]}-{os.getpid()}"
    check_name("coordinator", name)
    async with AsyncExitStack() as stack:
        stopping = stack.enter_context(stop_signals())
        dialler = Dialler(options.tls, keepalive=options.keepalive, options=OWN_POOL)
        etcd = await _embedded(options, stack)
        reach = _etcd_options(options, etcd)
        telemetry = Telemetry(exporter=exporter_wanted("allstop-coordinator", name))
        if telemetry.exporter is not None:
            stack.push_async_callback(telemetry.exporter.close)
        kv = TimedKeyValue(EtcdKeyValue(reach), telemetry.metrics.etcd_answered)
        stack.push_async_callback(kv.close)
        process = _Process(name, options, kv, dialler, policy, health, telemetry)
        telemetry.metrics.now = process.now
        stack.push_async_callback(process.following.close)
        await process.serve(stack, reach)
        await _show(process, options, telemetry, stack)
        await _until_the_end(process, stopping, etcd)
    log.info("stopped")
    return 0


def _require_safe(options: CoordinatorOptions) -> None:
    """Raises BadRequest where somebody on the network could do anything, unasked."""
    if options.tls.certificate is None or options.tls.ca is None:
        listened = (*options.listen, *((options.peer,) if options.peer else ()))
        require_encrypted(listened, "listening on", insecure=options.insecure)
        if options.http:
            require_encrypted((options.http,), "the page at", insecure=options.insecure)
    plain = [url for url in options.etcd if not url.startswith("https://")]
    require_encrypted(plain, "talking to etcd at", insecure=options.insecure)


async def _show(
    process: _Process, options: CoordinatorOptions, telemetry: Telemetry, stack: AsyncExitStack
) -> None:
    """Serve page and metrics, if they are wanted; raises SetupError."""
    if not options.http:
        return
    from coordinator.page.hooks import Admission, read_token
    from coordinator.page.serving import serving_page

    page = serving_page(
        options.http,
        process.own,
        telemetry.metrics.registry,
        process.unready,
        tls=options.tls,
        admission=Admission(read_token(options.hook_token), options.any_role),
    )
    try:
        url = await stack.enter_async_context(page)
    except SetupError as error:
        if options.http_must:
            raise
        log.warning("no page and no metrics", why=str(error), advice="--http names another address")
        return
    log.info("page and metrics", url=url)
    if options.on_page is not None:
        options.on_page(url)


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


class _Process:
    """What one coordinator process consists of, joined together."""

    def __init__(
        self,
        name: str,
        options: CoordinatorOptions,
        kv: KeyValue,
        dialler: Dialler,
        policy: Policy,
        health: HealthRules,
        telemetry: Telemetry,
    ) -> None:
        self._name = name
        self._options = options
        self._kv = kv
        self._policy = policy
        self._health = health
        self._telemetry = telemetry
        self._address = ""  # what others dial
        self.own = ""  # where this very process answers operators
        self._election = self._standing("")
        self.seat = Seat(Carrier(name), empty="this coordinator is still starting")
        self.following = Following(self._election, self.seat.carrier, dialler, own=self._is_own)
        self._replica: Replica | None = None

    def _standing(self, address: str) -> Election:
        return Election(
            self._kv,
            self._name,
            address=address,
            prefix=self._options.prefix,
            ttl_s=self._options.lease_s,
        )

    def _is_own(self, leader: Leader) -> bool:
        """Whether this process leads, or one before it at its address did, of whatever name."""
        return leader.address == self._address

    async def serve(self, stack: AsyncExitStack, reach: EtcdOptions) -> None:
        """Open the sockets, here or in fronts; raises SetupError or BadRequest."""
        serving = await self._start_serving()
        stack.push_async_callback(serving.stop)
        alone = not self._options.etcd  # an embedded etcd has no replicas on other machines
        self._address = advertised(self._options.advertise, serving.addresses, alone=alone)
        if is_loopback(self._address) and not all(map(is_loopback, self._options.etcd)):
            log.warning(
                "coordinators of other machines will not reach this one, should it lead",
                for_replicas=self._address,
                advice="--listen or --advertise names an address that they can dial",
            )
        addresses = serving.addresses
        self.own = next((each for each in addresses if is_unix(each)), addresses[0])
        if self._options.fronts:
            fronts = await stack.enter_async_context(self._fronts(reach))
            self._require_reachable(fronts)
            unix = tuple(each for each in serving.addresses if is_unix(each))
            addresses = (*fronts.addresses, *unix)
        log.info("serving", addresses=addresses, for_replicas=self._address)
        if self._options.on_serving is not None:
            self._options.on_serving(addresses)

    def _require_reachable(self, fronts: Fronts) -> None:
        """Raises BadRequest when others would dial the fronts, which never lead."""
        ports = {split(address)[1] for address in fronts.addresses}
        if not is_unix(self._address) and split(self._address)[1] in ports:
            raise BadRequest(
                f"{self._address} is where the fronts listen; other coordinators need another port",
                advice="leave the port out of --advertise, or name the one of --peer",
            )

    async def _start_serving(self) -> Serving:
        own = OperatorService(self.seat.desk)
        return await start_serving(
            self.seat,
            operator=Forwarding(
                self._name,
                own=lambda: own if self.seat.reign is not None else None,
                leader=lambda: self.following.leader,
                channels=self.following.channels,
            ),
            listen=self._own_listen(),
            unix_socket=self._options.unix_socket,
            keepalive=self._options.keepalive,
            node_lease_s=self._options.node_lease_s,
            tls=self._options.tls,
            any_role=self._options.any_role,
        )

    def _own_listen(self) -> tuple[str, ...]:
        """What this process listens on itself."""
        options = self._options
        if not options.fronts:
            return options.listen
        if options.peer:
            return (options.peer,)
        if not options.etcd and options.unix_socket is not None:
            return ()  # nobody but the fronts dials, and they can by the unix socket
        split(options.listen[0])
        return (f"{options.listen[0].rpartition(':')[0]}:0",)

    def _fronts(self, reach: EtcdOptions) -> Fronts:
        options = self._options
        return Fronts(
            options.fronts,
            FrontOptions(
                name=self._name,
                parent=os.getpid(),
                listen=options.listen,
                etcd=reach,
                prefix=options.prefix,
                lease_s=options.lease_s,
                keepalive=options.keepalive,
                node_lease_s=options.node_lease_s,
                tls=options.tls,
                any_role=options.any_role,
            ),
        )

    async def run(self) -> None:
        """Campaign, lead and follow until cancelled; raises BugError."""
        self._replica = Replica(
            self._name,
            self._standing(self._address),
            self._kv,
            self.seat,
            policy=self._policy,
            health=self._health,
            prefix=self._options.prefix,
            on_leading=self._options.on_leading,
            telemetry=self._telemetry,
        )
        await first_of(self._replica.run(), self.following.run())

    def unready(self) -> str:
        """Why operators get no answer here; empty: they do."""
        if self.seat.reign is not None or self.following.leader is not None:
            return ""
        return f"no leader yet: {self.seat.empty}"

    def now(self) -> Now:
        """How this replica is, for its metrics."""
        carried = len(self.seat.carrier.nodes)
        reign = self.seat.reign
        if reign is None:
            return Now(carried=carried)
        return replace(reign.now(), carried=carried)

    async def lay_down(self) -> None:
        """Let go whoever is held by an action of ours."""
        if self._replica is not None:
            await self._replica.lay_down()


async def _until_the_end(
    process: _Process, stopping: asyncio.Event, etcd: EmbeddedEtcd | None
) -> None:
    """Run until told to stop, until etcd dies, or until the replica fails; end it in any case."""

    async def told() -> None:
        await stopping.wait()
        await process.lay_down()

    async def died() -> None:
        if etcd is not None:
            raise await etcd.died()
        await asyncio.Event().wait()

    await first_of(process.run(), told(), died())
