"""Every check of the checker finds what it is for, and nothing in a sound history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.codec import decode, encode
from coordinator.core.model import AttemptState, Failure, RestoreState, Snapshot
from coordinator.store.kv import Event, Item
from tests.chaos.checker import check
from tests.chaos.made_up import (
    FIRST,
    JOB,
    KEYS,
    MS,
    NODES,
    RANKS,
    RESTORE,
    SECOND,
    Etcd,
    attempt,
    restore,
    snapshot,
    worker,
)
from tests.chaos.seen import Dump, Lock, Seen
from tests.chaos.steps import Step
from worker_shim.network.ruleset import table_of


def dying(kept: Snapshot) -> Snapshot:
    return replace(kept, deleting="an operator wanted it")


def sound() -> Seen:
    """Two leaders; a snapshot at step 3 and one at step 6; the first is restored and deleted."""
    etcd = Etcd()
    first = etcd.put((KEYS.leader(7), b"c0"))
    etcd.put((KEYS.leader(8), b"c1"))
    etcd.attempt(FIRST, AttemptState.ADMITTING, first)
    etcd.commit(FIRST, 3, first)
    failure = Failure("DriverError", "criu")
    etcd.attempt("failed", AttemptState.ABORTED, first, failure=failure, owed=(0, 1))
    etcd.delete(KEYS.leader(7))
    second = etcd.created[KEYS.leader(8)]
    etcd.attempt("failed", AttemptState.ABORTED, first, failure=failure, owed=(1,))
    etcd.attempt(SECOND, AttemptState.ADMITTING, second)
    etcd.commit(SECOND, 6, second)
    etcd.put((KEYS.restore(JOB, RESTORE), encode(restore(RestoreState.RUNNING, second))))
    etcd.put((KEYS.snapshot(JOB, FIRST), encode(dying(snapshot(FIRST, 3, first)))))
    etcd.delete(KEYS.snapshot(JOB, FIRST))
    lives = [(1, step) for step in range(1, 9)] + [(2, step) for step in range(3, 6)]
    return Seen(
        etcd=etcd.events,
        steps={
            rank: [
                Step((at + 1) * 100 * MS + rank, life, NODES[rank], rank, step, f"{rank}.{step}")
                for at, (life, step) in enumerate(lives)
            ]
            for rank in RANKS
        },
        dumps=[dump(FIRST, rank, 210) for rank in RANKS] + [dump(SECOND, r, 510) for r in RANKS],
        locks=[
            Lock(at * MS, NODES[rank], added, table_of(f"{JOB}/{rank}"))
            for at, added in ((205, True), (280, False), (505, True), (580, False))
            for rank in RANKS
        ],
        dump_s={(name, rank): 0.05 for name in (FIRST, SECOND) for rank in RANKS},
        undisturbed={(rank, step): f"{rank}.{step}" for rank in RANKS for step in range(1, 20)},
    )  # fmt: skip


def dump(name: str, rank: int, at_ms: int) -> Dump:
    place = f"/run/allstop-staging/{JOB}/{rank}/{name}/images"
    return Dump(at_ms * MS, NODES[rank], "begins", "dump", place)


def test_a_sound_history_has_no_faults() -> None:
    assert check(sound()) == []


def changed(seen: Seen, find: Callable[[Event], bool], value: bytes | None) -> None:
    """Another value (or none) for the last event that fits."""
    at = max(number for number, event in enumerate(seen.etcd) if find(event))
    event = seen.etcd[at]
    assert event.item is not None
    item = None if value is None else replace(event.item, value=value)
    seen.etcd = [*seen.etcd[:at], replace(event, item=item), *seen.etcd[at + 1 :]]


def without(seen: Seen, find: Callable[[Event], bool]) -> None:
    """The history as if that had never been written."""
    seen.etcd = [event for event in seen.etcd if not find(event)]


def late_latest(seen: Seen) -> None:
    revision = max(event.revision for event in seen.etcd) + 1
    item = Item(KEYS.latest(JOB), FIRST.encode(), 1, revision)
    seen.etcd = [*seen.etcd, Event(revision, item.key, item)]


def move_lock(seen: Seen, at_ms: int, to_ms: int) -> None:
    """What n0's network did at that time it did at another one."""
    moved = [
        replace(lock, unix_ns=to_ms * MS)
        if (lock.node, lock.unix_ns) == ("n0", at_ms * MS)
        else lock
        for lock in seen.locks
    ]
    seen.locks = sorted(moved, key=lambda lock: lock.unix_ns)


