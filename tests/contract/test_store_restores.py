"""How the store admits restores, held against memory and against a real etcd alike."""

import asyncio
from dataclasses import replace

import pytest

from coordinator.core.errors import NotFound, StoreError
from coordinator.core.model import RestoreState
from tests.contract.material import (
    Bench,
    begun,
    committed,
    restore,
)


async def test_two_restores_at_once_one_wins(bench: Bench) -> None:
    right = await bench.lead()
    stores = [await bench.store(right), await bench.store(right)]
    await committed(stores[0], "a1")
    results = await asyncio.gather(
        *(s.admit_restore(restore(f"r{i}", "a1"), 1) for i, s in enumerate(stores)),
        return_exceptions=True,
    )
    lost = [each for each in results if each is not None]
    assert len(lost) == 1
    assert isinstance(lost[0], StoreError)
    assert lost[0].definite
    loaded = await stores[0].load()
    assert loaded.jobs[0].incarnation == 2
    assert len(loaded.restores) == 1


async def test_admission_can_be_asked_again_and_followed(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    await store.admit_restore(restore("r1", "a1"), 1)
    await store.admit_restore(restore("r1", "a1"), 1)
    running = replace(restore("r1", "a1"), state=RestoreState.RUNNING)
    await store.put_restore(running)
    assert (await store.show("r1")).restore == running
    with pytest.raises(StoreError, match="r1 is in the store already"):
        await store.admit_restore(restore("r1", "a1"), 1)


async def test_restore_of_what_is_not_there_is_refused(bench: Bench) -> None:
    store = await bench.store()
    with pytest.raises(NotFound, match="no job llm"):
        await store.admit_restore(restore("r1", "a1"), 1)
    await committed(store, "a1")
    await begun(store, "a2")
    with pytest.raises(NotFound, match="no snapshot a2"):
        await store.admit_restore(restore("r1", "a2"), 1)
    with pytest.raises(StoreError, match="not admitted"):
        await store.put_restore(restore("r1", "a1"))
    for old, new in ((0, 2), (2, 3), (1, 1)):
        with pytest.raises(StoreError, match="it is at 1"):
            await store.admit_restore(restore("r1", "a1", incarnation=new), old)
