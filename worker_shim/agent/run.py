"""A shim from its start to its end: what `allstop shim` and `allstop shim run` call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

import structlog

from coordinator.core.errors import Fenced
from coordinator.telemetry.wanted import exporter_wanted
from worker_shim.agent.agent import Agent
from worker_shim.agent.build import build
from worker_shim.agent.fence import Fence
from worker_shim.agent.follow import POLL_S, Follower
from worker_shim.agent.health import HealthTelling
from worker_shim.agent.leftovers import claim_node, sweep
from worker_shim.agent.notices import Notices, Told
from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.agent.ports import LOG, Drivers
from worker_shim.agent.stream import Stream
from worker_shim.agent.together import Together, first_failed
from worker_shim.agent.worker import Worker
from worker_shim.facts import NodeProbe
from worker_shim.preemption.opening import sources_of
from worker_shim.preemption.watching import Source, watch
from worker_shim.telemetry.metrics import ShimMetrics, ShimNow, WorkerNow, serve_metrics
from worker_shim.telemetry.watched import Watched

log = structlog.get_logger(__name__)

LOOK_S = 1.0
FLUSH_S = 1.0  # for a word to leave this process
SCRAPE_S = 2.0  # for the loop to answer a scrape
HANGING_S = 5.0  # for a hanging store to answer once the shim has ended
STAY_S = 300.0  # for the restore of a job that was stopped to be moved
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SIGNAL_EXIT = 128  # a shell's exit code for a program that signal N ended is 128 + N


async def run_shim(options: ShimOptions, specs: Sequence[WorkerSpec] = ()) -> int:
    """Run a shim until its workers have ended for good (or, a spare, until SIGTERM or SIGINT).

    Several workers are of one job and end together, see `together`. With `until_worker_ends` a
    spare takes what a restore brings it for its own once that is let go. Returns the exit code: 0
    when all ended well or were stopped on purpose, that of the worker that failed first, 128 + N
    when signal N ended it or the shim. Raises SetupError, DriverError (missing binary, no store),
    BadRequest, Busy when another shim has this node's name and staging, and Fenced for a worker
    that was not or is not the job, with nothing left running.
    """
    if not structlog.is_configured():  # stdout is the workers'
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    drivers, probe = await build(options)
    try:
        claim = await claim_node(drivers.staging)
        try:
            return await _run(options, specs, drivers, probe)
        finally:
            claim.release()
    finally:
        await drivers.cuda.close()
        drivers.close_store()


async def _run(
    options: ShimOptions, specs: Sequence[WorkerSpec], drivers: Drivers, probe: NodeProbe
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
    await _make_ready(drivers, probe)
    workers = tuple(agent.worker(spec.job, spec.worker) for spec in specs)
    code = 0
    notices = Notices(agent, options.on_term, options.term_grace_s, options.save_grace_s)
    clouds = _clouds(options, notices, probe)
    with _signals(Told(notices)) as told:
        tasks: list[asyncio.Task[None]] = []
        try:
            for worker, spec in zip(workers, specs, strict=True):
                for note in await worker.launch(spec):
                    log.warning(note, worker=worker.name)
            works = (
                *(stream.run(), agent.reporting(), drivers.eyes.ask()),
                *(Together(agent).run(), notices.run(), *map(watch, clouds)),
                *_health(agent, drivers),
            )
            tasks = [asyncio.create_task(work) for work in works]
            shown = [agent.worker(spec.job, spec.worker) for spec in specs if spec.follow]
            followers = _followers(shown, lines=len(shown) > 1)
            tasks += [asyncio.create_task(follower.run()) for follower in followers]
            if options.until_worker_ends:
                tasks.append(asyncio.create_task(_follow_restored(agent, followers)))
            code, reason = await _until_end(agent, workers, options, told, tasks)
            log.info("leaving", why=reason)
            if told.ended_by is not None and notices.end(reason):
                await stream.flush(at_most_s=FLUSH_S)  # before anybody sees what ends here
            await agent.stop()
            for follower in followers:
                follower.catch_up(last=True)
            await stream.leave(reason, deadline_s=options.goodbye_s)
            _require_none_fenced(workers)
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


def _clouds(options: ShimOptions, notices: Notices, probe: NodeProbe) -> Sequence[Source]:
    """The notices of this machine's cloud that are watched; raises BadRequest."""
    gpus = bool(probe.current().gpus)
    return sources_of(options.preemption, options.preemption_url, notices, gpus=gpus)


