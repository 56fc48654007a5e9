"""The coordinator's sockets: all services on TCP addresses and on a unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from allstop.v1 import carrier_pb2_grpc, operator_pb2_grpc, shim_pb2_grpc

from coordinator.api.desk import Desk
from coordinator.api.service import OperatorService
from coordinator.core.errors import LinkError, NoLeader, SetupError
from coordinator.link.carrier import Carrier
from coordinator.link.hub import Hub
from coordinator.link.options import Keepalive, server_options
from coordinator.link.relay import RelayService
from coordinator.link.security import NO_TLS, Tls, server_credentials
from coordinator.link.service import NODE_LEASE_S, LinkService
from coordinator.link.unreadable import ReadAll
from coordinator.security.guard import Guard, GuardAll
from coordinator.server.addresses import LISTEN_ADVICE
from coordinator.server.reign import Reign

STOP_GRACE_S = 1.0
UNIX_PATH_BYTES_MAX = 107


@dataclass
class Seat:
    """Who answers here: a reign, or the reason why there is none; and who carries the shims."""

    carrier: Carrier = field(default_factory=lambda: Carrier("coordinator"))
    reign: Reign | None = None
    empty: str = "this coordinator is still starting"
    ending: str = ""  # why no new request is taken, while what runs is brought to an end

    def present(self) -> Reign:
        """The present reign; raises NoLeader while there is none."""
        if self.reign is None:
            raise NoLeader(
                f"no leader yet: {self.empty}", advice="try again, or ask another coordinator"
            )
        return self.reign

    def desk(self) -> Desk:
        """What the operator service works with; raises NoLeader also when about to end."""
        if self.ending:
            raise NoLeader(self.ending, advice="ask another coordinator, or start it again")
        return self.present().desk

    def hub(self) -> Hub:
        """What carriers of other replicas follow."""
        return self.present().hub


@dataclass
class Serving:
    """A started server; `addresses` are what clients dial, with the real ports."""

    server: grpc.aio.Server
    carrier: Carrier
    addresses: tuple[str, ...]
    unix_socket: Path | None = None
    stopped: bool = field(default=False)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Refuse new calls, give running ones `grace_s`, and remove the unix socket."""
        if self.stopped:
            return
        self.stopped = True
        self.carrier.close(
            LinkError("this coordinator was told to end", advice="dial another coordinator")
        )
        await self.server.stop(grace_s)
        if self.unix_socket is not None:
            with contextlib.suppress(FileNotFoundError):
                self.unix_socket.unlink()


async def start_serving(
    seat: Seat,
    *,
    listen: Sequence[str] = (),
    unix_socket: Path | None = None,
    keepalive: Keepalive | None = None,
    node_lease_s: float = NODE_LEASE_S,
    operator: operator_pb2_grpc.OperatorServicer | None = None,
    tls: Tls = NO_TLS,
    shared_ports: bool = False,
    any_role: bool = False,
) -> Serving:
    """Open every address (port 0: a free one) and serve; raises SetupError naming the address.

    `operator` answers operators, by default the seat's reign alone. `shared_ports`: other processes
    of ours listen on the same ports, and the kernel deals out connections among us. `any_role`:
    every certificate of the authority may do everything.
    """
    credentials = server_credentials(tls)
    guard = Guard(any_role=any_role)
    options = dict(server_options(keepalive or Keepalive()))
    options["grpc.so_reuseport"] = int(shared_ports)
    server = grpc.aio.server(
        interceptors=[GuardAll(guard), ReadAll()], options=list(options.items())
    )
    operator = operator or OperatorService(seat.desk)
    link = LinkService(seat.carrier, node_lease_s=node_lease_s, guard=guard)
    relay = RelayService(seat.hub, guard=guard)
    operator_pb2_grpc.add_OperatorServicer_to_server(operator, server)  # type: ignore[no-untyped-call]
    shim_pb2_grpc.add_ShimLinkServicer_to_server(link, server)  # type: ignore[no-untyped-call]
    carrier_pb2_grpc.add_CarrierLinkServicer_to_server(relay, server)  # type: ignore[no-untyped-call]
    addresses = []
    for address in listen:
        port = _bind(server, address, credentials)
        addresses.append(f"{address.rpartition(':')[0]}:{port}")
    if unix_socket is not None:
        _make_way(unix_socket)
        _bind(server, f"unix:{unix_socket}")
        addresses.append(f"unix:{unix_socket}")
    await server.start()
    if unix_socket is not None:
        unix_socket.chmod(0o600)  # noqa: ASYNC240 - one local system call
    return Serving(server, seat.carrier, tuple(addresses), unix_socket)


def _bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise SetupError(f"cannot listen on {address}: {error}", advice=LISTEN_ADVICE) from error
    if port == 0:
        raise SetupError(f"cannot listen on {address}", advice=LISTEN_ADVICE)
    return int(port)


def _make_way(path: Path) -> None:
    """Make the socket's directory; remove the socket of a coordinator that is gone.

    Raises SetupError when one answers there (gRPC would quietly take its place), when the path is
    too long for a unix socket, or when something else has it.
    """
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
        raise SetupError(
            f"a unix socket's path may have {UNIX_PATH_BYTES_MAX} bytes, this has more: {path}",
            advice="choose a shorter state directory",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise SetupError(f"{path} is there and is no socket", advice="move it away")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise SetupError(
        f"a coordinator is already running at {path}", advice="use it, or stop it first"
    )
