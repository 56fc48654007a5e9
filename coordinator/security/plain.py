"""Plain TCP leaves this machine only where somebody has said that it may."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.errors import BadRequest
from coordinator.server.addresses import is_loopback

ADVICE = (
    "give certificates (`allstop certs init`, `allstop certs issue`, then --tls-ca, --tls-cert and"
    " --tls-key), or say --insecure in a network where everybody may read and stop jobs"
)


def require_encrypted(addresses: Iterable[str], what: str, *, insecure: bool) -> None:
    """Raises BadRequest for the first address beyond this machine, unless `insecure`.

    `what` goes before the address: "listening on", "dialling".
    """
    for address in addresses:
        if not insecure and not is_loopback(address):
            raise BadRequest(f"{what} {address} without TLS", advice=ADVICE)
