"""Removing a table: what is said to the kernel, and what its answers mean.

The kernel itself is asked in the integration tests of the network lock.
"""

from __future__ import annotations

import errno
import struct

import pytest

from coordinator.core.errors import DriverError
from worker_shim.network import tables

REQUEST = b"\0" * 16


def answer(code: int) -> bytes:
    return tables.HEADER.pack(36, tables.NLMSG_ERROR, 0, 2, 0) + struct.pack("=i", code) + REQUEST


class Kernel:
    """A netlink socket that gives one answer."""

    def __init__(self, said: bytes | Exception) -> None:
        self.said = said
        self.sent = b""
        self.closed = False

    def settimeout(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def bind(self, address: tuple[int, int]) -> None:
        assert address == (0, 0)

    def send(self, data: bytes) -> None:
        self.sent = data

    def recv(self, size: int) -> bytes:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def close(self) -> None:
        self.closed = True


def removed(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> object:
    monkeypatch.setattr(tables.socket, "socket", lambda *_: kernel)
    return tables.remove_table("allstop_llm_0", timeout_s=1.0)


def test_one_transaction_that_deletes_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(answer(0))
    assert removed(monkeypatch, kernel) is kernel
    assert not kernel.closed  # closing waits, which is for the caller to do
    kinds, at = [], 0
    while at < len(kernel.sent):
        size, kind, flags, _, _ = tables.HEADER.unpack_from(kernel.sent, at)
        kinds.append((kind, bool(flags & tables.NLM_F_ACK)))
        assert size % 4 == 0
        at += size
    begin, end = (tables.BATCH_BEGIN, False), (tables.BATCH_END, False)
    assert kinds == [begin, (tables.DELETE_TABLE, True), end]
    assert b"allstop_llm_0\0" in kernel.sent


def test_no_table_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    removed(monkeypatch, Kernel(answer(-errno.ENOENT)))


@pytest.mark.parametrize(
    ("said", "words", "definite"),
    [
        (answer(-errno.EPERM), "not permitted", True),
        (answer(0) + answer(-errno.EBUSY), "busy", True),
        (TimeoutError("timed out"), "timed out", False),
    ],
)
def test_a_refusal_is_told(
    monkeypatch: pytest.MonkeyPatch, said: bytes | Exception, words: str, definite: bool
) -> None:
    kernel = Kernel(said)
    with pytest.raises(DriverError, match=words) as caught:
        removed(monkeypatch, kernel)
    assert kernel.closed
    assert caught.value.definite is definite
    assert "nft delete table inet allstop_llm_0" in caught.value.advice
