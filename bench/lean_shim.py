"""A shim that costs next to nothing of its own: every answer is made once and only filled in.

It speaks the whole protocol of a worker that is never in trouble, over a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

import grpc.aio
from allstop.v1 import records_pb2, shim_pb2

from coordinator.codec import to_proto
from coordinator.core.model import RankState, WorkerState
from tests.support.fake_node import facts_of, worker_record

ATTACH = "/allstop.v1.ShimLink/Attach"
BOUNDARY = 100  # the last step of every rank when it is held
INCARNATION = 1

HOLD, PARK = records_pb2.PHASE_HOLD, records_pb2.PHASE_PARK
DUMP, PERSIST = records_pb2.PHASE_DUMP, records_pb2.PHASE_PERSIST
RESUME = records_pb2.PHASE_RESUME


class LeanShim:
    """One worker of `job` on a node of its own, with one rank and drivers that answer at once."""

    def __init__(self, channel: grpc.aio.Channel, job: str, worker: int, workers: int) -> None:
        """Nothing is sent before `run`."""
        self.attached = asyncio.Event()
        self.failure = ""
        self._channel = channel
        facts = facts_of(f"node-{worker}", address=f"10.{worker >> 16}.{worker >> 8 & 255}.1")
        rank = RankState(rank=worker, local_rank=0, pid=1001, boundary=BOUNDARY)
        state = WorkerState(
            job=job,
            worker=worker,
            workers=workers,
            state="running",
            incarnation=INCARNATION,
            root_pid=1000,
            world_size=workers,
            ranks=(rank,),
            command=("torchrun", "train.py"),
        )
        self._worker = to_proto(state)
        self._hello = shim_pb2.ShimMessage(
            hello=shim_pb2.Hello(
                facts=to_proto(facts), workers=[self._worker], session=secrets.token_hex(4)
            )
        )
        self._result = shim_pb2.ShimMessage(
            result=shim_pb2.OrderResult(job=job, worker=worker, took_ms=1)
        )
        self._ranks = [to_proto(rank)]
        self._record = to_proto(worker_record(facts, state))
        self._manifest = f"{worker:064x}"
        self._call: Any = None
        self._writing = asyncio.Lock()  # gRPC takes one message of a stream at a time

    async def run(self) -> None:
        """Attach and answer until the stream ends; `failure` then says why."""
        self._call = self._channel.stream_stream(
            ATTACH,
            request_serializer=shim_pb2.ShimMessage.SerializeToString,
            response_deserializer=shim_pb2.CoordinatorMessage.FromString,
        )()
        try:
            await self._write(self._hello)
            while (message := await self._call.read()) is not grpc.aio.EOF:
                kind = message.WhichOneof("body")
                if kind == "order":
                    await self._write(self._answer(message.order))
                elif kind == "orders":
                    answers = [self._answer(order).result for order in message.orders.orders]
                    results = shim_pb2.OrderResults(results=answers)
                    await self._write(shim_pb2.ShimMessage(results=results))
                elif kind == "welcome":
                    await self._welcomed(message.welcome)
            self.failure = f"{await self._call.code()}: {await self._call.details()}"
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.failure = repr(error)
        finally:
            self.attached.set()  # whoever waits for that looks at `failure`

    def begin_anew(self) -> None:
        """Forget that the stream ended; `run` may be called again."""
        self.failure = ""
        self.attached.clear()

    async def say(self, message: shim_pb2.ShimMessage) -> None:
        """Send something that is no answer."""
        if not self.failure and self.attached.is_set():
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._write(message)

    async def _write(self, message: shim_pb2.ShimMessage) -> None:
        async with self._writing:
            await self._call.write(message)

    async def _welcomed(self, welcome: shim_pb2.Welcome) -> None:
        """A Welcome on a stream that stands is a new leader's: it hears everything anew."""
        if self.attached.is_set():
            self._hello.hello.highest_epoch = welcome.epoch
            await self._write(self._hello)
        self.attached.set()

    def _answer(self, order: shim_pb2.Order) -> shim_pb2.ShimMessage:
        message = shim_pb2.ShimMessage()
        message.CopyFrom(self._result)
        result, phase = message.result, order.phase
        result.epoch, result.action, result.phase = order.epoch, order.action, phase
        if phase == HOLD:
            result.ranks.extend(self._ranks)
        elif phase == PARK:
            rank = self._record.ranks[0]
            rank.boundary, rank.parked = order.park.target, True
            result.ranks.append(rank)
        elif phase in (DUMP, PERSIST):
            result.record.CopyFrom(self._record)
            if phase == PERSIST:
                result.record.manifest = f"{order.job}/{order.action}/{order.worker}/manifest.json"
                result.record.manifest_digest = self._manifest
        elif phase == RESUME:
            result.held_ms = 7
        return message