def _health(agent: Agent, drivers: Drivers) -> tuple[Coroutine[None, None, None], ...]:
    """What watches GPUs, and tells of them."""
    if drivers.health is None:
        return ()
    return drivers.health.run(), HealthTelling(agent, drivers.health.troubles).run()


async def _make_ready(drivers: Drivers, probe: NodeProbe) -> None:
    """Sweep what a dead shim has left, and look at what there is."""
    swept = await sweep(drivers)
    trouble = await probe.probe()
    if swept or trouble:
        log.warning("at start", swept=swept, no_criu=trouble)
    if not trouble:
        await drivers.images.warm_up()


def _require_none_fenced(workers: Iterable[Worker]) -> None:
    for worker in workers:
        if worker.fenced and not worker.state:
            raise Fenced(
                worker.fenced,
                where=worker.where,
                advice="`allstop jobs` and `allstop nodes` show where the job runs",
            )


def _followers(workers: Sequence[Worker], *, lines: bool, from_end: bool = False) -> list[Follower]:
    """What shows the output of these workers."""
    out = sys.stdout.fileno()
    return [
        Follower(worker.directory / LOG, out, from_end=from_end, lines=lines) for worker in workers
    ]


async def _follow_restored(agent: Agent, followers: list[Follower]) -> None:
    """Show the output of what a restore brings here, from where it goes on."""
    shown: set[str] = set()
    while True:
        new = [worker for worker in agent.restored if worker.name not in shown]
        shown |= {worker.name for worker in new}
        followers += _followers(new, lines=True, from_end=True)
        for follower in followers:
            follower.catch_up()
        if followers:
            await asyncio.sleep(POLL_S)
        else:
            await agent.change(at_most_s=LOOK_S)


def _back(agent: Agent) -> tuple[Worker, ...]:
    """What a restore has brought here, once all of it is let go."""
    brought = agent.restored
    return () if any(worker.action for worker in brought) else brought


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
    workers: tuple[Worker, ...],
    options: ShimOptions,
    told: Told,
    tasks: list[asyncio.Task[None]],
) -> tuple[int, str]:
    """Wait for the reason to leave; return the exit code and the reason."""
    ended_at: float | None = None
    code = 0
    while True:
        if (number := told.ended_by) is not None:
            name = signal.Signals(number).name
            code = _exit_code(workers, code) if told.well else SIGNAL_EXIT + number
            code = code if workers else 0
            well_code = options.term_code if number == signal.SIGTERM else 0
            return code or well_code, f"the shim was told {name}"
        for task in tasks:
            if task.done():
                task.result()  # those that last do not end by themselves: this raises their error
        if not workers and options.until_worker_ends:
            workers = _back(agent)
        if not workers or agent.busy:
            ended_at = None
        else:
            ended_at = time.monotonic() if ended_at is None else ended_at
            code = _exit_code(workers, code)
            if _may_leave(agent, workers, options, code, time.monotonic() - ended_at):
                return code, f"{_named(workers)} ended with exit code {code}"
        await agent.change(at_most_s=LOOK_S)


def _may_leave(
    agent: Agent, workers: tuple[Worker, ...], options: ShimOptions, code: int, ended_s: float
) -> bool:
    """Whether nobody may still put anything back here, `ended_s` after the last worker's end."""
    if any(worker.stays for worker in workers) and ended_s < STAY_S:
        return False
    if not code:
        return True
    restorable = any(worker.restorable for worker in workers)
    awaited = any(agent.stays(worker.job) for worker in workers)
    return not awaited and ended_s >= (options.linger_s if restorable else 0.0)


def _named(workers: tuple[Worker, ...]) -> str:
    return "the worker" if len(workers) == 1 else f"the {len(workers)} workers"


def _exit_code(workers: tuple[Worker, ...], before: int) -> int:
    """Of the one that failed first; what is not here any more went on elsewhere, or was fenced."""
    here = [worker for worker in workers if worker.state]
    if not here:
        return before or Fenced.exit_code
    ended = [worker for worker in here if worker.exit_code and not worker.stopped]
    if not ended:
        return 0
    code = (first_failed(ended) or ended[0]).exit_code
    return code if code >= 0 else SIGNAL_EXIT - code


@contextlib.contextmanager
def _signals(told: Told) -> Iterator[Told]:
    """Hand signals to it."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, told.take, number)
    try:
        yield told
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
