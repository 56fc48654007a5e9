"""The bench of the contract tests: over memory and over a real etcd."""

from collections.abc import AsyncIterator

import pytest

from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import KeyValue
from coordinator.store.memory import MemoryKeyValue
from tests.contract.material import Bench, numbers


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    kv: KeyValue
    if request.param == "memory":
        kv = MemoryKeyValue()
    else:
        endpoint = request.getfixturevalue("etcd_server").endpoint
        kv = EtcdKeyValue(EtcdOptions((endpoint,)))
    made = Bench(kv, f"/contract-{next(numbers)}")
    yield made
    for right in made.rights:
        await right.resign()
    await kv.close()
