"""What the next leader reads: the records of a world through the real store over memory."""

from dataclasses import replace

from coordinator.codec import encode
from coordinator.core.model import AttemptRecord, JobRecord, RestoreRecord, Snapshot
from coordinator.store.kv import Put
from coordinator.store.memory import MemoryKeyValue
from coordinator.store.port import Loaded
from coordinator.store.reading import Reader


def loaded(
    jobs: list[JobRecord],
    attempts: list[AttemptRecord],
    restores: list[RestoreRecord],
    snapshots: list[Snapshot],
) -> Loaded:
    """These records, written and read again."""
    reading = _loaded(jobs, attempts, restores, snapshots)
    try:
        reading.send(None)  # over memory nothing waits, so no loop is needed
    except StopIteration as done:
        found: Loaded = done.value
        return found
    raise AssertionError("the store over memory waits for something")


async def _loaded(
    jobs: list[JobRecord],
    attempts: list[AttemptRecord],
    restores: list[RestoreRecord],
    snapshots: list[Snapshot],
) -> Loaded:
    kv = MemoryKeyValue()
    reader = Reader(kv)
    keys = reader.keys
    puts = [Put(keys.job(each.job), encode(each)) for each in jobs]
    puts += [Put(keys.latest(each.job), each.latest.encode()) for each in jobs if each.latest]
    puts += [Put(keys.attempt(each.job, each.attempt), encode(each)) for each in attempts]
    puts += [Put(keys.restore(each.job, each.restore), encode(each)) for each in restores]
    puts += [
        Put(keys.snapshot(each.job, each.snapshot), encode(replace(each, workers=())))
        for each in snapshots
    ]
    for put in puts:
        await kv.write((), [put])
    found = await reader.load()
    assert not found.damaged
    return found
