"""A shim without a worker: real gRPC, drivers that answer at once, and faults on demand.

`python -m tests.support.fake_shim ADDRESS NODE [JOB WORKER WORKERS]` runs one in a process of its
own, for tests that stop or kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc.aio
from allstop.v1 import logs_pb2, shim_pb2, shim_pb2_grpc

from coordinator.codec import from_proto, to_proto
from coordinator.core.model import (
    Failure,
    Phase,
    ProgramFile,
    RankState,
    WorkerRecord,
    WorkerState,
)
from coordinator.link.options import Keepalive, client_options
from tests.support.behaviour import Behaviour, phase_of, progress_of
from tests.support.fake_node import facts_of, worker_record


class FakeShim:
    """One shim; `async with` attaches it and lets it go with Goodbye."""

    def __init__(
        self,
        address: str,
        node: str,
        *,
        job: str = "",
        worker: int = 0,
        workers: int = 0,
        ranks: int = 1,
        behaviour: Behaviour | None = None,
        channel: grpc.aio.Channel | None = None,
        incarnation: int = 1,
        gpus: int = 0,
    ) -> None:
        """Without a job it is a spare; `channel` can be shared among many shims."""
        self.node = node
        self.facts = facts_of(node, gpus=gpus)
        self.session = secrets.token_hex(4)
        self.behaviour = behaviour or Behaviour()
        self.orders: list[shim_pb2.Order] = []
        self.fenced: list[shim_pb2.Fenced] = []
        self.refused: list[shim_pb2.NoticeRefused] = []
        self.restored: set[str] = set()  # by these restores
        self.epoch = 0
        self.hellos = 0
        self.ended: str | None = None
        self.ranks = ranks
        self.output = b""  # of its worker
        self.reads_logs = True  # one of an older version does not know the question
        self.workers: dict[tuple[str, int], WorkerState] = {}
        if job:
            self.workers[job, worker] = self.state_of(job, worker, workers, incarnation)
        self._own_channel = channel is None
        self._channel = channel or grpc.aio.insecure_channel(
            address, options=client_options(Keepalive())
        )
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def state_of(self, job: str, worker: int, workers: int, incarnation: int) -> WorkerState:
        """A running worker."""
        return WorkerState(
            job=job,
            worker=worker,
            workers=workers,
            state="running",
            incarnation=incarnation,
            root_pid=1000,
            world_size=workers * self.ranks,
            ranks=self.rank_states(worker, self.behaviour.boundary),
            command=("torchrun", "train.py"),
            gpu=bool(self.facts.gpus),
        )

    def rank_states(
        self, worker: int, boundary: int, parked: bool = False
    ) -> tuple[RankState, ...]:
        """The ranks of a worker; stuck ones stay a step behind when parked."""
        return tuple(
            RankState(
                rank=worker * self.ranks + local,
                local_rank=local,
                pid=1001 + local,
                boundary=boundary
                - (parked and worker * self.ranks + local in self.behaviour.stuck_ranks),
                parked=parked,
            )
            for local in range(self.ranks)
        )

    # -- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeShim:
        await self.attach()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def attach(self) -> None:
        """Open the stream, say Hello, and return when Welcome has come."""
        stub = shim_pb2_grpc.ShimLinkStub(self._channel)
        self._call = stub.Attach()
        self.ended = None
        hello = self.hello()
        first = grpc.aio.EOF
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(shim_pb2.ShimMessage(hello=hello))
            first = await self._call.read()
        if first is grpc.aio.EOF:
            why = f"{await self._call.code()} {await self._call.details()}"
            raise AssertionError(f"no Welcome: {why}")
        assert first.WhichOneof("body") == "welcome", first
        self.epoch = first.welcome.epoch
        self._reading = asyncio.create_task(self._read())

    def hello(self) -> shim_pb2.Hello:
        """How this shim is now."""
        self.hellos += 1
        return shim_pb2.Hello(
            facts=to_proto(self.facts),
            highest_epoch=self.epoch,
            workers=[to_proto(worker) for worker in self.workers.values()],
            session=self.session,
            number=self.hellos,
        )

    async def leave(self, *, goodbye: bool = True) -> None:
        """Go away, with or without a word."""
        if goodbye and self.ended is None and self._call is not None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.say(goodbye=shim_pb2.Goodbye(reason="the test is over"))
                await self._call.done_writing()
                async with asyncio.timeout(5):
                    await self._call.code()
        self.vanish()
        for task in [*self._tasks, *([self._reading] if self._reading else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._own_channel:
            await self._channel.close()

    def vanish(self) -> None:
        """Break the stream without Goodbye."""
        if self._call is not None:
            self._call.cancel()

    async def say(self, **body: Any) -> None:
        """Send one message; no error when the stream is gone."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:  # a second write at once is refused, as an error of the call
                await self._call.write(shim_pb2.ShimMessage(**body))

    async def report(self) -> None:
        """Tell how the workers are."""
        await self.say(
            report=shim_pb2.Report(workers=[to_proto(worker) for worker in self.workers.values()])
        )

    async def exit_worker(self, job: str, worker: int, exit_code: int, log_tail: str = "") -> None:
        """Let a worker's root process end."""
        state = self.workers[job, worker]
        self.workers[job, worker] = replace(state, state="exited", exit_code=exit_code)
        exited = shim_pb2.WorkerExited(
            job=job,
            worker=worker,
            incarnation=state.incarnation,
            exit_code=exit_code,
            log_tail=log_tail,
        )
        await self.say(exited=exited)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until something that was received makes `condition` true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def phases(self, action: str = "") -> list[Phase]:
        """The phases ordered so far, in order."""
        return [
            phase_of(order.phase) for order in self.orders if not action or order.action == action
        ]

    # -- orders --------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    break
                orders = [shim_pb2.CoordinatorMessage(order=o) for o in message.orders.orders]
                for each in orders or [message]:
                    await self._take(each)
            self.ended = f"{await self._call.code()}: {await self._call.details()}"
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            self.ended = repr(error)
            if isinstance(error, asyncio.CancelledError) and not self._call.cancelled():
                raise
        finally:
            self._changed.set()

    async def _take(self, message: shim_pb2.CoordinatorMessage) -> None:
        kind = message.WhichOneof("body")
        self.refused += [message.refused] if kind == "refused" else []
        if kind == "welcome":  # of a new leader, on a stream that stands
            self.epoch = message.welcome.epoch
            await self.say(hello=self.hello())
        elif kind == "order":
            self.orders.append(message.order)
            if phase_of(message.order.phase) in self.behaviour.late_s:
                task = asyncio.create_task(self._carry_out(message.order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                await self._carry_out(message.order)
        elif kind == "fenced":
            self.fenced.append(message.fenced)
            for worker in message.fenced.workers:
                self.workers.pop((worker.job, worker.worker), None)
            await self.report()
        elif kind == "admitted":
            key = message.admitted.job, message.admitted.worker
            if key in self.workers:
                incarnation = message.admitted.incarnation
                self.workers[key] = replace(self.workers[key], incarnation=incarnation)
            await self.report()
        elif kind == "log" and self.reads_logs:
            parts = [
                logs_pb2.LogPart(
                    worker=place.worker,
                    source="output",
                    file=self.node,
                    data=self.output[place.offset : place.offset + place.room],
                    next=min(len(self.output), place.offset + place.room),
                    more=place.offset + place.room < len(self.output),
                )
                for place in message.log.places
            ]
            await self.say(log=shim_pb2.LogAnswer(question=message.log.question, parts=parts))
        elif kind == "question":
            facts = replace(
                self.facts,
                files=tuple(from_proto(file, ProgramFile) for file in message.question.files),
            )
            answer = shim_pb2.Answer(question=message.question.question, facts=to_proto(facts))
            await self.say(answer=answer)
        self._changed.set()

    async def _carry_out(self, order: shim_pb2.Order) -> None:
        phase = phase_of(order.phase)
        if phase in self.behaviour.vanish:
            self.vanish()
            return
        if phase in self.behaviour.mute:
            return
        await asyncio.sleep(self.behaviour.late_s.get(phase, 0.0))
        result = shim_pb2.OrderResult(
            epoch=order.epoch,
            job=order.job,
            worker=order.worker,
            action=order.action,
            phase=order.phase,
            took_ms=1,
        )
        if phase in self.behaviour.fail:
            result.failure.CopyFrom(to_proto(self._failure(order, phase)))
        else:
            await self._fill_in(order, phase, result)
        await self.say(result=result)

    def _failure(self, order: shim_pb2.Order, phase: Phase) -> Failure:
        return Failure(
            kind="DriverError",
            what="criu failed",
            job=order.job,
            worker=order.worker,
            node=self.node,
            phase=phase,
            details=(self.behaviour.fail[phase],),
        )

    async def _fill_in(
        self, order: shim_pb2.Order, phase: Phase, result: shim_pb2.OrderResult
    ) -> None:
        key = order.job, order.worker
        if phase is Phase.HOLD:
            # neighbours are one step apart, as real ones are
            ranks = self.rank_states(order.worker, self.behaviour.boundary + order.worker % 2)
            result.ranks.extend(to_proto(rank) for rank in ranks)
            result.findings.extend(to_proto(each) for each in self.behaviour.findings)
        elif phase is Phase.PARK:
            ranks = self.rank_states(order.worker, order.park.target, parked=True)
            self.workers[key] = replace(self.workers[key], ranks=ranks)
            result.ranks.extend(to_proto(rank) for rank in ranks)
        elif phase is Phase.DUMP:
            result.record.CopyFrom(to_proto(self.record_of(order)))
        elif phase is Phase.PERSIST:
            for done, total in self.behaviour.progress:
                await self.say(progress=progress_of(order, done, total))
            manifest = f"{order.job}/{order.action}/{order.worker}/manifest.json"
            record = replace(
                self.record_of(order), manifest=manifest, manifest_digest=f"{order.worker:064x}"
            )
            result.record.CopyFrom(to_proto(record))
        elif phase is Phase.RESUME:
            result.held_ms = 7
        else:
            await self._change(order, phase, result)

    async def _change(
        self, order: shim_pb2.Order, phase: Phase, result: shim_pb2.OrderResult
    ) -> None:
        """Orders after which the shim has other workers than before."""
        key = order.job, order.worker
        if phase is Phase.STOP:
            self.workers[key] = replace(self.workers[key], state="stopped")
        elif phase is Phase.CLEAR or (
            phase is Phase.UNDO and order.undo.kill and order.action in self.restored
        ):
            self.workers.pop(key, None)
        elif phase is Phase.RESTORE:
            self.ranks = len(order.restore.record.ranks)
            state = self.state_of(
                order.job, order.worker, order.restore.workers, order.restore.incarnation
            )
            self.workers[key] = replace(state, state="restored", action=order.action)
            self.restored.add(order.action)
            result.root_pid = order.restore.record.root_pid
        elif phase is Phase.RELEASE:
            self.workers[key] = replace(self.workers[key], state="running", action="")
            await self.report()

    def record_of(self, order: shim_pb2.Order) -> WorkerRecord:
        """What a worker puts into a snapshot."""
        state = self.workers[order.job, order.worker]
        return worker_record(self.facts, state)


@contextlib.asynccontextmanager
async def attached(
    address: str,
    count: int,
    *,
    job: str = "llm",
    spares: int = 0,
    ranks: int = 1,
    behaviours: dict[int, Behaviour] | None = None,
    channels: int = 0,
    first: int = 0,
    gpus: int = 0,
) -> Any:
    """`count` workers of one job on nodes node-0, node-1 …, then spares; all attached.

    `first`: the number in the name of the first node. With `channels` the shims share so many
    connections, which is kinder to a small machine.
    """
    own = [*client_options(Keepalive()), ("grpc.use_local_subchannel_pool", 1)]
    shared = [grpc.aio.insecure_channel(address, options=own) for _ in range(channels)]
    pool = itertools.cycle(shared) if shared else itertools.repeat(None)
    shims = [
        FakeShim(
            address,
            f"node-{first + index}",
            job=job if index < count else "",
            worker=index,
            workers=count,
            ranks=ranks,
            behaviour=(behaviours or {}).get(index),
            channel=next(pool),
            gpus=gpus,
        )
        for index in range(count + spares)
    ]
    try:
        for shim in shims:
            await shim.attach()
        yield shims
    finally:
        for shim in shims:
            await shim.leave(goodbye=False)
        for channel in shared:
            await channel.close()


async def _main(
    address: str, node: str, job: str = "", worker: str = "0", workers: str = "0"
) -> None:
    async with FakeShim(address, node, job=job, worker=int(worker), workers=int(workers)) as shim:
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        await shim.until(lambda: shim.ended is not None, timeout_s=120)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
