"""What a shim may say at most: numbers that the core counts up to, and texts that it keeps.

A number out of range ends the stream: nothing sensible follows it. A text that is too long is cut,
since what it is about still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.errors import BadRequest, Where
from coordinator.core.meeting import NAME_BYTES_MAX, VALUE_BYTES_MAX
from coordinator.link.names import check_name

WORKERS_MAX = 65_536  # of one job; lists as long as this are made
RANKS_MAX = 1 << 20  # of one job
BOUNDARY_MAX = 1 << 53
INCARNATION_MAX = 1 << 30
BYTES_MAX = 1 << 47  # of one worker: WORKERS_MAX of them can still be added up
MS_MAX = 1 << 40
WORKERS_PER_NODE_MAX = 1_024
FINDINGS_MAX = 256
TEXT_CHARS_MAX = 2_000
LINES_MAX = 40
LOG_TAIL_CHARS_MAX = 4_096
LAPS_MAX = 32
TROUBLES_MAX = 1_024
GPUS_MAX = 1_024  # of one node
PART_CHARS_MAX = 32
LOG_BYTES_MAX = 1 << 20  # of all parts of an answer
MEETING_KEYS_MAX = 1_024  # of one message
ACTION_CHARS_MAX = 128
ATTEMPTS_MAX = 1 << 20  # of a job, of which something is in an image store
DAMAGE_MAX = 256  # of one worker's images
STORE_BYTES_MAX = 1 << 62


def check_said(message: shim_pb2.ShimMessage) -> None:
    """Hold one message against the limits; raises BadRequest naming the field, cuts texts."""
    check = _CHECKS.get(message.WhichOneof("body") or "")
    if check is not None:
        check(message)


def _progress(message: shim_pb2.ShimMessage) -> None:
    _number("worker", message.progress.worker, WORKERS_MAX - 1)
    _number("done_bytes", message.progress.done_bytes, BYTES_MAX)
    _number("total_bytes", message.progress.total_bytes, BYTES_MAX)


def _exited(message: shim_pb2.ShimMessage) -> None:
    _number("worker", message.exited.worker, WORKERS_MAX - 1)
    _number("incarnation", message.exited.incarnation, INCARNATION_MAX)
    message.exited.log_tail = message.exited.log_tail[-LOG_TAIL_CHARS_MAX:]


def _notice(message: shim_pb2.ShimMessage) -> None:
    _number("deadline_ms", message.notice.deadline_ms, MS_MAX)
    message.notice.why = _cut(message.notice.why)


def _results(message: shim_pb2.ShimMessage) -> None:
    for result in message.results.results:
        _result(result)


def _log(message: shim_pb2.ShimMessage) -> None:
    _number("parts of a log", len(message.log.parts), WORKERS_PER_NODE_MAX)
    _number("bytes of a log", sum(len(p.data) for p in message.log.parts), LOG_BYTES_MAX)


def _done(message: shim_pb2.ShimMessage) -> None:
    result = message.done
    _number("attempts in a store", len(result.attempts), ATTEMPTS_MAX)
    _number("objects", result.objects, INCARNATION_MAX)
    _number("freed_bytes", result.freed_bytes, STORE_BYTES_MAX)
    del result.damage[DAMAGE_MAX:]
    for damage in result.damage:
        damage.what, damage.name = _cut(damage.what), _cut(damage.name)
        del damage.sharers[DAMAGE_MAX:]
    if result.HasField("failure"):
        _failure(result.failure)


def _doing(message: shim_pb2.ShimMessage) -> None:
    _number("done_bytes", message.doing.done_bytes, BYTES_MAX)
    _number("total_bytes", message.doing.total_bytes, BYTES_MAX)


def _failure(failure: records_pb2.Failure) -> None:
    failure.what, failure.advice = _cut(failure.what), _cut(failure.advice)
    lines = [_cut(line) for line in failure.details[:LINES_MAX]]
    if lines != list(failure.details):
        del failure.details[:]
        failure.details.extend(lines)


def _goodbye(message: shim_pb2.ShimMessage) -> None:
    message.goodbye.reason = _cut(message.goodbye.reason)


def _number(field: str, value: int, most: int, least: int = 0) -> None:
    if not least <= value <= most:
        raise BadRequest(
            f"{field} is {value}, and may be {least} to {most}",
            advice="the shim is broken, or of another version",
        )


def _troubles(troubles: Iterable[records_pb2.GpuTrouble]) -> None:
    for number, trouble in enumerate(troubles):
        _number("troubles of a node", number + 1, TROUBLES_MAX)
        _number("count of a trouble", trouble.count, BYTES_MAX)
        _number("code of a trouble", trouble.code, INCARNATION_MAX)
        _number("index of a GPU", trouble.index, GPUS_MAX, least=-1)
        trouble.uuid, trouble.source = trouble.uuid[:64], trouble.source[:64]


def _workers(workers: Iterable[records_pb2.WorkerState]) -> None:
    count = 0
    for worker in workers:
        count += 1
        _number("worker", worker.worker, WORKERS_MAX - 1)
        _number("workers", worker.workers, WORKERS_MAX)
        _number("world_size", worker.world_size, RANKS_MAX)
        _number("incarnation", worker.incarnation, INCARNATION_MAX)
        _ranks(worker.ranks)
        _findings(worker.findings)
    if count > WORKERS_PER_NODE_MAX:
        raise BadRequest(
            f"a node with {count} workers, and it may have {WORKERS_PER_NODE_MAX}",
            where=Where(),
        )


def _ranks(ranks: Iterable[records_pb2.RankState]) -> None:
    for rank in ranks:
        _number("rank", rank.rank, RANKS_MAX - 1)
        _number("boundary", rank.boundary, BOUNDARY_MAX, least=-1)


def _findings(findings: Iterable[records_pb2.Finding]) -> None:
    for number, finding in enumerate(findings):
        _number("findings of a worker", number + 1, FINDINGS_MAX)
        finding.text, finding.code = _cut(finding.text), finding.code[:64]


def _result(result: shim_pb2.OrderResult) -> None:
    _number("worker", result.worker, WORKERS_MAX - 1)
    _number("held_ms", result.held_ms, MS_MAX)
    _ranks(result.ranks)
    _findings(result.findings)
    _number("took_ms", result.took_ms, MS_MAX)
    _laps(result)
    if result.HasField("failure"):
        _failure(result.failure)
    if result.HasField("record"):
        record = result.record
        _number("worker of the record", record.worker, WORKERS_MAX - 1)
        _number("image_bytes", record.image_bytes, BYTES_MAX)
        _number("memory_bytes", record.memory_bytes, BYTES_MAX)
        _number("held_ms", record.held_ms, MS_MAX)
        _number("dump_ms", record.dump_ms, MS_MAX)
        _ranks(record.ranks)
        _troubles(record.troubles)


def _meeting(meeting: shim_pb2.Meeting) -> None:
    check_name("job", meeting.job)
    _number("letters of an action's id", len(meeting.action), ACTION_CHARS_MAX, least=1)
    _number("keys", len(meeting.keys), MEETING_KEYS_MAX)
    for key in meeting.keys:
        _number("bytes of a key", len(key.name), NAME_BYTES_MAX, least=1)
        _number("bytes of a key's value", len(key.value), VALUE_BYTES_MAX)
    _number("ranks of a node", len(meeting.came), WORKERS_PER_NODE_MAX)
    for rank in meeting.came:
        _number("rank", rank, RANKS_MAX - 1)


def _laps(result: shim_pb2.OrderResult) -> None:
    del result.laps[LAPS_MAX:]
    for lap in result.laps:
        _number("took_ms of a lap", lap.took_ms, MS_MAX, least=-MS_MAX)
        lap.part = lap.part[:PART_CHARS_MAX]
    del result.arrivals[WORKERS_PER_NODE_MAX:]
    for arrival in result.arrivals:
        _number("rank", arrival.rank, RANKS_MAX - 1)
        _number("after_ms", arrival.after_ms, MS_MAX)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]} …"


_CHECKS: dict[str, Callable[[shim_pb2.ShimMessage], None]] = {
    "result": lambda message: _result(message.result),
    "results": _results,
    "report": lambda message: _workers(message.report.workers),
    "hello": lambda message: _workers(message.hello.workers),
    "progress": _progress,
    "exited": _exited,
    "notice": _notice,
    "troubles": lambda message: _troubles(message.troubles.troubles),
    "log": _log,
    "done": _done,
    "doing": _doing,
    "meeting": lambda message: _meeting(message.meeting),
    "goodbye": _goodbye,
}
