"""Port of sealing: what happens to bytes of the job before they leave the node."""

from __future__ import annotations

from typing import Protocol

from worker_shim.images.objects.port import Part


class Sealing(Protocol):
    """Turns bytes into what may be seen by others, and back."""

    hash_key: bytes  # 32 bytes for keyed blake3; b"": names of chunks are plain digests
    overhead_bytes: int  # what sealing adds to each piece

    def seal(self, data: Part, context: bytes) -> bytes:
        """Close a piece; it opens only with the same context."""

    def open(self, data: Part, context: bytes) -> bytes:
        """The piece again; raises WrongKey, or DriverError where its bytes are not those sealed."""


class Open:
    """No sealing: bytes are stored as they are."""

    hash_key = b""
    overhead_bytes = 0

    def seal(self, data: Part, context: bytes) -> bytes:
        """As it is."""
        return bytes(data)

    def open(self, data: Part, context: bytes) -> bytes:
        """As it is."""
        return bytes(data)
