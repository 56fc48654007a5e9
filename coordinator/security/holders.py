"""Whom the other end of a connection is, by its certificate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from coordinator.security.roles import Holder, holder_of

CERTIFICATES_KEPT = 4_096


def holder(context: Any) -> Holder | None:
    """Whom the certificate of the other end is of; None for a connection without certificates.

    Those are unix sockets, whose file's mode says who may, and TCP that was opened without TLS on
    purpose. Raises Forbidden for a certificate that names no role.
    """
    told = context.auth_context()
    if b"ssl" not in told.get("transport_security_type", ()):
        return None
    pem = next(iter(told.get("x509_pem_cert", ())), b"")
    return holder_of_pem(pem) if pem else None


@lru_cache(maxsize=CERTIFICATES_KEPT)
def holder_of_pem(pem: bytes) -> Holder:
    """Whom a certificate is of; raises Forbidden for one that names no role."""
    certificate = x509.load_pem_x509_certificate(pem)
    names: list[str] = []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = found.value.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        pass
    subject = certificate.subject
    units = [
        str(each.value) for each in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    ]
    common = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return holder_of(names, units, common[0] if common else "")
