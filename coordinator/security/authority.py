"""A small certificate authority for development and for clusters that have none of their own.

Keys are of the curve P-256, certificates last 90 days (the authority's ten years), files are 0600.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.core.errors import BadRequest, SetupError
from coordinator.security.roles import Holder, Role, uri_of

AUTHORITY_DAYS = 3650
DAYS = 90
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
AHEAD = timedelta(minutes=5)  # for clocks that are behind
CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"


@dataclass(frozen=True)
class Issued:
    """Where a certificate and its key were written."""

    certificate: Path
    key: Path
    holder: Holder
    until: datetime


def make_authority(directory: Path, name: str = "allstop") -> Issued:
    """Make an authority; raises Refused where there is one, SetupError where it cannot be written.

    A crash half-way leaves a key without a certificate, which the next call replaces.
    """
    if (directory / CA_CERTIFICATE).exists():
        raise BadRequest(
            f"{directory / CA_CERTIFICATE} is there already",
            advice="`allstop certs issue` uses it; remove it to begin anew",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
    until = datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS)
    certificate = (
        _begun(subject, subject, key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(directory / CA_KEY, _pem(key))
    _write(directory / CA_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    return Issued(
        directory / CA_CERTIFICATE, directory / CA_KEY, Holder(Role.OPERATOR, name), until
    )


def issue(
    authority: Path, holder: Holder, hosts: Sequence[str], *, into: Path, days: int = DAYS
) -> Issued:
    """Make a key and a certificate for one holder; `hosts` are names and addresses it answers at.

    A shim always answers at its node's name: so its partners know that they reached that node.

    Raises SetupError where the authority cannot be read or nothing can be written. One that is
    there is replaced: key first, then certificate.
    """
    ca, ca_key = _authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, f"allstop-{holder.role}"),
            x509.NameAttribute(NameOID.COMMON_NAME, holder.name[:64]),
        ]
    )
    names = [x509.UniformResourceIdentifier(uri_of(holder)), *map(_name, hosts)]
    if holder.role is Role.SHIM and _HOST.fullmatch(holder.name) and holder.name not in hosts:
        names.append(_name(holder.name))
    until = min(datetime.now(UTC) + timedelta(days=days), ca.not_valid_after_utc)
    both = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if holder.role in (Role.COORDINATOR, Role.SHIM):
        both.append(ExtendedKeyUsageOID.SERVER_AUTH)
    certificate = (
        _begun(subject, ca.subject, key.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    stem = f"{holder.role}-{holder.name}"
    made = Issued(into / f"{stem}.pem", into / f"{stem}.key", holder, until)
    _write(made.key, _pem(key))
    _write(made.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return made


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - AHEAD)
        .not_valid_after(until)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    advice = "`allstop certs init` makes an authority"
    try:
        certificate = x509.load_pem_x509_certificate((directory / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((directory / CA_KEY).read_bytes(), None)
    except OSError as error:
        raise SetupError(f"cannot read {error.filename}: {error.strerror}", advice=advice) from None
    except (ValueError, TypeError) as error:
        raise SetupError(f"the authority in {directory} cannot be used: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SetupError(f"{directory / CA_KEY} is of another kind than allstop makes")
    return certificate, key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and never readable by others."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from None
