"""What a leader does by itself, as it is kept: policies, histories, recoveries, drains."""

from __future__ import annotations

from coordinator.codec import encode
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.store.keeping import Keeping
from coordinator.store.kv import Delete, Put


class Standing(Keeping):
    """The part of the store that keeps standing orders; see `port.Store`."""

    async def put_policy(self, policy: JobPolicy) -> None:
        """Set a job's policy; the last one to be set counts, so only the epoch is compared."""
        await self._write([], [Put(self.keys.policy(policy.job), encode(policy))])

    async def put_history(self, history: JobHistory) -> None:
        """Keep a job's history; advice, so only the epoch is compared."""
        await self._write([], [Put(self.keys.history(history.job), encode(history))])

    async def put_recovery(self, record: JobRecovery) -> None:
        """Keep a job's recovery; only the leader writes it, so only the epoch is compared."""
        await self._write([], [Put(self.keys.recovery(record.job), encode(record))])

    async def put_drain(self, record: DrainRecord) -> None:
        """Keep a node's drain; only the leader writes it, so only the epoch is compared."""
        key = self.keys.drain(record.node)
        gone = record.state is DrainState.UNDRAINED
        await self._write([], [Delete(key) if gone else Put(key, encode(record))])
