"""What a certificate says about its holder: one role, and whom it is of.

A certificate says it by a URI among its alternative names, `allstop://ROLE/NAME`:

    allstop://coordinator/NAME    a replica: carries shims for the leader, passes operators on
    allstop://shim/NODE           the shim of that node, and of no other
    allstop://operator/NAME       checkpoints, restores, aborts, deletes, reads output, and looks
    allstop://viewer/NAME         looks, but not at what ranks have put out

An authority that cannot put URIs into certificates can say the same by the subject: OU=allstop-ROLE
and CN=NAME.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from coordinator.core.errors import Forbidden

SCHEME = "allstop"
UNIT_PREFIX = "allstop-"


class Role(StrEnum):
    """What somebody is to allstop."""

    COORDINATOR = "coordinator"
    SHIM = "shim"
    OPERATOR = "operator"
    VIEWER = "viewer"


@dataclass(frozen=True)
class Holder:
    """Whoever is at the other end."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


LOCAL = Holder(Role.OPERATOR, "this machine")  # at a unix socket, which its file's mode guards


def uri_of(holder: Holder) -> str:
    """The alternative name that says so."""
    return f"{SCHEME}://{holder.role}/{holder.name}"


def holder_of(names: Iterable[str], units: Iterable[str], common_name: str) -> Holder:
    """Whom a certificate is of, by its alternative names and its subject; raises Forbidden."""
    found = {holder for name in names if (holder := _of_uri(name)) is not None}
    if not found:
        found = {holder for unit in units if (holder := _of_unit(unit, common_name)) is not None}
    if len(found) != 1:
        told = " and ".join(sorted(map(str, found)))
        raise Forbidden(
            f"the certificate of {common_name or 'nobody'} is of {told}, which is too much"
            if found
            else f"the certificate of {common_name or 'nobody'} names no role",
            advice="`allstop certs issue` makes certificates with roles; docs/security.md says how"
            " an authority of your own does",
        )
    return found.pop()


def _of_uri(text: str) -> Holder | None:
    parts = urlsplit(text)
    role, name = parts.netloc, unquote(parts.path.removeprefix("/"))
    if parts.scheme != SCHEME or role not in list(Role) or not name or "/" in name:
        return None
    return Holder(Role(role), name)


def _of_unit(unit: str, common_name: str) -> Holder | None:
    role = unit.removeprefix(UNIT_PREFIX)
    if not unit.startswith(UNIT_PREFIX) or role not in list(Role) or not common_name:
        return None
    return Holder(Role(role), common_name)


# Which roles may call what; a method that is not named here nobody may call.
_LOOK = frozenset({Role.OPERATOR, Role.VIEWER, Role.COORDINATOR})
_ACT = frozenset({Role.OPERATOR, Role.COORDINATOR})  # a replica passes on what its operators ask
METHODS: Mapping[str, frozenset[Role]] = {
    "/allstop.v1.ShimLink/Attach": frozenset({Role.SHIM}),
    "/allstop.v1.CarrierLink/Carry": frozenset({Role.COORDINATOR}),
    **dict.fromkeys(
        (
            f"/allstop.v1.Partner/{name}"
            for name in ("Keep", "Read", "Size", "ListObjects", "Remove")
        ),
        frozenset({Role.SHIM}),
    ),
    **dict.fromkeys(
        (
            f"/allstop.v1.Operator/{name}"
            for name in (
                *("Checkpoint", "Restore", "Abort", "ReadLogs", "SetPolicy"),
                *("Drain", "Undrain"),
                *("Delete", "Collect", "Pin", "SetRetention", "Verify"),
            )
        ),
        _ACT,
    ),
    **dict.fromkeys(
        (
            f"/allstop.v1.Operator/{name}"
            for name in (
                "Watch",
                "PlanRestore",
                "ListJobs",
                "ListNodes",
                "ListSnapshots",
                "Show",
                "GetPolicy",
                "GetStory",
            )
        ),
        _LOOK,
    ),
}


def require(holder: Holder, method: str) -> None:
    """Raises Forbidden where this holder may not call this method."""
    allowed = METHODS.get(method, frozenset())
    if holder.role not in allowed:
        verb = method.rpartition("/")[2]
        raise Forbidden(
            f"{holder} may not {verb}; that is for {' or '.join(sorted(allowed)) or 'nobody'}",
            advice="use a certificate of that role",
        )
