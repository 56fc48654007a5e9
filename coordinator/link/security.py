"""TLS between coordinators, shims and operators: which files, and what gRPC makes of them.

Unix sockets are never encrypted: their directory keeps others out. TCP is plain unless a
certificate or an authority is given; a server that has an authority asks every client for a
certificate signed by it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from coordinator.core.errors import BadRequest, SetupError
from coordinator.link.options import Keepalive, client_options


@dataclass(frozen=True)
class Tls:
    """PEM files of one process; without any of them its TCP connections are plain."""

    ca: Path | None = None  # authorities that the other side's certificate must come from
    certificate: Path | None = None  # shown to the other side, with its chain
    key: Path | None = None
    server_name: str = ""  # name in the certificate of whoever is dialled, if not its address

    @property
    def wanted(self) -> bool:
        """Whether TCP connections are encrypted."""
        return bool(self.ca or self.certificate or self.key or self.server_name)


NO_TLS = Tls()


def server_credentials(tls: Tls) -> grpc.ServerCredentials | None:
    """What a server shows and asks for; None: it stays plain.

    Raises SetupError naming a file that cannot be used, BadRequest for a missing one.
    """
    if not tls.wanted:
        return None
    if tls.certificate is None:
        raise BadRequest("a coordinator needs a certificate of its own for TLS (--tls-cert)")
    ca, certificate, key = _loaded(tls)
    assert certificate is not None
    assert key is not None
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=ca is not None
    )


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials | None:
    """What a client shows and whom it trusts; None: it dials plain.

    Without `ca` the authorities are those that gRPC ships. Raises as `server_credentials`.
    """
    if not tls.wanted:
        return None
    ca, certificate, key = _loaded(tls)
    return grpc.ssl_channel_credentials(ca, key, certificate)


class Dialler:
    """Opens channels to coordinators: `dialler(address)`; the files are read once, here."""

    def __init__(
        self,
        tls: Tls = NO_TLS,
        *,
        keepalive: Keepalive | None = None,
        options: tuple[tuple[str, str | int], ...] = (),
    ) -> None:
        """`options` are further arguments of every channel. Raises as `channel_credentials`."""
        self._credentials = channel_credentials(tls)
        named = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
        self._plain = [*client_options(keepalive or Keepalive()), *options]
        self._secure = [*self._plain, *named]

    def __call__(self, address: str) -> grpc.aio.Channel:
        """A channel to `host:port` or `unix:PATH`; nothing is connected yet."""
        if self._credentials is None or address.startswith(("unix:", "unix-abstract:")):
            return grpc.aio.insecure_channel(address, options=self._plain)
        return grpc.aio.secure_channel(address, self._credentials, options=self._secure)


def _loaded(tls: Tls) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The three files, checked: gRPC itself would only say that a handshake failed."""
    if (tls.certificate is None) != (tls.key is None):
        raise BadRequest("a TLS certificate needs its key, and a key its certificate")
    ca = _certificates(tls.ca) if tls.ca is not None else None
    if tls.certificate is None or tls.key is None:
        return ca, None, None
    certificate, key = _certificates(tls.certificate), _read(tls.key)
    _check_pair(tls.certificate, tls.key)
    return ca, certificate, key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error


def _certificates(path: Path) -> bytes:
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii", errors="replace")
        )
    except (ssl.SSLError, ValueError):
        raise SetupError(
            f"{path} holds no certificate in PEM form",
            advice="it begins with -----BEGIN CERTIFICATE-----",
        ) from None
    return content


def _check_pair(certificate: Path, key: Path) -> None:
    def refuse() -> str:
        raise SetupError(f"the key {key} is encrypted", advice="store it without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SetupError(
                f"the key {key} is not the one of the certificate {certificate}"
            ) from None
        raise SetupError(
            f"{key} holds no private key in PEM form, or {certificate} cannot be used with it:"
            f" {error.reason or error}"
        ) from None
