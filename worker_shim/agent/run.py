"""A shim from its start to its end: what `allstop shim` and `allstop shim run` call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from coordinator.core.errors import Fenced
from coordinator.telemetry.wanted import exporter_wanted
from worker_shim.agent.agent import Agent
from worker_shim.agent.build import build
from worker_shim.agent.fence import Fence
from worker_shim.agent.follow import Follower
from worker_shim.agent.leftovers import claim_node, sweep
from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.agent.ports import LOG, Drivers
from worker_shim.agent.stream import Stream
from worker_shim.agent.worker import Worker
from worker_shim.facts import NodeProbe
from worker_shim.telemetry.metrics import ShimMetrics, ShimNow, WorkerNow, serve_metrics
from worker_shim.telemetry.watched import Watched

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SCRAPE_S = 2.0  # for the loop to answer a scrape
HANGING_S = 5.0  # for a hanging store to answer once the shim has ended
SIGNAL_EXIT = 128  # a shell's exit code for a program that signal N ended is 128 + N


async def run_shim(options: ShimOptions, spec: WorkerSpec | None) -> int:
    """Run a shim until its worker has ended for good (or, a spare, until SIGTERM or SIGINT).

    With `until_worker_ends` a spare takes a restored worker for its own once that is let go.
    Returns the exit code: the worker's own, 128 + N when signal N ended the worker or the shim, 0
    for a worker that was stopped on purpose. Raises SetupError, DriverError (missing binary, no
    store), BadRequest, Busy when another shim has this node's name and staging, and Fenced for a
    worker that was not or is not the job, with nothing left running.
    """
    if not structlog.is_configured():  # stdout is the worker's
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    drivers, probe = build(options)
    try:
        claim = await claim_node(drivers.staging)
        try:
            return await _run(options, spec, drivers, probe)
        finally:
            claim.release()
    finally:
        drivers.close_store()


async def _run(
    options: ShimOptions, spec: WorkerSpec | None, drivers: Drivers, probe: NodeProbe
) -> int:
    fence = Fence(options.state_dir / options.node)
    about = {"allstop.node": options.node}
    exporter = exporter_wanted("allstop-shim", options.node, **about)
    watched = Watched(options.node, ShimMetrics(), exporter)
    agent = Agent(drivers, fence, probe, watched.finished)
    stream = Stream(
        options.coordinators,
        agent,
        credentials=options.credentials,
        server_name=options.server_name,
    )
    agent.start(stream.send)
    stop_metrics = _serve_metrics(options.metrics, watched.metrics, agent, stream, fence)
    swept = await sweep(drivers)
    trouble = await probe.probe()
    if swept or trouble:
        log.warning("at start", swept=swept, no_criu=trouble)
    if not trouble:
        await drivers.images.warm_up()
    worker = agent.worker(spec.job, spec.worker) if spec is not None else None
    code = 0
    with _signals() as told:
        tasks: list[asyncio.Task[None]] = []
        try:
            if worker is not None and spec is not None:
                for note in await worker.launch(spec):
                    log.warning(note, worker=worker.name)
            works = (stream.run(), agent.reporting(), drivers.eyes.ask())
            tasks = [asyncio.create_task(work) for work in works]
            followers = _own_output(worker, spec)
            tasks += [asyncio.create_task(follower.run()) for follower in followers]
            if options.until_worker_ends:
                tasks.append(asyncio.create_task(_follow_restored(agent, followers)))
            code, reason = await _until_end(agent, worker, options, told, tasks)
            log.info("leaving", why=reason)
            await agent.stop()
            for follower in followers:
                follower.catch_up()
            await stream.leave(reason, deadline_s=options.goodbye_s)
            if worker is not None and worker.fenced and not worker.state:
                raise Fenced(
                    worker.fenced,
                    where=worker.where,
                    advice="`allstop jobs` and `allstop nodes` show where the job runs",
                )
            return code
        finally:
            await agent.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await watched.close()
            await probe.close()
            stop_metrics()
            if agent.copying:
                _end_anyway(code)


def _own_output(worker: Worker | None, spec: WorkerSpec | None) -> list[Follower]:
    """What shows the output of the worker that is launched here, if it is to be shown."""
    if worker is None or spec is None or not spec.follow:
        return []
    return [Follower(worker.directory / LOG, sys.stdout.fileno())]


async def _follow_restored(agent: Agent, followers: list[Follower]) -> None:
    """Show the output of the worker that a restore brings here, from where it goes on."""
    while (worker := agent.restored) is None:
        await agent.change(at_most_s=LOOK_S)
    followers.append(Follower(worker.directory / LOG, sys.stdout.fileno(), from_end=True))
    await followers[0].run()


def _serve_metrics(
    address: str, metrics: ShimMetrics, agent: Agent, stream: Stream, fence: Fence
) -> Callable[[], None]:
    """Answer scrapes from a thread of its own; return what ends that."""
    if not address:
        return lambda: None
    loop = asyncio.get_running_loop()

    async def look() -> ShimNow:
        return ShimNow(
            connected=stream.attached,
            epoch=fence.highest,
            staging_free_bytes=agent.drivers.staging.free_bytes(),
            workers=tuple(
                WorkerNow(
                    job=state.job,
                    worker=state.worker,
                    state=state.state,
                    ranks=len(state.ranks),
                    parked=sum(rank.parked for rank in state.ranks),
                    hold_left_s=left_s,
                )
                for state, left_s in agent.now()
            ),
        )

    metrics.now = lambda: asyncio.run_coroutine_threadsafe(look(), loop).result(SCRAPE_S)
    return serve_metrics(metrics.registry, address)


def _end_anyway(code: int) -> None:
    """A thread that waits for a store which does not answer must not keep this process for ever.

    Everything is stopped by now; Python itself would wait for its threads without end.
    """

    def end() -> None:
        time.sleep(HANGING_S)
        log.error("the image store does not answer; leaving all the same", after_s=HANGING_S)
        sys.stdout.flush()
        os._exit(code)

    threading.Thread(target=end, name="end anyway", daemon=True).start()


async def _until_end(
    agent: Agent,
    worker: Worker | None,
    options: ShimOptions,
    told: asyncio.Future[int],
    tasks: list[asyncio.Task[None]],
) -> tuple[int, str]:
    """Wait for the reason to leave; return the exit code and the reason."""
    ended_at: float | None = None
    code = 0
    while True:
        if told.done():
            name = signal.Signals(told.result()).name
            return (SIGNAL_EXIT + told.result() if worker else 0), f"the shim was told {name}"
        for task in tasks:
            if task.done():
                task.result()  # those that last do not end by themselves: this raises their error
        if worker is None and options.until_worker_ends:
            brought = agent.restored
            worker = brought if brought is not None and not brought.action else None
        if worker is None or agent.busy:
            ended_at = None
        else:
            ended_at = time.monotonic() if ended_at is None else ended_at
            code = _exit_code(worker) if worker.state else code or Fenced.exit_code
            wait_s = options.linger_s if code and worker.restorable else 0.0
            if time.monotonic() - ended_at >= wait_s:
                return code, f"the worker ended with exit code {code}"
        await agent.change(at_most_s=LOOK_S)


def _exit_code(worker: Worker) -> int:
    if worker.stopped:
        return 0
    return worker.exit_code if worker.exit_code >= 0 else SIGNAL_EXIT - worker.exit_code


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Future[int]]:
    """A future that holds the first SIGTERM or SIGINT; further ones change nothing."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def take(number: int) -> None:
        if not told.done():
            told.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take, number)
    try:
        yield told
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
