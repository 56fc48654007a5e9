"""Reading what workers have put out: one request, one answer, and nothing kept between two.

Whoever follows asks again with the places that the last answer named. So a new leader, or a
worker that a restore has put elsewhere, is no special case, and a reader that has left costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allstop.v1 import logs_pb2, operator_pb2

from coordinator.api.desk import Desk
from coordinator.codec import from_proto, to_proto
from coordinator.core.errors import AllstopError, BadRequest, LinkError, NotFound, Where
from coordinator.core.failures import failure_of
from coordinator.core.logs import PLACES_MAX, LogPart, LogPlace, Whereabouts, worker_of
from coordinator.link.names import check_name

LINES_MAX = 1_000_000
ANSWER_BYTES_MAX = 1 << 20  # of one answer, all workers together
ROOM_BYTES_MIN = 4 << 10


async def read_logs(
    desk: Desk, request: operator_pb2.ReadLogsRequest
) -> operator_pb2.ReadLogsReply:
    """What these workers have put out, as far as it is kept and fits into one answer.

    A worker that cannot be asked has its part too, with the reason. Raises NotFound for a job,
    worker or rank that nobody knows, BadRequest for more than PLACES_MAX places.
    """
    check_name("job", request.job)
    await desk.gathered(request.job)
    found = desk.control.whereabouts(request.job)
    places, following = _places(request, found)
    reachable: dict[str, list[LogPlace]] = {}
    for place in places:
        at = found[place.worker]
        if not at.away:
            reachable.setdefault(at.node, []).append(place)
    told = await desk.hub.ask_logs(request.job, reachable)
    parts = [
        part
        for place in places
        for part in _parts_of(request.job, place, found[place.worker], told)
    ]
    return operator_pb2.ReadLogsReply(
        parts=[to_proto(part, logs_pb2.LogPart) for part in parts], following=following
    )


def _places(
    request: operator_pb2.ReadLogsRequest, found: Sequence[Whereabouts]
) -> tuple[list[LogPlace], int]:
    """What is asked for, with the room that each has, and where the next request goes on."""
    following = 0
    if request.places:
        places = [from_proto(each, LogPlace) for each in request.places]
    else:
        first, after = max(0, request.first), max(0, request.first) + PLACES_MAX
        following = after if after < len(found) else 0
        places = [LogPlace(at.worker, lines=request.lines) for at in found[first:after]]
    if len(places) > PLACES_MAX:
        raise BadRequest(f"{len(places)} outputs, and {PLACES_MAX} can be asked for at once")
    room = max(ROOM_BYTES_MIN, ANSWER_BYTES_MAX // max(1, len(places)))
    return [_checked(request.job, replace(each, room=room), found) for each in places], following


def _checked(job: str, place: LogPlace, found: Sequence[Whereabouts]) -> LogPlace:
    if not 0 <= place.lines <= LINES_MAX or place.offset < 0:
        raise BadRequest(
            f"{place.lines} lines from {place.offset} on", advice=f"--lines 0 to {LINES_MAX}"
        )
    if place.of_rank and not (place.source and _is_away(place, found)):
        return replace(place, worker=worker_of(found, job, place.rank))
    if not 0 <= place.worker < len(found):
        raise NotFound(
            f"job {job} has no worker {place.worker}",
            advice=f"its workers are 0 to {len(found) - 1}",
        )
    return place


def _is_away(place: LogPlace, found: Sequence[Whereabouts]) -> bool:
    """Whether a worker that was read before has told of no ranks now: a restore is under way."""
    return 0 <= place.worker < len(found) and not found[place.worker].ranks


def _parts_of(
    job: str,
    place: LogPlace,
    at: Whereabouts,
    told: dict[str, tuple[LogPart, ...]],
) -> list[LogPart]:
    """What a node has said to one place, or why it has not."""
    if at.away:
        return [_without(job, place, at, at.away, "`allstop nodes` and `allstop jobs` show it")]
    answer = told.get(at.node)
    if answer is None:
        what = f"{at.node} has not answered in time"
        return [_without(job, place, at, what, "its shim hangs, or is of a version without logs")]
    wanted = [
        part for part in answer if part.worker == place.worker and place.source in ("", part.source)
    ]
    return [replace(part, node=at.node) for part in wanted]


def _without(job: str, place: LogPlace, at: Whereabouts, why: str, advice: str) -> LogPart:
    where = Where(job=job, worker=place.worker, node=at.node)
    error: AllstopError = LinkError(
        f"the output of worker {place.worker} cannot be read: {why}", where=where, advice=advice
    )
    return LogPart(
        place.worker,
        source=place.source,
        file=place.file,
        next=place.offset,
        failure=failure_of(error),
        node=at.node,
    )
