"""Channels to coordinators, one an address, kept while they work; why one does not, in words."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio

from coordinator.core.errors import LinkError
from coordinator.link.security import Dialler

CONNECT_DEADLINE_S = 3.0
ASK_WHY_S = 1.0
BROKEN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
# A pool of its own: a new channel must not wait out the back-off of an older one.
OWN_POOL = (("grpc.use_local_subchannel_pool", 1),)

ADVICE = "is it running? `allstop up` starts one; --coordinator names another"
# what gRPC says of a connection that does not come about -> what it means, what to do
CAUSES = (
    ("connection refused", "nobody listens at {}", ADVICE),
    ("no such file", "nobody listens at {}", ADVICE),
    ("wrong_version_number", "what listens at {} does not speak TLS", "leave out --tls-…"),
    (
        "certificate_verify_failed",
        "the certificate of {} is not from an authority that is trusted here",
        "--tls-ca names the authority",
    ),
    (
        "hostname verification",
        "the certificate of {} is for another name",
        "--tls-server-name says which name it has",
    ),
    (
        "socket closed",
        "what listens at {} ended the connection before it stood",
        "it may want TLS (--tls-ca), or a certificate of ours (--tls-cert, --tls-key)",
    ),
)


class Channels:
    """Used in one event loop; `close` ends what runs on them."""

    def __init__(
        self, dialler: Dialler | None = None, *, connect_deadline_s: float = CONNECT_DEADLINE_S
    ) -> None:
        """`connect_deadline_s` is for each address."""
        self._dialler = dialler or Dialler(options=OWN_POOL)
        self._connect_deadline_s = connect_deadline_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._dialling: dict[str, asyncio.Task[grpc.aio.Channel]] = {}

    async def connected(self, address: str) -> grpc.aio.Channel:
        """A channel that is connected.

        Raises LinkError (definite) at once where nobody listens, else within the connect deadline.
        Whoever asks meanwhile waits for the same answer: a channel that one of them closes would
        cancel what the others do on it.
        """
        dialling = self._dialling.get(address)
        if dialling is None:
            dialling = self._dialling[address] = asyncio.ensure_future(self._connect(address))
            dialling.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(dialling)

    def _dialled(self, address: str, dialling: asyncio.Task[grpc.aio.Channel]) -> None:
        self._dialling.pop(address, None)
        if not dialling.cancelled():
            dialling.exception()  # seen, also when whoever asked has been cancelled

    async def _connect(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None or channel.get_state() in BROKEN:
            await self.drop(address)
            channel = self._channels[address] = self._dialler(address)
        try:
            async with asyncio.timeout(self._connect_deadline_s):
                if await _is_connected(channel):
                    return channel
            error = _refusal(address, await _why_broken(channel))
        except TimeoutError:
            error = LinkError(
                f"no coordinator answers at {address} within {self._connect_deadline_s:g} s",
                advice=ADVICE,
            )
        await self.drop(address)
        raise error

    async def drop(self, address: str) -> None:
        """Close the channel to an address; the next use dials anew."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close every channel; running calls end."""
        dialling = tuple(self._dialling.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        for address in list(self._channels):
            await self.drop(address)


async def _is_connected(channel: grpc.aio.Channel) -> bool:
    """Wait until the channel is ready; False as soon as every address of it has refused."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in BROKEN:
            return False
        await channel.wait_for_state_change(state)
    return True


async def _why_broken(channel: grpc.aio.Channel) -> str:
    """A call on a broken channel fails at once, with the reason; no service has this method."""
    call: Any = channel.unary_unary("/allstop.v1.Operator/Reach")
    try:
        await call(b"", timeout=ASK_WHY_S)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    return ""


def _refusal(address: str, why: str) -> LinkError:
    last = why.rpartition("last error: ")[2]
    for sign, text, advice in CAUSES:
        if sign in why.lower():
            return LinkError(text.format(address), advice=advice, details=(last,))
    return LinkError(f"{address} cannot be reached: {last or 'no reason is known'}", advice=ADVICE)
