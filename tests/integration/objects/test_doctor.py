"""`allstop doctor --store WHERE` against stores that work, and against some that do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.cli.main import main
from coordinator.link.security import channel_credentials
from tests.integration.objects.ring import nodes_in
from tests.support.certificates import Certificates
from tests.support.s3.meddler import Meddler, Meddling
from tests.support.s3.server import BUCKET, S3Server, serving, use
from worker_shim.examination import Line, Verdict
from worker_shim.images.examining import examine_store
from worker_shim.images.objects.cloud import CloudStore
from worker_shim.images.objects.opening import StoreOptions, open_sealed

WORKS = [
    "store",
    "store encryption",
    "store writes",
    "store writes once",
    "store reads",
    "store lists and deletes",
    "store room",
]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text("5a" * 32)
    path.chmod(0o600)
    return f"file:{path}"


def wrong(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.verdict is Verdict.FIX]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_a_store_that_works(
    kind: str, encrypted: bool, key: str, s3: S3Server, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use(monkeypatch, s3.endpoint)
    name = f"doctor{encrypted}"
    where = str(tmp_path / "store") if kind == "directory" else f"s3://{BUCKET}/{name}"
    options = StoreOptions(where, "n0", key if encrypted else "")
    lines = examine_store(options)
    assert [line.what for line in lines] == WORKS
    assert wrong(lines) == []
    found = {line.what: line.found for line in lines}
    assert re.search(r"16 MiB in \d+ ms, \d+ MB/s", found["store writes"])
    assert re.search(r"answers in [\d.]+ ms", found["store"])
    assert ("AES-256-GCM" in found["store encryption"]) == encrypted
    opened = open_sealed(options)
    left = {one.name for one in opened.objects.list("")}
    assert left - {"store.id"} == {"store.key"}, "made by this test, not by the doctor"


def test_a_wrong_key_is_a_line(key: str, tmp_path: Path) -> None:
    open_sealed(StoreOptions(str(tmp_path / "store"), "n0")).objects.close()
    lines = examine_store(StoreOptions(str(tmp_path / "store"), "n0", key))
    assert [line.found for line in wrong(lines)] == [
        "the image store is not encrypted, and a key was given"
    ]


def test_a_store_that_fails_in_the_middle_is_cleaned_up(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Meddler(s3.port) as meddler:
        use(monkeypatch, meddler.endpoint)
        where = f"s3://{BUCKET}/middle"
        real_get = CloudStore.get

        def get(store: CloudStore, name: str, **part: object) -> bytes:
            if "doctor-" in name:
                meddler.does = Meddling(status=403, code="AccessDenied")
                try:
                    return real_get(store, name)
                finally:
                    meddler.does = Meddling()
            return real_get(store, name, **part)  # type: ignore[arg-type]

        monkeypatch.setattr(CloudStore, "get", get)
        lines = examine_store(StoreOptions(where))
        assert "refuses us (AccessDenied)" in wrong(lines)[0].found
        monkeypatch.undo()
        use(monkeypatch, s3.endpoint)
        assert [one.name for one in CloudStore(where).list("")] == ["store.id"]


def test_a_store_that_writes_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(store: CloudStore, name: str, body: bytes, writer: str) -> bool:
        import obstore

        obstore.put(store._remote, name, body)
        return True

    where = "memory://careless"
    CloudStore(where)
    monkeypatch.setattr(CloudStore, "_create", careless)
    lines = wrong(examine_store(StoreOptions(where)))
    assert [line.what for line in lines] == ["store writes once"]


def test_partners_are_tried_and_the_one_that_is_away_is_named(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with nodes_in(tmp_path, certificates) as nodes:
        b, c = nodes.keeper("b"), nodes.keeper("c")
        options = StoreOptions(
            f"partner://a@127.0.0.1:1,b@{b.member.address},c@{c.member.address}",
            node="a",
            keep_dir=tmp_path / "a",
            serve=False,
            client=channel_credentials(certificates.of("shim", "a")),
        )
        lines = examine_store(options)
        assert wrong(lines) == []
        assert (b.kept(), c.kept()) == (set(), set())
        b.process.kill()
        b.process.wait(10)
        assert "partner b does not answer" in wrong(examine_store(options))[0].found


def test_the_command_tries_a_store_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--store", str(tmp_path / "store"), "-o", "json"])
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [each["what"] for each in lines if each["what"].startswith("store")] == WORKS
    assert not any(each["what"] == "image store" for each in lines)
