"""Emptying a node, and letting it take workers again."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

from allstop.v1 import operator_pb2, records_pb2

from coordinator.api import reading
from coordinator.api.desk import Desk
from coordinator.codec import to_proto
from coordinator.core import commands, drain_events, events
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import BadRequest, NotFound, StoreError, Where
from coordinator.core.model import Snapshot
from coordinator.link.names import check_name

ANSWER_DEADLINE_S = 60.0  # of the core, which waits for the store
WHY_CHARS_MAX = 1_000
DEADLINE_S_MAX = 7 * 24 * 3600.0


async def drain(desk: Desk, request: operator_pb2.DrainRequest) -> operator_pb2.DrainReply:
    """Begin to empty a node; the answer comes once that is recorded.

    Raises NotFound, NotReady, NoPlan and BadRequest, with nothing stopped. Asking again joins. A
    crash after the answer leaves it to the next leader, which reads the store.
    """
    check_name("node", request.node)
    if len(request.why) > WHY_CHARS_MAX:
        raise BadRequest(f"a reason has {WHY_CHARS_MAX} characters at most")
    if not 0.0 <= request.deadline_s <= DEADLINE_S_MAX:
        raise BadRequest(
            f"a deadline of {request.deadline_s:g} s is not between 0 and {DEADLINE_S_MAX:g} s"
        )
    for view in desk.control.jobs():
        await desk.gathered(view.job.job)
    asked = await _asked(desk, request.node, request.why, request.deadline_s)
    asked = replace(asked, notice=request.notice)
    await _answer(desk, asked.request, asked)
    return _reply(desk, request.node)


async def undrain(desk: Desk, request: operator_pb2.UndrainRequest) -> operator_pb2.DrainReply:
    """Call a drain off; raises NotFound where the node is not drained."""
    check_name("node", request.node)
    asked = drain_events.UndrainRequested(request.node, _request_id(request.node))
    await _answer(desk, asked.request, asked)
    return _reply(desk, request.node)


async def by_notice(desk: Desk, ask: commands.AskDrain) -> drain_events.DrainRequested:
    """The request for a drain that a leader makes itself; raises what reading the store raises."""
    asked = await _asked(desk, ask.node, ask.why, ask.deadline_s)
    return replace(asked, notice=True, session=ask.session)


async def _asked(desk: Desk, node: str, why: str, deadline_s: float) -> drain_events.DrainRequested:
    snapshots = await _newest(desk, node)
    files = await reading.ask_files_of(desk, snapshots) if snapshots else ()
    return drain_events.DrainRequested(
        node=node,
        request=_request_id(node),
        why=why,
        deadline_s=deadline_s,
        unix_s=desk.unix(),
        snapshots=snapshots,
        files=files,
    )


async def _newest(desk: Desk, node: str) -> tuple[Snapshot, ...]:
    """The newest snapshot of each job on a node that has one."""
    view = next((each for each in desk.control.nodes() if each.facts.node == node), None)
    jobs = sorted({worker.job for worker in view.workers}) if view is not None else []
    found: list[Snapshot] = []
    for job in jobs:
        try:
            found.append(await reading.snapshot_to_restore(desk, job, ""))
        except NotFound:
            continue  # it was never saved; the planner then knows less of it
    return tuple(found)


async def _answer(desk: Desk, request: str, asked: events.Event) -> None:
    """Wait until the core has said yes, or raise what it refuses with."""
    watcher = desk.watchers.open(request)
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            desk.tell(asked)
            async for _ in watcher.events():
                return
    except TimeoutError:
        raise StoreError(
            "the drain was not recorded in time",
            where=Where(),
            definite=False,
            advice="`allstop nodes` shows how it stands",
        ) from None
    finally:
        desk.watchers.close(watcher)


def _reply(desk: Desk, node: str) -> operator_pb2.DrainReply:
    record = desk.control.drain(node) or DrainRecord(node, DrainState.UNDRAINED)
    return operator_pb2.DrainReply(drain=to_proto(record, records_pb2.DrainRecord))


def _request_id(node: str) -> str:
    """Names who waits for the answer, nothing else."""
    return f"drain of {node} {secrets.token_hex(4)}"
