"""Addresses of this machine: ports held for several processes, and what others are told to dial."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from coordinator.core.errors import BadRequest, SetupError

LISTEN_ADVICE = "is another coordinator running there? --listen names another address"
ANY_HOST = ("", "0.0.0.0", "::", "*")


def is_unix(address: str) -> bool:
    """Whether an address is a socket of this machine's file system."""
    return address.startswith("unix:")


def split(address: str) -> tuple[str, int]:
    """Host (without brackets) and port; raises BadRequest when it is not `host:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise BadRequest(
            f"{address!r} is not HOST:PORT", advice="such as 10.0.0.1:7411 or [fd00::1]:7411"
        )
    return host.strip("[]"), int(port)


def advertised(wanted: str, addresses: Sequence[str], *, alone: bool) -> str:
    """What other processes dial to reach the one that listens at `addresses`.

    `wanted` is `host` or `host:port`, or empty for the first address; `alone`: no process of
    another machine will dial. Raises BadRequest for an address that means every interface.
    """
    tcp = [each for each in addresses if not is_unix(each)]
    if wanted:
        # brackets end a v6 address, so that its own colons are no port's
        if wanted.endswith("]") or ":" not in wanted:
            if not tcp:
                raise BadRequest(
                    f"--advertise {wanted} has no port, and no TCP port is listened on"
                )
            return f"{wanted}:{split(tcp[0])[1]}"
        split(wanted)
        return wanted
    if alone and len(tcp) < len(addresses):
        return next(each for each in addresses if is_unix(each))
    chosen = tcp[0] if tcp else addresses[0]
    if is_unix(chosen):
        return chosen
    host, port = split(chosen)
    if host not in ANY_HOST:
        return chosen
    if alone:
        return f"127.0.0.1:{port}"
    raise BadRequest(
        f"{chosen} is every address of this machine: how do the other coordinators reach it?",
        advice="--advertise HOST says how",
    )


def is_loopback(address: str) -> bool:
    """Whether an address means the machine itself to whoever dials it."""
    host = address.rpartition("//")[2].rpartition(":")[0].strip("[]")
    return is_unix(address) or host in ("localhost", "::1") or host.startswith("127.")


class HeldPorts:
    """Ports that several processes of ours share, held so that nobody else can take them.

    The sockets here are bound and never listen, so that they get no connection. They are bound as
    a single owner's: a port that anybody has is refused. Only then are they opened for sharing
    (SO_REUSEPORT), and SO_REUSEADDR is taken back, which would let a stranger in while none of
    our processes listens.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        """Take all of them (port 0: a free one); raises SetupError naming the one that is taken."""
        self._sockets = ExitStack()
        try:
            self.addresses = tuple(self._hold(address) for address in addresses)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others have the ports."""
        self._sockets.close()

    def _hold(self, address: str) -> str:
        """The address with its real port."""
        host, port = split(address)
        try:
            found = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, place in dict.fromkeys(found):
                held = self._sockets.enter_context(socket.socket(family, kind, protocol))
                if family == socket.AF_INET6:
                    held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((place[0], port, *place[2:]))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                port = held.getsockname()[1]
        except OSError as error:
            raise SetupError(
                f"cannot listen on {address}: {error.strerror or error}", advice=LISTEN_ADVICE
            ) from error
        return f"{address.rpartition(':')[0]}:{port}"
