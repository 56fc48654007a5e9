"""The lock's words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model import Endpoint
from worker_shim.network.fake import FakeNetworkDriver
from worker_shim.network.port import Sockets
from worker_shim.network.ruleset import lock_script, remove_script, table_of


def test_exactly_these_sockets() -> None:
    sockets = Sockets(
        (
            Endpoint("10.0.0.1", 70, "10.0.0.2", 80),
            Endpoint("fd00::1", 71, "fd00::2", 81),
        ),
        (("0.0.0.0", 7000), ("::", 7000), ("10.0.0.1", 7001), ("fd00::1", 7002)),
    )
    script = lock_script("llm/0", sockets, replace=False)
    for element in (
        "{ 10.0.0.2 . 80 . 10.0.0.1 . 70 }",
        "{ fd00::2 . 81 . fd00::1 . 71 }",
        "{ 10.0.0.1 . 7001 }",
        "{ fd00::1 . 7002 }",
        "{ 7000 }",
    ):
        assert element in script
    assert "hook input" in script
    assert "output" not in script
    assert script.count("drop") == 5
    assert "delete" not in script
    assert script.startswith("create table inet allstop_llm_0_")


def test_nothing_to_lock_drops_nothing() -> None:
    script = lock_script("llm/0", Sockets((), ()), replace=True)
    assert "drop" not in script
    assert "set " not in script


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
def test_names_never_collide_and_fit(one: str, other: str) -> None:
    assert (table_of(one) == table_of(other)) == (one == other)
    assert len(table_of(one)) < 128
    assert table_of(one).replace("_", "a").isalnum()
    assert table_of(one).isascii()


def test_removing_works_without_a_lock() -> None:
    add, delete = remove_script("llm/0").splitlines()
    assert add.startswith("add table inet ")
    assert delete == add.replace("add", "delete", 1)


async def test_the_fake_remembers() -> None:
    fake = FakeNetworkDriver()
    end = Endpoint("10.0.0.1", 70, "10.0.0.2", 80)
    fake.left = {end, Endpoint("10.0.0.1", 7000, "10.0.0.3", 9)}
    await fake.lock("llm/0", Sockets((end,), ()), deadline_s=1)
    assert await fake.locked("llm/0")
    await fake.unlock("llm/0", deadline_s=1)
    assert not await fake.locked("llm/0")
    assert await fake.clear([end], ports=[("0.0.0.0", 7000)], deadline_s=1) == 2
