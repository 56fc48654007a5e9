"""Connections to the members of an etcd cluster: several endpoints, TLS, dead peers noticed.

aetcd gives the generated stubs. Its own client is not used: it has no TLS, one endpoint, no
deadline per call, and its watch hides revisions (design/adr/0001-etcd-client.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aetcd import rpc

from coordinator.core.errors import BadRequest, SetupError, StoreError

# etcd answers pings more often than every 5 s with GOAWAY. The time-out that closes a silent
# connection is ping_timeout_ms; keepalive_timeout_ms alone leaves it open for a minute (measured).
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 256 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class EtcdOptions:
    """How to reach etcd.

    Endpoints are `http://host:port`, `https://host:port`, `host:port` or `unix:/path`; with `ca`,
    `certificate` or `server_name` a bare `host:port` is TLS as well.
    """

    endpoints: tuple[str, ...]
    ca: Path | None = None  # PEM; None: the system's authorities
    certificate: Path | None = None  # PEM of this client, for clusters that ask for one
    key: Path | None = None
    server_name: str = ""  # name in the members' certificates, where it is not the host
    deadline_s: float = 3.0  # of one call
    connect_s: float = 3.0  # until some member must have been reached
    watch_patience_s: float = 60.0  # how long a watch looks for a member before it gives up

    @property
    def tls(self) -> bool:
        """Whether bare endpoints are TLS."""
        return bool(self.ca or self.certificate or self.server_name)


class Member:
    """One endpoint: a channel and its stubs."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        """Wrap a channel that was made in the running loop."""
        self.endpoint = endpoint
        self.channel = channel
        self.kv: Any = rpc.KVStub(channel)
        self.lease: Any = rpc.LeaseStub(channel)
        self.watch: Any = rpc.WatchStub(channel)
        self.maintenance: Any = rpc.MaintenanceStub(channel)

    @property
    def ready(self) -> bool:
        """Whether it is connected at this moment."""
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY


class Members:
    """All endpoints; calls go to one that is connected and stay there while it answers."""

    def __init__(self, options: EtcdOptions) -> None:
        """Check the options; connections are made by the first call, inside its loop."""
        if not options.endpoints:
            raise BadRequest("no etcd endpoint was given", advice="give at least one host:port")
        if (options.certificate is None) != (options.key is None):
            raise BadRequest("an etcd client certificate needs its key, and the key a certificate")
        self.options = options
        self._members: list[Member] = []
        self._current: Member | None = None

    async def pick(self) -> Member:
        """A connected member. Raises StoreError (definite) when none is reached in `connect_s`."""
        if not self._members:
            self._members = [self._open(each) for each in self.options.endpoints]
        if self._current is not None and self._current.ready:
            return self._current
        self._current = next((each for each in self._members if each.ready), None)
        if self._current is None:
            self._current = await self._first_ready()
        return self._current

    def avoid(self, member: Member) -> None:
        """Prefer another connected member from now on; this one did not answer."""
        if self._current is member:
            others = (each for each in self._members if each is not member and each.ready)
            self._current = next(others, member)

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        members, self._members, self._current = self._members, [], None
        for member in members:
            await member.channel.close()

    async def _first_ready(self) -> Member:
        waits = {
            asyncio.create_task(member.channel.channel_ready()): member for member in self._members
        }
        try:
            done, _ = await asyncio.wait(
                waits, timeout=self.options.connect_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for task in done:
            if not task.cancelled() and task.exception() is None:
                return waits[task]
        raise StoreError(
            f"no etcd member could be reached in {self.options.connect_s:g} s: "
            f"{', '.join(self.options.endpoints)}",
            advice="is etcd running, and are address, port and certificates right?",
        )

    def _open(self, endpoint: str) -> Member:
        target, secure = _target(endpoint, self.options.tls)
        if not secure:
            return Member(endpoint, grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS))
        options = self.options
        credentials = grpc.ssl_channel_credentials(
            _pem(options.ca), _pem(options.key), _pem(options.certificate)
        )
        named = (("grpc.ssl_target_name_override", options.server_name),)
        arguments = (*CHANNEL_OPTIONS, *(named if options.server_name else ()))
        return Member(endpoint, grpc.aio.secure_channel(target, credentials, options=arguments))


def _target(endpoint: str, tls: bool) -> tuple[str, bool]:
    if endpoint.startswith("https://"):
        return endpoint.removeprefix("https://").rstrip("/"), True
    if endpoint.startswith("http://"):
        return endpoint.removeprefix("http://").rstrip("/"), False
    return endpoint, tls and not endpoint.startswith("unix:")


def _pem(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error
