"""The part of `OperatorClient` that is about emptying nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allstop.v1 import operator_pb2

from coordinator.codec import from_proto
from coordinator.core.drain_records import DrainRecord


class DrainsClient:
    """Draining; see `OperatorClient` for errors."""

    async def _ask(self, call: Callable[[Any, float], Any]) -> Any:
        raise NotImplementedError

    async def drain(
        self, node: str, *, deadline_s: float = 0.0, why: str = "", notice: bool = False
    ) -> DrainRecord:
        """Begin to empty a node; `nodes` shows how far it is.

        `deadline_s`: for the checkpoints to be whole; 0: none. Raises NoPlan where no other nodes
        can take what runs there, NotReady where there is not enough time; then nothing was stopped.
        `notice`: the node goes all the same, so what cannot be moved is saved, where there is time.
        """
        request = operator_pb2.DrainRequest(
            node=node, deadline_s=deadline_s, why=why, notice=notice
        )
        reply = await self._ask(lambda stub, timeout: stub.Drain(request, timeout=timeout))
        return from_proto(reply.drain, DrainRecord)

    async def undrain(self, node: str) -> DrainRecord:
        """Let a node take workers again; what its drain has stopped is put back first."""
        request = operator_pb2.UndrainRequest(node=node)
        reply = await self._ask(lambda stub, timeout: stub.Undrain(request, timeout=timeout))
        return from_proto(reply.drain, DrainRecord)
