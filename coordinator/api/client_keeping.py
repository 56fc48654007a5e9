"""The part of `OperatorClient` that is about how snapshots are kept."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from allstop.v1 import operator_pb2, records_pb2

from coordinator.api.identity import cleaning_id
from coordinator.api.streams import events_of
from coordinator.api.values import ActionEvent, Retained, VerifyEvent
from coordinator.codec import from_proto, to_proto
from coordinator.core.errors import AllstopError, LinkError
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot


class KeepingClient:
    """Deleting, collecting, pinning, verifying; see `OperatorClient` for errors."""

    _addresses: list[str]

    async def _stub(self, address: str) -> Any:
        raise NotImplementedError

    async def _ask(self, call: Callable[[Any, float], Any]) -> Any:
        raise NotImplementedError

    def _begun(self, action: str, call: Callable[[Any], Any]) -> AsyncGenerator[ActionEvent, None]:
        raise NotImplementedError

    def delete(
        self, job: str, snapshots: Sequence[str], *, force: bool = False
    ) -> AsyncGenerator[ActionEvent, None]:
        """Delete snapshots and follow it; WAITING may last until their store is in reach.

        `force`: also the newest, where no other snapshot of the job stays.
        """
        cleaning = cleaning_id(job, time.time())
        request = operator_pb2.DeleteRequest(
            job=job, snapshots=snapshots, force=force, cleaning=cleaning
        )
        return self._begun(cleaning, lambda stub: stub.Delete(request))

    def collect(
        self, job: str, *, dry_run: bool = False, unknown: bool = False
    ) -> AsyncGenerator[ActionEvent, None]:
        """Remove (or count) what ended attempts of a job have left in the image stores.

        `unknown`: also what this control plane has no record of.
        """
        cleaning = cleaning_id(job, time.time())
        request = operator_pb2.CollectRequest(
            job=job, dry_run=dry_run, unknown=unknown, cleaning=cleaning
        )
        return self._begun(cleaning, lambda stub: stub.Collect(request))

    async def pin(self, snapshot: str, why: str = "") -> Snapshot:
        """Keep a snapshot whatever the retention says; returns it as it is now."""
        return await self._pin(operator_pb2.PinRequest(snapshot=snapshot, why=why))

    async def unpin(self, snapshot: str) -> Snapshot:
        """Take a pin away."""
        return await self._pin(operator_pb2.PinRequest(snapshot=snapshot, unpin=True))

    async def _pin(self, request: operator_pb2.PinRequest) -> Snapshot:
        reply = await self._ask(lambda stub, timeout: stub.Pin(request, timeout=timeout))
        return from_proto(reply.snapshot, Snapshot)

    async def retention(self, job: str) -> Retained:
        """Which snapshots of a job stay."""
        return await self._retention(operator_pb2.SetRetentionRequest(job=job))

    async def set_retention(self, job: str, retention: Retention | None) -> Retained:
        """Have these snapshots stay from now on; None: all. Says what goes by that now."""
        request = operator_pb2.SetRetentionRequest(job=job, change=True)
        if retention is not None:
            request.retention.CopyFrom(to_proto(retention, records_pb2.Retention))
        return await self._retention(request)

    async def _retention(self, request: operator_pb2.SetRetentionRequest) -> Retained:
        reply = await self._ask(lambda stub, timeout: stub.SetRetention(request, timeout=timeout))
        return from_proto(reply, Retained)

    async def verify(self, snapshot: str) -> AsyncGenerator[VerifyEvent, None]:
        """Have all of a snapshot read again; the last event has what is broken.

        It is begun anew at another coordinator only where this one has not taken it.
        """
        request = operator_pb2.VerifyRequest(snapshot=snapshot)
        error: AllstopError = LinkError("no coordinator was asked")
        for address in self._addresses:
            try:
                stub = await self._stub(address)
            except LinkError as unreached:
                error = unreached
                continue
            async with aclosing(events_of(stub.Verify(request), address, VerifyEvent)) as events:
                async for event in events:
                    yield event
            return
        raise error
