"""Whoever calls is asked for a role, where the connection has certificates to tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.x509.oid import NameOID

from coordinator.core.errors import Forbidden
from coordinator.link.checked import checked
from coordinator.security.roles import Holder, Role, holder_of, require

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


class Guard:
    """What a server asks of whoever calls it."""

    def __init__(self, *, any_role: bool = False) -> None:
        """`any_role`: every certificate of the authority may do everything."""
        self._any_role = any_role

    def check(self, context: Any, method: str, *, node: str = "") -> None:
        """Raises Forbidden where the other end may not; a shim may only for its own `node`."""
        found = None if self._any_role else holder(context)
        if found is None:
            return
        require(found, method)
        if found.role is Role.SHIM and node and found.name != node:
            raise Forbidden(
                f"the certificate is of the shim of node {found.name}, not of {node}",
                advice=f"--node {found.name}, or a certificate for {node}",
            )


class GuardAll(grpc.aio.ServerInterceptor):
    """Checks every call but the long streams, which check themselves when they know their node."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put the check before the handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        return checked(handler, lambda _, context: self._guard.check(context, method))