def with_steps(seen: Seen, rank: int, change: Callable[[list[Step]], list[Step]]) -> None:
    seen.steps = {**seen.steps, rank: change(list(seen.steps[rank]))}


def is_marking(event: Event) -> bool:
    """Whether it is the change by which the first snapshot became one to be deleted."""
    return (
        event.key == KEYS.snapshot(JOB, FIRST)
        and event.item is not None
        and bool(decode(Snapshot, event.item.value, event.key).deleting)
    )


def left_open(seen: Seen) -> None:
    record = attempt("failed", AttemptState.DUMPING, 3)
    changed(seen, lambda event: event.key == KEYS.attempt(JOB, "failed"), encode(record))


def unnamed(seen: Seen) -> None:
    failure = Failure("DeadlinePassed", "somebody was slow")
    record = replace(attempt("failed", AttemptState.ABORTED, 3), failure=failure)
    changed(seen, lambda event: event.key == KEYS.attempt(JOB, "failed"), encode(record))


def changed_after_its_end(seen: Seen) -> None:
    failure = Failure("DriverError", "something else")
    record = replace(attempt("failed", AttemptState.ABORTED, 2), failure=failure)
    changed(seen, lambda event: event.key == KEYS.attempt(JOB, "failed"), encode(record))


BREAKS: dict[str, Callable[[Seen], None]] = {
    "not its digest's": lambda seen: without(
        seen, lambda event: event.key == KEYS.worker(JOB, SECOND, 1)
    ),
    "its ranks are at": lambda seen: changed(
        seen,
        lambda event: event.key == KEYS.worker(JOB, SECOND, 1),
        encode(worker(SECOND, 1, 5)),
    ),
    "without becoming latest": lambda seen: without(
        seen, lambda event: event.item is not None and event.item.value == SECOND.encode()
    ),
    "its snapshot is not there": lambda seen: without(
        seen, lambda event: event.key == KEYS.snapshot(JOB, SECOND)
    ),
    "latest of digits went back": late_latest,
    f"snapshot {FIRST} was deleted": lambda seen: without(seen, is_marking),
    "was changed, and not to be deleted": lambda seen: changed(
        seen, is_marking, encode(dying(snapshot(FIRST, 4, 2)))
    ),
    "the leader was 3": lambda seen: changed(
        seen,
        lambda event: event.key == KEYS.restore(JOB, RESTORE),
        encode(restore(RestoreState.RUNNING, 2)),
    ),
    "in epoch 2; the leader was 3": changed_after_its_end,
    "was left DUMPING": left_open,
    "does not name for whom": unnamed,
    "made step 8": lambda seen: with_steps(
        seen, 0, lambda own: [*own[:6], *own[7:]]
    ),
    "made step 6 (incarnation 1": lambda seen: with_steps(
        seen, 1, lambda own: [*own, replace(own[5], unix_ns=own[-1].unix_ns + 1)]
    ),
    "restored was one": lambda seen: with_steps(
        seen, 1, lambda own: [step for step in own if (step.incarnation, step.step) != (2, 3)]
    ),
    "have other bits": lambda seen: with_steps(
        seen, 1, lambda own: [*own[:-1], replace(own[-1], digest="x")]
    ),
    "between the first and the last dump": lambda seen: with_steps(
        seen, 0, lambda own: [*own[:2], replace(own[2], unix_ns=230 * MS), *own[3:]]
    ),
    "with dumps of workers [0]": lambda seen: setattr(seen, "dumps", [
        dump for dump in seen.dumps if dump.place != (SECOND, 1)
    ]),
    "how long its dumps took": lambda seen: setattr(seen, "dump_s", {}),
    "was unlocked on n0": lambda seen: move_lock(seen, 280, 240),
    "was not locked on n0": lambda seen: move_lock(seen, 505, 999),
    "to a leader of epoch": lambda seen: setattr(
        seen, "ghosts", ["n1 sent result to a leader of epoch 1"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", BREAKS)
def test_what_is_wrong_is_found(words: str) -> None:
    seen = sound()
    BREAKS[words](seen)
    found = check(seen)
    assert any(words in sentence for sentence in found), found
