"""Partner copy over mTLS: no one node's loss loses anything, and no partner is awaited for ever."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import BadRequest, DriverError, WrongKey
from tests.integration.objects.ring import Nodes, nodes_in
from tests.support.certificates import Certificates
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.partner.client import Limits
from worker_shim.images.objects.partner.ring import Ring
from worker_shim.images.objects.partner.store import PartnerStore
from worker_shim.images.objects.port import ObjectMissing
from worker_shim.images.sealing import KEY_RECORD, MasterKey, Open, sealing_of

KEY, OTHER = MasterKey(bytes(range(32))), MasterKey(bytes(range(1, 33)))
BLOCK = bytes(range(256)) * 4096  # 1 MiB
HASTY_S = 0.9  # less than one deadline of HASTY
BOUND_S = 12.0  # a frozen partner is noticed by the deadline (HASTY: 1 s and the bytes)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def nodes(tmp_path: Path, certificates: Certificates) -> Iterator[Nodes]:
    with nodes_in(tmp_path, certificates) as nodes:
        yield nodes


def own(store_dir: Path, node: str) -> set[str]:
    root = store_dir / node / "own" / "job"
    return {path.name for path in root.rglob("*") if path.is_file()}


def in_time(call: Callable[[], object], bound_s: float = BOUND_S) -> object:
    began = time.monotonic()
    try:
        return call()
    finally:
        assert time.monotonic() - began < bound_s


def test_one_nodes_loss_loses_nothing(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    store = nodes.store("a", [b, c])
    assert store.put("job/a1/packs/1", [BLOCK] * 5)
    assert b.kept() == {"job/a1/packs/1"}, "confirmed before the partner had it"
    assert c.kept() == set()
    shutil.rmtree(nodes.folder / "a")
    spare = nodes.store("spare", [c, b])
    assert spare.get("job/a1/packs/1") == BLOCK * 5
    assert spare.get("job/a1/packs/1", start=3 << 20, length=1 << 20) == BLOCK
    assert spare.size("job/a1/packs/1") == 5 << 20
    assert [each.name for each in spare.list("job/")] == ["job/a1/packs/1"]
    assert spare.identity == store.identity


def test_own_copy_is_read_while_every_partner_is_gone(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    store = nodes.store("a", [b])
    store.put("job/a1/packs/1", [BLOCK])
    b.end()
    assert store.get("job/a1/packs/1") == BLOCK
    with pytest.raises(DriverError, match="partner b does not answer") as raised:
        in_time(lambda: store.get("job/a1/packs/2"))
    assert not isinstance(raised.value, ObjectMissing), "who does not answer may have it"


def test_a_partner_killed_in_the_middle_is_replaced_by_the_next(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    store = nodes.store("a", [b, c], limits=Limits(call_s=5, bytes_per_s=8 << 20))

    b.send(signal.SIGSTOP)  # its end takes what fits into the connection, then nothing more
    killer = threading.Timer(0.5, b.process.kill)
    killer.start()
    assert in_time(lambda: store.put("job/a1/packs/1", [BLOCK] * 30))
    killer.join()
    assert c.kept() == {"job/a1/packs/1"}
    assert own(nodes.folder, "a") == {"1"}


def test_without_any_partner_nothing_is_stored(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    store = nodes.store("a", [b, c])
    store.put("job/a1/packs/1", [BLOCK])
    for keeper in (b, c):
        keeper.process.kill()
        keeper.process.wait(10)
    with pytest.raises(DriverError, match="no partner keeps job/a1/packs/2") as raised:
        in_time(lambda: store.put("job/a1/packs/2", [BLOCK]))
    assert not raised.value.definite
    assert "b does not answer" in raised.value.what
    assert "c does not answer" in raised.value.what
    assert own(nodes.folder, "a") == {"1"}


def test_a_frozen_partner_costs_its_deadline_once(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    store = nodes.store("a", [b, c])
    b.send(signal.SIGSTOP)
    assert in_time(lambda: store.put("job/a1/packs/1", [BLOCK]))
    assert in_time(lambda: store.put("job/a1/packs/2", [BLOCK]), HASTY_S)
    assert in_time(lambda: list(store.list("job/")), HASTY_S)
    assert c.kept() == {"job/a1/packs/1", "job/a1/packs/2"}
    with pytest.raises(DriverError, match="b does not answer"):
        in_time(lambda: store.get("job/a1/packs/3"))


def test_a_read_from_a_frozen_partner_goes_on_at_another(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    nodes.store("a", [b]).put("job/a1/packs/1", [BLOCK] * 3)
    nodes.store("d", [c]).put("job/a1/packs/1", [BLOCK] * 3)
    reader = nodes.store("spare", [b, c])
    assert reader.size("job/a1/packs/1") == 3 << 20  # whoever answered this is asked first
    first = (b, c)[reader._reading_order()[0]]
    first.send(signal.SIGSTOP)
    assert in_time(lambda: reader.get("job/a1/packs/1")) == BLOCK * 3
    assert in_time(lambda: reader.get("job/a1/packs/1"), HASTY_S) == BLOCK * 3


def test_a_full_partner_is_passed_over_and_named(nodes: Nodes) -> None:
    b, c = nodes.keeper("b", limit_bytes=3 << 20), nodes.keeper("c", limit_bytes=2 << 20)
    store = nodes.store("a", [b, c])
    for number in (1, 2):
        assert store.put(f"job/a1/packs/{number}", [BLOCK, BLOCK])
    assert (b.kept(), c.kept()) == ({"job/a1/packs/1"}, {"job/a1/packs/2"})
    with pytest.raises(DriverError, match=r"no room left at partner b.*no room left at") as raised:
        store.put("job/a1/packs/3", [BLOCK, BLOCK])
    assert raised.value.definite
    assert "--partner-limit" in raised.value.advice
    assert own(nodes.folder, "a") == {"1", "2"}
    assert store.free_bytes() == 1 << 20
    store.delete("job/a1/packs/1")
    assert store.free_bytes() == 3 << 20
    assert store.put("job/a1/packs/3", [BLOCK, BLOCK])
    assert b.kept() == {"job/a1/packs/3"}


def test_a_limit_counts_what_an_earlier_life_kept(nodes: Nodes) -> None:
    b = nodes.keeper("b", limit_bytes=3 << 20)
    nodes.store("a", [b]).put("job/a1/packs/1", [BLOCK, BLOCK])
    b.end()
    b = nodes.keeper("b", limit_bytes=3 << 20)
    with pytest.raises(DriverError, match="no room"):
        nodes.store("a", [b]).put("job/a1/packs/2", [BLOCK, BLOCK])


def test_a_put_that_died_before_the_partner_is_completed(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    store = nodes.store("a", [b])
    store._own.put("job/a1/packs/1", [BLOCK])
    assert not store.put("job/a1/packs/1", [BLOCK])
    assert b.kept() == {"job/a1/packs/1"}
    assert not store.put("job/a1/packs/1", [b"other"])
    assert store.get("job/a1/packs/1") == BLOCK


def test_two_nodes_that_write_one_name_learn_of_it(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    one, two = nodes.store("a", [b]), nodes.store("c", [b])
    assert one.put("job/a1/0/manifest", [b"one"])
    assert not two.put("job/a1/0/manifest", [b"two"])
    assert two.get("job/a1/0/manifest") == b"one"


def test_a_broken_disk_is_helped_out_by_the_partner(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    store = nodes.store("a", [b])
    store.put("job/a1/packs/1", [BLOCK])
    path = nodes.folder / "a/own/job/a1/packs/1"
    path.unlink()
    path.mkdir()
    assert store.get("job/a1/packs/1") == BLOCK


def test_what_is_deleted_while_a_partner_is_away_shows_again_with_it(nodes: Nodes) -> None:
    b, c = nodes.keeper("b"), nodes.keeper("c")
    store = nodes.store("a", [b, c], limits=Limits(call_s=1, away_s=0.2))
    store.put("job/a1/packs/1", [BLOCK])
    b.send(signal.SIGSTOP)
    in_time(lambda: store.delete("job/a1/packs/1"))
    b.send(signal.SIGCONT)
    deadline = time.monotonic() + 20
    while [each.name for each in store.list("job/")] != ["job/a1/packs/1"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    store.delete("job/a1/packs/1")
    assert b.kept() == set()


# -- keys --------------------------------------------------------------------------------------


def test_the_first_node_of_a_ring_can_start_alone_and_others_agree(nodes: Nodes) -> None:
    """All start at about the same time, each before its partners answer."""
    b = nodes.keeper("b")
    b.process.kill()
    b.process.wait(10)
    alone = sealing_of(nodes.store("a", [b]), KEY)
    assert sealing_of(nodes.store("c", [b]), KEY).hash_key == alone.hash_key


def test_a_new_node_learns_how_the_ring_is_sealed(nodes: Nodes) -> None:
    b = nodes.keeper("b", key=KEY.secret.hex())
    store = nodes.store("a", [b])
    sealing_of(store, KEY)
    assert store.put("job/a1/packs/1", [BLOCK])
    assert nodes.store("c", [b]).identity == store.identity
    with pytest.raises(WrongKey, match="no key was given"):
        sealing_of(nodes.store("c", [b]), None)


def test_another_key_on_another_node_of_the_ring_is_told(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    DirectoryObjects(b.folder / "own").put(KEY_RECORD, [_record_of(nodes, KEY)])
    with pytest.raises(WrongKey):
        sealing_of(nodes.store("a", [b]), OTHER)
    store = nodes.store("c", [b])
    with pytest.raises(DriverError, match=r"partner b has another store\.key"):
        store.put(KEY_RECORD, [_record_of(nodes, OTHER)])  # it had looked before b was there
    assert sealing_of(store, KEY).overhead_bytes
    assert sealing_of(nodes.store("c", []), KEY).overhead_bytes, "the wrong one was left there"


def test_no_plain_image_gets_into_an_encrypted_ring(nodes: Nodes) -> None:
    """Whatever a node saw when it started: here its partners did not answer then."""
    b = nodes.keeper("b")
    b.end()
    store = nodes.store("a", [b])
    assert isinstance(sealing_of(store, None), Open)
    DirectoryObjects(b.folder / "own").put(KEY_RECORD, [_record_of(nodes, KEY)])
    again = nodes.keeper("b")
    store = nodes.store("a", [again])
    with pytest.raises(DriverError, match="another key for the store") as raised:
        store.put("job/a1/packs/1", [BLOCK])
    assert raised.value.definite
    assert again.kept() == set()


def _record_of(nodes: Nodes, key: MasterKey) -> bytes:
    node = f"made-{key.secret[0]}"
    store = nodes.store(node, [])
    sealing_of(store, key)
    return store.get(KEY_RECORD)


# -- who may -----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["operator", "viewer", "coordinator"])
def test_only_shims_may_call(nodes: Nodes, role: str) -> None:
    b = nodes.keeper("b")
    nodes.store("a", [b]).put("job/a1/packs/1", [BLOCK])
    store = nodes.store("spy", [b], tls=nodes.certificates.of(role, "eve"))
    calls: tuple[Callable[[PartnerStore], object], ...] = (
        lambda store: store.get("job/a1/packs/1"),
        lambda store: store.size("job/a1/packs/1"),
        lambda store: list(store.list("job/")),
        lambda store: store.put("job/a1/packs/2", [BLOCK]),
        lambda store: store.delete("job/a1/packs/1"),
    )
    for call in calls:
        with pytest.raises(DriverError, match=f"partner b refuses us: {role} eve may not"):
            call(store)
    assert b.kept() == {"job/a1/packs/1"}


def test_a_certificate_of_another_authority_opens_nothing(nodes: Nodes, tmp_path: Path) -> None:
    b = nodes.keeper("b")
    other = Certificates(tmp_path / "other").of("shim", "a")
    for tls in (other, type(other)(nodes.certificates.ca, other.certificate, other.key)):
        with pytest.raises(DriverError, match="does not answer"):
            nodes.store("a", [b], tls=tls).put("job/a1/packs/1", [BLOCK])
    assert b.kept() == set()


def test_another_node_at_a_partners_address_is_not_that_partner(nodes: Nodes) -> None:
    b = nodes.keeper("b", as_node="c")
    with pytest.raises(DriverError, match="b does not answer"):
        nodes.store("a", [b]).put("job/a1/packs/1", [BLOCK])
    assert b.kept() == set()


def test_another_ring_is_refused(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    store = nodes.store("a", [b], ring="other")
    assert store.identity != nodes.store("a", [b]).identity
    with pytest.raises(DriverError, match="of another ring") as raised:
        store.put("job/a1/packs/1", [BLOCK])
    assert raised.value.definite


def test_names_cannot_leave_the_keepers_folder(nodes: Nodes) -> None:
    b = nodes.keeper("b")
    partner = nodes.store("a", [b])._partners[0]
    for call in (
        lambda: partner.keep("../../escaped", [BLOCK]),
        lambda: partner.get("../../../etc/passwd", 0, 10),
        lambda: partner.delete("../own/store.id"),
    ):
        with pytest.raises(DriverError, match="cannot be the name"):
            call()


# -- how a ring is written ---------------------------------------------------------------------


def test_a_ring_has_an_order_and_a_name() -> None:
    ring = Ring.parse("partner://a@10.0.0.1:7420,b@[fd00::1]:7420,c@host.example:1/llm")
    assert [each.address for each in ring.members] == [
        "10.0.0.1:7420",
        "[fd00::1]:7420",
        "host.example:1",
    ]
    assert [each.node for each in ring.after("b")] == ["c", "a"]
    assert len(ring.after("spare")) == 3
    assert ring.own("spare") is None
    grown = Ring.parse("partner://b@10.0.0.2:7420,d@10.0.0.4:7420/llm")
    assert grown.identity == ring.identity
    assert Ring(ring.members).identity != ring.identity


@pytest.mark.parametrize(
    "where",
    [
        "partner://",
        "partner://a",
        "partner://a@host",
        "partner://a@h:99999,b@h:1",
        "partner://a@h:1,a@h:2",
        "partner://a@h:1,b@h:1",
        "partner://a@h:1,../b@h:2",
        "partner://a@h:1,b@h:2/x/y",
        "s3://a@h:1",
    ],
)
def test_rings_that_make_no_sense(where: str) -> None:
    with pytest.raises(BadRequest):
        Ring.parse(where)
