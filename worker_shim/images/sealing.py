"""Encryption of what leaves the node: AES-256-GCM, and a key for hashes that become names.

One master key for a store, never written anywhere. With the store's identity as salt HKDF makes
three things of it: the key of the cipher, the key of the hashes, and a check, which the store
keeps (`store.key`) so that a wrong key is refused before anything is read or written.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.core.errors import DriverError, SetupError, WrongKey
from worker_shim.images.objects.port import ObjectMissing, ObjectStore, Part

KEY_RECORD = "store.key"
OWN_RECORDS = ("store.id", KEY_RECORD)  # what a store may hold before it holds anything
CIPHER = "AES-256-GCM"
KEY_BYTES, CHECK_BYTES = 32, 8
NONCE_BYTES, TAG_BYTES = 12, 16  # NIST SP 800-38D; random nonces: at most 2^32 seals a key


class Sealing(Protocol):
    """What is done to bytes before they leave the node, and after they came back."""

    @property
    def hash_key(self) -> bytes:
        """32 bytes for keyed hashes; b'' where hashes need none."""

    @property
    def overhead_bytes(self) -> int:
        """How much longer sealed bytes are."""

    def seal(self, data: Part, context: bytes) -> bytes:
        """Seal; `context` must be the same at `open`, so that nothing can stand in for another."""

    def open(self, data: Part, context: bytes) -> bytes:
        """The bytes again; raises DriverError where they are not what was sealed."""


class Open:
    """Nothing is sealed."""

    hash_key = b""
    overhead_bytes = 0

    def seal(self, data: Part, context: bytes) -> bytes:
        """The same bytes."""
        return bytes(data)

    def open(self, data: Part, context: bytes) -> bytes:
        """The same bytes."""
        return bytes(data)


@dataclass(frozen=True)
class MasterKey:
    """32 bytes that somebody keeps; they never show in a text."""

    secret: bytes

    def __repr__(self) -> str:
        return "MasterKey(…)"

    def derived(self, salt: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
        """A key of its own for each purpose, by HKDF (RFC 5869)."""
        info = f"allstop {purpose}".encode()
        return HKDF(SHA256(), length, salt, info).derive(self.secret)


class Sealed:
    """AES-256-GCM with a random nonce before the cipher text and the tag behind it."""

    overhead_bytes = NONCE_BYTES + TAG_BYTES

    def __init__(self, key: MasterKey, salt: bytes) -> None:
        """`salt` is the store's."""
        self.hash_key = key.derived(salt, "hash key")
        self._cipher = AESGCM(key.derived(salt, "cipher key"))

    def __repr__(self) -> str:
        return "Sealed(…)"

    def seal(self, data: Part, context: bytes) -> bytes:
        """Encrypt and authenticate, together with the context."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, data: Part, context: bytes) -> bytes:
        """Decrypt; raises DriverError for bytes that were changed, cut off, or of elsewhere."""
        view = memoryview(data)
        try:
            return self._cipher.decrypt(bytes(view[:NONCE_BYTES]), view[NONCE_BYTES:], context)
        except (InvalidTag, ValueError) as error:
            what = f"the encrypted bytes of {_told(context)} are damaged"
            raise DriverError(
                f"{what}, or are not those that were written",
                advice="the image store is damaged; restore an older snapshot",
            ) from error


def _told(context: bytes) -> str:
    """A context for people: names as they are, digests in hexadecimal."""
    try:
        text = context.decode("ascii")
    except UnicodeDecodeError:
        return context.hex()
    return text if text.isprintable() else context.hex()


def sealing_of(store: ObjectStore, key: MasterKey | None, *, decide: bool = True) -> Sealing:
    """How this store is sealed; of an empty one it is decided here, for as long as it lives.

    Without `decide` nothing is written: an empty store is taken as it would be with this key.
    Raises WrongKey for another key than the store's, for a key where the store is plain, and for
    none where it is sealed; DriverError where the store cannot be read or written. Nothing but
    the store's own record is read or written.
    """
    record = _record(store)
    if record is None:
        if key is not None and any(one.name not in OWN_RECORDS for one in store.list("")):
            raise WrongKey(
                "the image store holds snapshots that are not encrypted, and a key was given",
                advice="leave the key out, or take an empty place for encrypted snapshots",
            )
        if not decide:
            return Open() if key is None else Sealed(key, store.identity.encode())
        store.put(KEY_RECORD, [_fresh(store.identity, key)])  # False: another one has just decided
        record = _record(store)
    if record is None:
        raise DriverError(f"the image store does not keep {KEY_RECORD}")
    return _judged(record, store.identity, key)


def _judged(record: dict[str, str], identity: str, key: MasterKey | None) -> Sealing:
    cipher = record.get("cipher")
    if cipher == "":
        if key is not None:
            raise WrongKey(
                "the image store is not encrypted, and a key was given",
                advice="leave the key out, or take an empty place for encrypted snapshots",
            )
        return Open()
    if cipher != CIPHER:
        raise SetupError(f"the image store is encrypted with {cipher}, which this version has not")
    if key is None:
        raise WrongKey(
            "the image store is encrypted, and no key was given",
            advice="--store-key says where its key is",
        )
    salt = identity.encode()
    own = key.derived(salt, "check", CHECK_BYTES).hex()
    if not secrets.compare_digest(own, record["check"]):
        raise WrongKey(
            f"the image store is encrypted with another key: with {record['check']}, given {own}",
            advice="give the key that the store began with; a new key needs a new store",
        )
    return Sealed(key, salt)


def _record(store: ObjectStore) -> dict[str, str] | None:
    try:
        read = json.loads(store.get(KEY_RECORD))
        wanted = {"cipher"} if read.get("cipher") != CIPHER else {"cipher", "check"}
        if not all(isinstance(read[name], str) for name in wanted):
            raise ValueError
    except ObjectMissing:
        return None
    except (ValueError, AttributeError, KeyError) as error:
        raise DriverError(
            f"{KEY_RECORD} of the image store is damaged",
            advice="put it back from a copy: without it nothing encrypted there can be read",
        ) from error
    return dict(read)


def _fresh(identity: str, key: MasterKey | None) -> bytes:
    if key is None:
        return json.dumps({"cipher": ""}).encode()
    check = key.derived(identity.encode(), "check", CHECK_BYTES).hex()
    return json.dumps({"cipher": CIPHER, "check": check}).encode()
