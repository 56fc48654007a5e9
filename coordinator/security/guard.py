"""Whoever calls is asked for a role, where the connection has certificates to tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from coordinator.core.errors import Forbidden
from coordinator.link.checked import checked
from coordinator.security.holders import holder
from coordinator.security.roles import Role, require


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
