"""Which shims keep objects for each other: `partner://NODE@HOST:PORT,…/NAME`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from coordinator.core.errors import BadRequest

SCHEME = "partner"
EXAMPLE = "such as partner://node-1@10.0.0.1:7420,node-2@10.0.0.2:7420"
DEFAULT_NAME = "allstop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MEMBER = re.compile(
    r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,62})@"
    r"(?P<address>(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5}))"
)


@dataclass(frozen=True)
class Member:
    """One shim that keeps objects for others."""

    node: str
    address: str  # host:port that the others dial


@dataclass(frozen=True)
class Ring:
    """Every shim that keeps objects, and a name that tells two rings of one cluster apart."""

    members: tuple[Member, ...]
    name: str = DEFAULT_NAME

    @classmethod
    def parse(cls, where: str) -> Ring:
        """Take an address apart; raises BadRequest."""
        scheme, _, rest = where.partition("://")
        listed, _, name = rest.partition("/")
        name = name.rstrip("/") or DEFAULT_NAME
        found = [_MEMBER.fullmatch(each) for each in listed.split(",")]
        if scheme != SCHEME or not all(found) or not _NAME.fullmatch(name):
            raise BadRequest(f"{where!r} names no ring of partners", advice=EXAMPLE)
        members = tuple(Member(one["node"], one["address"]) for one in found if one)
        if any(int(one["port"]) > 65_535 for one in found if one):
            raise BadRequest(f"{where!r} has a port that cannot be", advice=EXAMPLE)
        for what, all_of in (
            ("node", [each.node for each in members]),
            ("address", [each.address for each in members]),
        ):
            if len(set(all_of)) < len(all_of):
                raise BadRequest(f"{where!r} has one {what} twice", advice=EXAMPLE)
        return cls(members, name)

    @property
    def identity(self) -> str:
        """The same on every node of the ring, whoever joins or leaves it."""
        return blake3(f"ring of partners {self.name}".encode()).hexdigest(16)

    def own(self, node: str) -> Member | None:
        """The entry of a node; None for one that keeps nothing for others."""
        return next((each for each in self.members if each.node == node), None)

    def after(self, node: str) -> Sequence[Member]:
        """The others, in the order in which `node` asks them: its neighbour first.

        A node that is not of the ring begins anywhere, by its name, so that not all begin at one.
        """
        places = [each.node for each in self.members]
        if node in places:
            start = places.index(node) + 1
        else:
            start = int.from_bytes(blake3(node.encode()).digest(4), "big") % len(places)
        turned = self.members[start:] + self.members[:start]
        return [each for each in turned if each.node != node]

    def __str__(self) -> str:
        return f"ring {self.name} of {', '.join(each.node for each in self.members)}"
