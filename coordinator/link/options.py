"""How gRPC is set up on the coordinator's side: keepalive, sizes.

Without `grpc.http2.ping_timeout_ms` a frozen peer stays unnoticed for a minute whatever the
keepalive time-out says (measured with grpcio 1.85: 65 s without it, time + time-out with it).
"""

from __future__ import annotations

from dataclasses import dataclass

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
METADATA_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Keepalive:
    """How soon a silent peer is given up: after `time_ms` + `timeout_ms` at the latest."""

    time_ms: int = 2_000
    timeout_ms: int = 4_000


def server_options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Channel arguments for the coordinator's server."""
    return [
        ("grpc.keepalive_time_ms", keepalive.time_ms),
        ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
        ("grpc.http2.ping_timeout_ms", keepalive.timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # what clients may send us: as often as they like down to once a second
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.so_reuseport", 0),
    ]


def client_options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Channel arguments for whoever dials a coordinator."""
    return [
        ("grpc.keepalive_time_ms", keepalive.time_ms),
        ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
        ("grpc.http2.ping_timeout_ms", keepalive.timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_http_proxy", 0),
    ]
