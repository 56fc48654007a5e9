"""Connections of a measurement, with TLS on both sides or without, the same for both of its sides.

The variable ALLSTOP_BENCH_TLS names a directory with ca.pem, cert.pem and key.pem.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from coordinator.core.errors import SetupError
from coordinator.link.options import Keepalive
from coordinator.link.security import NO_TLS, Tls

VARIABLE = "ALLSTOP_BENCH_TLS"
CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
PATIENT = Keepalive(timeout_ms=60_000)  # pings as often as usual, on a machine that is too small
OPENSSL_S_MAX = 30.0
DAYS = "2"


def _files() -> tuple[bytes, bytes, bytes] | None:
    """Authority, key and certificate of this measurement; None: no TLS."""
    place = os.environ.get(VARIABLE)
    if not place:
        return None
    ca, key, certificate = (Path(place, name).read_bytes() for name in (CA, KEY, CERTIFICATE))
    return ca, key, certificate


def own_tls() -> Tls:
    """The same files as allstop's own programs take them."""
    place = os.environ.get(VARIABLE)
    if not place:
        return NO_TLS
    return Tls(Path(place, CA), Path(place, CERTIFICATE), Path(place, KEY))


def channel_to(address: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
    """A channel to one address."""
    files = _files()
    if files is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*files), options=options)


def serve_on(server: grpc.aio.Server) -> str:
    """Let a server listen on a free port of this machine; the clients must show a certificate."""
    files = _files()
    if files is None:
        return f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    ca, key, certificate = files
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, True)
    return f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"


def make_certificates(place: Path) -> None:
    """An authority, and one certificate for 127.0.0.1 that serves both ends.

    Raises SetupError where there is no openssl program.
    """
    if shutil.which("openssl") is None:
        raise SetupError("there is no openssl to make certificates with", advice="--no-tls")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        place, "req", "-x509", *curve, "-keyout", "ca.key", "-out", CA, "-days", DAYS,
        "-subj", "/CN=allstop-bench",
    )  # fmt: skip
    _openssl(place, "req", *curve, "-keyout", KEY, "-out", "request.pem", "-subj", "/CN=localhost")
    names = place / "names.txt"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl(
        place, "x509", "-req", "-in", "request.pem", "-CA", CA, "-CAkey", "ca.key",
        "-CAcreateserial", "-out", CERTIFICATE, "-days", DAYS, "-extfile", names.name,
    )  # fmt: skip


def _openssl(place: Path, *arguments: str) -> None:
    made = subprocess.run(
        ["openssl", *arguments], cwd=place, capture_output=True, text=True, timeout=OPENSSL_S_MAX
    )
    if made.returncode != 0:
        raise SetupError(
            f"openssl {arguments[0]} failed", details=tuple(made.stderr.splitlines()[-5:])
        )
