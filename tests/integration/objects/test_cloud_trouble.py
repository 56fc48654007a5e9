"""Object storage that is slow, cut off, full, refusing, killed or frozen: every call ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.core.errors import BadRequest, DriverError, StoreAway
from tests.support.s3.meddler import Meddler, Meddling
from tests.support.s3.server import BUCKET, S3Server, serving, use
from worker_shim.images.objects.cloud import CloudStore, Limits

HASTY = Limits(connect_s=1.0, request_s=1.5, retry_s=1.0, retries=2)
BOUND_S = 8.0  # what HASTY promises is 5 s; the machine may be busy
PACK = b"0123456789abcdef" * (256 << 10)  # 4 MiB
WHERE = f"s3://{BUCKET}/trouble"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def steady() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture
def meddler(steady: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meddler]:
    with Meddler(steady.port) as meddler:
        use(monkeypatch, meddler.endpoint)
        yield meddler


def failing(call: Callable[[], object]) -> DriverError:
    """What the call raises, within the bound."""
    began = time.monotonic()
    with pytest.raises(DriverError) as raised:
        call()
    assert time.monotonic() - began < BOUND_S
    assert "do not tell" not in repr(raised.value.to_fields())
    return raised.value


def every_call(store: CloudStore, name: str) -> tuple[Callable[[], object], ...]:
    return (
        lambda: store.get(name),
        lambda: store.size(name),
        lambda: list(store.list("job/")),
        lambda: store.put(f"{name}.new", [PACK]),
        lambda: store.delete(name),
    )


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "http://127.0.0.1:1")
    error = failing(lambda: CloudStore(WHERE, HASTY))
    assert "does not answer" in error.what
    assert isinstance(error, StoreAway)


def test_a_server_that_is_killed_in_the_middle(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, server.endpoint)
    store = CloudStore(WHERE, HASTY)
    store.put("job/kept", [PACK])
    with Meddler(server.port) as slow:
        use(monkeypatch, slow.endpoint)
        late = CloudStore(WHERE, HASTY)
        slow.does = Meddling(pause_s=0.02)  # 64 pieces: the kill comes in between
        killer = threading.Timer(0.3, server.process.kill)
        killer.start()
        error = failing(lambda: late.put("job/late", [PACK]))
        killer.join()
        assert not error.definite
    for call in every_call(store, "job/kept"):
        assert "does not answer" in failing(call).what


def test_a_server_that_is_frozen(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, server.endpoint)
    store = CloudStore(WHERE, HASTY)
    store.put("job/kept", [PACK])
    server.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(5) as pool:
        errors = list(pool.map(failing, every_call(store, "job/kept")))
    assert [error.definite for error in errors] == [True, True, True, False, False]
    server.process.send_signal(signal.SIGCONT)


def test_a_slow_network_ends_by_the_limit(meddler: Meddler) -> None:
    store = CloudStore(WHERE, HASTY)
    store.put("job/slow", [PACK])
    meddler.does = Meddling(pause_s=0.2)  # 64 KiB each: 4 MiB would take 13 s
    assert "does not answer" in failing(lambda: store.get("job/slow")).what
    assert not failing(lambda: store.put("job/slower", [PACK])).definite


def test_an_answer_that_is_cut_off_is_no_answer(meddler: Meddler) -> None:
    store = CloudStore(WHERE, HASTY)
    store.put("job/cut", [PACK])
    meddler.does = Meddling(cut_after_bytes=1 << 20)
    failing(lambda: store.get("job/cut"))
    meddler.does = Meddling()
    assert store.get("job/cut") == PACK


@pytest.mark.parametrize("lost", [1, 2])
def test_an_object_whose_answer_was_lost_is_known_as_ours(meddler: Meddler, lost: int) -> None:
    store, name = CloudStore(WHERE, HASTY), f"job/unheard{lost}"
    meddler.does = Meddling(lose_answers=lost)
    assert store.put(name, [PACK])
    assert not store.put(name, [b"another"])
    assert store.get(name) == PACK


@pytest.mark.parametrize(
    ("status", "code", "wanted", "definite", "away"),
    [
        (507, "InsufficientStorage", "no room left", True, False),
        (403, "QuotaExceeded", "no room left", True, False),
        (500, "InternalError", "answers 500", False, True),
        (503, "SlowDown", "answers 503", False, True),
        (403, "AccessDenied", "refuses us", True, True),
        (400, "InvalidRequest", "answers 400", True, False),
    ],
)
def test_what_a_server_answers_is_said(
    meddler: Meddler, status: int, code: str, wanted: str, definite: bool, away: bool
) -> None:
    store = CloudStore(WHERE, HASTY)
    meddler.does = Meddling(status=status, code=code)
    error = failing(lambda: store.put("job/refused", [PACK]))
    assert wanted in error.what
    assert error.definite == definite
    assert isinstance(error, StoreAway) == away
    assert error.details


def test_credentials_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(strangers=False) as server:
        use(monkeypatch, server.endpoint)
        error = failing(lambda: CloudStore(WHERE, HASTY))
    assert "refuses us (InvalidAccessKeyId)" in error.what


def test_a_bucket_that_is_not_there(steady: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, steady.endpoint)
    error = failing(lambda: CloudStore("s3://nobody/x", HASTY))
    assert "there is no s3://nobody/x" in error.what


def test_plain_http_only_where_it_is_allowed(
    steady: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, steady.endpoint, http=False)
    with pytest.raises(BadRequest, match="plain text") as raised:
        CloudStore(WHERE, HASTY)
    assert "AWS_ALLOW_HTTP" in raised.value.advice


@pytest.mark.parametrize("where", ["s3://", "s3:///x", "ftp://a/b", "s3://a/../b", "s3://a b", "x"])
def test_addresses_that_make_no_sense(where: str) -> None:
    with pytest.raises(BadRequest):
        CloudStore(where, HASTY)
