"""Encryption: nothing shows, nothing can be changed or exchanged, and a wrong key is told early."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from itertools import count

import pytest
from blake3 import blake3

from coordinator.core.errors import DriverError, WrongKey, from_fields
from worker_shim.images.objects.cloud import CloudStore
from worker_shim.images.sealing import KEY_RECORD, MasterKey, Open, Sealed, sealing_of

KEY, OTHER = MasterKey(bytes(range(32))), MasterKey(bytes(range(1, 33)))
TEXT = b"the weights of a model that nobody else may see"
PLACE = b"job/a1/packs/0b1c 0"
numbers = count()


@pytest.fixture
def store() -> Iterator[CloudStore]:
    store = CloudStore(f"memory://sealing{next(numbers)}")
    yield store
    store.close()


def stored(store: CloudStore) -> bytes:
    """Every byte of the store, names and contents."""
    return b"\0".join(one.name.encode() + b"\0" + store.get(one.name) for one in store.list(""))


def test_sealed_bytes_come_back_and_show_nothing() -> None:
    sealing = Sealed(KEY, b"salt")
    sealed = sealing.seal(memoryview(TEXT), PLACE)
    assert len(sealed) == len(TEXT) + sealing.overhead_bytes
    assert not any(TEXT[at : at + 4] in sealed for at in range(len(TEXT) - 4))
    assert sealed != sealing.seal(TEXT, PLACE), "a nonce was used twice"
    assert sealing.open(memoryview(sealed), PLACE) == TEXT


def test_every_changed_bit_is_seen() -> None:
    sealing = Sealed(KEY, b"salt")
    sealed = sealing.seal(TEXT[:20], PLACE)
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DriverError, match="job/a1/packs/0b1c"):
            sealing.open(changed, PLACE)


@pytest.mark.parametrize("length", [0, 5, 12, 27, 28, 40])
def test_cut_off_bytes_are_seen(length: int) -> None:
    sealing = Sealed(KEY, b"salt")
    with pytest.raises(DriverError, match="damaged"):
        sealing.open(sealing.seal(TEXT, PLACE)[:length], PLACE)


def test_nothing_stands_in_for_another() -> None:
    sealing = Sealed(KEY, b"salt")
    sealed = sealing.seal(TEXT, PLACE)
    with pytest.raises(DriverError):
        sealing.open(sealed, b"job/a2/packs/0b1c 0")
    with pytest.raises(DriverError):
        Sealed(KEY, b"another store").open(sealed, PLACE)


def test_names_of_chunks_depend_on_key_and_store() -> None:
    one, two, three = Sealed(KEY, b"a"), Sealed(KEY, b"b"), Sealed(OTHER, b"a")
    hashes = {blake3(TEXT, key=each.hash_key).digest() for each in (one, two, three)}
    assert len(hashes | {blake3(TEXT).digest()}) == 4
    assert one.hash_key == Sealed(KEY, b"a").hash_key


def test_the_store_keeps_how_it_is_sealed_and_not_the_key(store: CloudStore) -> None:
    sealing = sealing_of(store, KEY)
    store.put("job/a1/0/manifest", [sealing.seal(TEXT, PLACE)])
    again = sealing_of(store, MasterKey(KEY.secret))
    assert again.hash_key == sealing.hash_key
    assert again.open(store.get("job/a1/0/manifest"), PLACE) == TEXT
    kept = stored(store)
    for secret in (KEY.secret, sealing.hash_key, TEXT):
        for shown in (secret, secret.hex().encode()):
            assert shown not in kept


@pytest.mark.parametrize("filled", [False, True])
def test_another_key_is_refused_before_anything_is_written(store: CloudStore, filled: bool) -> None:
    sealing = sealing_of(store, KEY)
    if filled:
        store.put("job/a1/0/manifest", [sealing.seal(TEXT, PLACE)])
    before = stored(store)
    with pytest.raises(WrongKey, match="another key") as raised:
        sealing_of(store, OTHER)
    with pytest.raises(WrongKey, match="no key was given"):
        sealing_of(store, None)
    assert stored(store) == before
    assert OTHER.secret.hex() not in repr(raised.value.to_fields())
    assert isinstance(from_fields(raised.value.to_fields()), WrongKey)


def test_a_plain_store_takes_no_key(store: CloudStore) -> None:
    assert isinstance(sealing_of(store, None), Open)
    with pytest.raises(WrongKey, match="not encrypted, and a key was given"):
        sealing_of(store, KEY)


def test_a_store_of_before_there_were_keys_is_plain(store: CloudStore) -> None:
    store.put("job/a1/0/manifest", [TEXT])
    with pytest.raises(WrongKey, match="not encrypted"):
        sealing_of(store, KEY)
    assert isinstance(sealing_of(store, None), Open)


def test_two_shims_that_start_at_once_agree(store: CloudStore) -> None:
    class Late:
        """Sees an empty store, as a shim does that another one overtakes."""

        def __init__(self) -> None:
            self.looked = False

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def list(self, prefix: str) -> Iterator[object]:
            sealing_of(store, KEY)
            return iter(())

    late = Late()
    with pytest.raises(WrongKey):
        sealing_of(late, OTHER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "record", [b"", b"[]", b"{}", b'{"cipher": "AES-256-GCM"}', b"\xff", b'{"cipher": 5}']
)
def test_a_damaged_record_of_the_key_is_said_to_be(store: CloudStore, record: bytes) -> None:
    store.put(KEY_RECORD, [record])
    with pytest.raises(DriverError, match="damaged"):
        sealing_of(store, KEY)


def test_a_cipher_of_a_later_version_is_refused(store: CloudStore) -> None:
    store.put(KEY_RECORD, [json.dumps({"cipher": "next"}).encode()])
    with pytest.raises(Exception, match="next"):
        sealing_of(store, KEY)


def test_keys_never_show() -> None:
    key = MasterKey(secrets.token_bytes(32))
    shown = f"{key!r} {key} {Sealed(key, os.urandom(16))!r}"
    assert key.secret.hex() not in shown
    assert repr(key.secret) not in shown
