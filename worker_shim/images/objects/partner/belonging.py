"""What a shim shows with each call: of which ring it is, and how that is sealed as far as it knows.

So no node puts plain images into an encrypted ring, whatever it saw when it started.
"""

from __future__ import annotations

from blake3 import blake3

from worker_shim.images.objects.port import ObjectMissing, ObjectStore

KEY_RECORD = "store.key"  # the same on every node, and kept by each for itself


class Belonging:
    """Of one node; reads its record of the key until it is there."""

    def __init__(self, ring: str, own: ObjectStore) -> None:
        """`ring` is the identity of the ring."""
        self._ring, self._own, self._sealing = ring, own, ""

    def shown(self) -> str:
        """The ring, and a digest of how it is sealed where that is decided."""
        if not self._sealing:
            try:
                self._sealing = blake3(self._own.get(KEY_RECORD)).hexdigest(16)
            except ObjectMissing:
                return self._ring
        return f"{self._ring}/{self._sealing}"

    def refusal(self, shown: str, name: str | None) -> str:
        """Why somebody who shows this is not answered about an object; '' where it is."""
        ring, _, sealing = shown.partition("/")
        own_ring, _, own_sealing = self.shown().partition("/")
        if ring != own_ring:
            return "this shim is of another ring"
        if name != KEY_RECORD and sealing != own_sealing and own_sealing:
            return "this shim has another key for the store, or one of the two has none"
        return ""
