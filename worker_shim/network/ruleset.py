"""The lock as nft's words: one table per worker, and in it nothing but that worker's sockets.

Only what arrives is dropped: dropping what is sent would show up in the sender as EPERM and kill
the job. A rule for all of loopback would break CRIU's self-test, which talks to itself; exact
connections do not.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable

from coordinator.core.model import Endpoint
from worker_shim.network.port import Sockets

PREFIX = "allstop"
PRIORITY = -200  # before conntrack and every ordinary filter
ANY = ("0.0.0.0", "::")


def table_of(name: str) -> str:
    """The nft table of `<job>/<worker>`: readable, and different for different names."""
    slug = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40]
    return f"{PREFIX}_{slug}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def lock_script(name: str, sockets: Sockets, *, replace: bool) -> str:
    """One transaction that makes the worker's table for these sockets.

    Without `replace` it fails when there is one. Deleting makes the kernel wait until no packet is
    inside the old rules, some 15 ms; a first lock, on which the job waits, has nothing to delete.
    """
    table = table_of(name)
    rules: list[str] = []
    sets: list[str] = []
    for family, kind in ((4, "ip"), (6, "ip6")):
        address = f"ipv{family}_addr"
        peers = sorted({_incoming(e) for e in sockets.established if _version(e) == family})
        bound = sorted({f"{a} . {p}" for a, p in sockets.listening if _specific(a, family)})
        quadruple = f"{address} . inet_service . {address} . inet_service"
        sets += _set(f"peers{family}", quadruple, peers)
        sets += _set(f"bound{family}", f"{address} . inet_service", bound)
        if peers:
            key = f"{kind} saddr . tcp sport . {kind} daddr . tcp dport"
            rules.append(f"    {key} @peers{family} counter drop")
        if bound:
            rules.append(f"    {kind} daddr . tcp dport @bound{family} counter drop")
    ports = sorted({p for address, p in sockets.listening if address in ANY})
    sets += _set("ports", "inet_service", [str(port) for port in ports])
    if ports:
        rules.append("    tcp dport @ports counter drop")
    return "\n".join(
        [
            remove_script(name) if replace else f"create table inet {table}",
            f"table inet {table} {{",
            *sets,
            "  chain input {",
            f"    type filter hook input priority {PRIORITY}; policy accept;",
            *rules,
            "  }",
            "}",
            "",
        ]
    )


def remove_script(name: str) -> str:
    """Remove the table whether it is there or not: adding one that exists changes nothing."""
    table = table_of(name)
    return f"add table inet {table}\ndelete table inet {table}\n"


def _set(name: str, kind: str, elements: Iterable[str]) -> list[str]:
    listed = ", ".join(elements)
    if not listed:
        return []
    return [f"  set {name} {{", f"    type {kind}", f"    elements = {{ {listed} }}", "  }"]


def _incoming(endpoint: Endpoint) -> str:
    """The connection as an arriving packet has it: from the remote end to the local one."""
    return (
        f"{endpoint.remote_address} . {endpoint.remote_port} . "
        f"{endpoint.local_address} . {endpoint.local_port}"
    )


def _version(endpoint: Endpoint) -> int:
    return ipaddress.ip_address(endpoint.local_address).version


def _specific(address: str, family: int) -> bool:
    return address not in ANY and ipaddress.ip_address(address).version == family
