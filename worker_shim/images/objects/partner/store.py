"""ObjectStore of a ring of partners: on this node's disk and on one other's before it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import structlog

from coordinator.core.errors import DriverError
from worker_shim.images.objects.names import checked_object
from worker_shim.images.objects.partner.belonging import KEY_RECORD
from worker_shim.images.objects.partner.client import Partner, PartnerAway
from worker_shim.images.objects.partner.keeping import Keeping
from worker_shim.images.objects.partner.ring import Ring
from worker_shim.images.objects.partner.service import PartnerServer
from worker_shim.images.objects.port import Listed, ObjectMissing, ObjectStore, Part

log = structlog.get_logger(__name__)

EACH_FOR_ITSELF = (KEY_RECORD,)  # wanted before any partner is up

T = TypeVar("T")


class PartnerStore:
    """Own objects, those kept for others, and the partners who have the rest.

    A name is written by one node of the ring (names hold job, attempt and worker): two nodes that
    wrote one name would each find out by the partner's bytes, and one of them be told False.
    """

    scheme = "partner"

    def __init__(
        self,
        ring: Ring,
        own: ObjectStore,
        kept: Keeping,
        partners: Sequence[Partner],
        server: PartnerServer | None = None,
    ) -> None:
        """`partners` in the order in which they are asked; `server` ends with this store."""
        self._ring, self._own, self._kept = ring, own, kept
        self._partners, self._server = tuple(partners), server
        self._first = 0  # whom a read asked last with success

    @property
    def identity(self) -> str:
        """The ring's."""
        return self._ring.identity

    @property
    def port(self) -> int:
        """Where partners reach this node; 0 for one that keeps nothing for others."""
        return self._server.port if self._server is not None else 0

    def look(self) -> list[tuple[str, str]]:
        """Every partner by its node, and why it cannot be asked; '' where it answers."""
        found = []
        for partner in self._partners:
            why = ""
            try:
                partner.size("store.look")
            except ObjectMissing:
                pass
            except DriverError as error:
                why = "; ".join((error.what, *error.details))
            found.append((partner.member.node, why))
        return found

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Write here, then to the first partner that takes it; both have synced when this returns.

        Nothing stays here when no partner took it; a partner whose answer was lost may have it.
        Also an object that is here already is brought to a partner where none has it: its first
        writer may have died in between.
        """
        checked_object(name)
        made = self._own.put(name, parts)
        if name in EACH_FOR_ITSELF:
            self._agree(name, made)
            return made
        if not made:
            self._complete(name)
            return False
        try:
            if self._brought(name, parts):
                return True
        except DriverError:
            self._own.delete(name)
            raise
        self._own.delete(name)
        return False

    def _agree(self, name: str, made: bool) -> None:
        """What each node keeps for itself must be the same on all that answer; raises DriverError.

        Of two that start at once the later one sees the other's.
        """
        mine = self._own.get(name)
        for partner in self._partners:
            try:
                theirs = partner.get(name, 0, None)
            except (ObjectMissing, PartnerAway):
                continue
            if theirs != mine:
                if made:
                    self._own.delete(name)
                raise DriverError(
                    f"partner {partner.member.node} has another {name}",
                    advice="every node of a ring needs the same --store-key, or all none",
                )

    def _complete(self, name: str) -> None:
        """See to it that an object which is here has its second place."""
        for partner in self._in_turn():
            try:
                partner.size(name)
                return
            except DriverError:
                continue
        self._brought(name, [self._own.get(name)])

    def _brought(self, name: str, parts: Sequence[Part]) -> bool:
        """Have one partner keep it; False: it has another one. Raises when none takes it."""
        errors = []
        for partner in self._in_turn():
            try:
                return partner.keep(name, parts)
            except DriverError as error:
                log.warning("a partner does not keep", node=partner.member.node, why=error.what)
                errors.append(error)
        raise DriverError(
            f"no partner keeps {name}: {_all(errors) or 'there is none'}",
            advice=next((error.advice for error in errors if error.advice), ""),
            definite=all(error.definite for error in errors),
            details=tuple(line for error in errors for line in error.details),
        )

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """From this disk, else from whoever has it."""
        found = self._found(
            name,
            lambda store: store.get(name, start=start, length=length),
            lambda partner: partner.get(name, start, length),
        )
        if name in EACH_FOR_ITSELF and (start, length) == (0, None):
            self._own.put(name, [found])  # as the ring has it; nothing where it is here
        return found

    def size(self, name: str) -> int:
        """Of whichever copy is nearest."""
        return self._found(name, lambda store: store.size(name), lambda one: one.size(name))

    def _found(
        self, name: str, here: Callable[[ObjectStore | Keeping], T], there: Callable[[Partner], T]
    ) -> T:
        checked_object(name)
        errors: list[DriverError] = []
        for store in (self._own, self._kept):
            try:
                return here(store)
            except ObjectMissing:
                continue
            except DriverError as error:  # this disk fails; the copy need not
                errors.append(error)
        for at in self._reading_order():
            try:
                found = there(self._partners[at])
            except ObjectMissing:
                continue
            except DriverError as error:
                errors.append(error)
                continue
            self._first = at
            return found
        if errors and not (name in EACH_FOR_ITSELF and _only_away(errors)):
            raise DriverError(
                f"{name} is not at hand: {_all(errors)}",
                advice=next((error.advice for error in errors if error.advice), ""),
                details=tuple(line for error in errors for line in error.details),
            )
        raise ObjectMissing(f"{self._ring} has no {name}")

    def list(self, prefix: str) -> Iterator[Listed]:
        """What this node and every partner that answers have; every object is at two of them.

        What is only at nodes that do not answer is left out.
        """
        seen: dict[str, Listed] = {}
        for store in (self._own, self._kept):
            for each in store.list(prefix):
                seen.setdefault(each.name, each)
        for partner in self._partners:
            try:
                listed = [] if partner.away else partner.list(prefix)
            except PartnerAway as error:
                log.warning("a partner is left out", node=partner.member.node, why=error.what)
                continue
            for each in listed:
                seen.setdefault(each.name, each)
        yield from seen.values()

    def delete(self, name: str) -> None:
        """Remove it here and wherever anybody answers; another node's copy may come back with it.

        Whoever cleans up sees such a copy in the next listing.
        """
        checked_object(name)
        self._own.delete(name)
        self._kept.delete(name)
        for partner in self._partners:
            if partner.away:
                continue
            try:
                partner.delete(name)
            except PartnerAway as error:
                log.warning("a partner keeps what is gone", name=name, why=error.what)

    def free_bytes(self) -> int:
        """Room here, or at the partner that has most, as it told last: the smaller of the two."""
        theirs = max((partner.free_bytes for partner in self._partners), default=0)
        return min(self._own.free_bytes(), theirs)

    def sweep(self) -> tuple[str, ...]:
        """Of both folders."""
        return (*self._own.sweep(), *self._kept.sweep())

    def close(self) -> None:
        """Keep nothing for others any more, and let go of partners and folders."""
        if self._server is not None:
            self._server.close()
        for partner in self._partners:
            partner.close()
        self._own.close()
        self._kept.close()

    def _in_turn(self) -> Sequence[Partner]:
        """The neighbour first; those who have just failed to answer last."""
        return sorted(self._partners, key=lambda partner: partner.away)

    def _reading_order(self) -> Sequence[int]:
        """Who had the last object first: a snapshot's objects lie together."""
        order = sorted(range(len(self._partners)), key=lambda at: at != self._first)
        return sorted(order, key=lambda at: self._partners[at].away)


def _only_away(errors: Sequence[DriverError]) -> bool:
    """Whether nothing is wrong but that partners are not there yet."""
    return all(isinstance(error, PartnerAway) for error in errors)


def _all(errors: Sequence[DriverError]) -> str:
    return "; ".join(error.what for error in errors)
