"""The planner: every reason is given, least is moved, and a plan is found whenever there is one."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.files import FileKept
from coordinator.core.fit import Candidate
from coordinator.core.matching import UNFIT, assign
from coordinator.core.model import (
    AddressMove,
    Cut,
    Endpoint,
    NodeFacts,
    ProgramFile,
    RankState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.planner import Planned, plan
from tests.support.core_shims import GIB, PROGRAM, facts


def worker(number: int, node: str, **changes: object) -> WorkerRecord:
    here = facts(node)
    base = WorkerRecord(
        job="llm",
        worker=number,
        node=node,
        address=here.address,
        root_pid=1000,
        highest_pid=1010,
        ranks=(RankState(number, 0, 1001, 12, True),),
        image_bytes=GIB,
        memory_bytes=4 * GIB,
        manifest="m",
        manifest_digest="d",
        connections=(),
        programs=(PROGRAM,),
        architecture=here.architecture,
        cpu_flags=here.cpu_flags,
        kernel=here.kernel,
        criu_version=here.criu_version,
        store=here.store,
        held_ms=0,
        dump_ms=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def snapshot(*workers: WorkerRecord) -> Snapshot:
    return Snapshot("a1", "llm", 1, 0, len(workers), 12, Cut.STEP, workers, 0, "d", 0.0)


def places(planned: Planned) -> dict[int, str]:
    assert planned.plan is not None, planned.failure
    return {p.worker: p.to_node for p in planned.plan.placements}


def test_workers_stay_where_they_were() -> None:
    nodes = [Candidate(facts(f"node-{n}")) for n in (3, 2, 1)]
    planned = plan(snapshot(worker(0, "node-2"), worker(1, "node-1")), nodes)
    assert places(planned) == {0: "node-2", 1: "node-1"}
    assert planned.plan is not None
    assert planned.plan.addresses == ()


def test_files_that_are_not_whole_are_noted_for_another_node_alone() -> None:
    kept = (FileKept("/data/big", 1000, 10), FileKept("/data/state", 7, 0))
    made = snapshot(worker(0, "node-1", partial_files=kept))
    there = plan(made, [Candidate(facts("node-1"))]).plan
    elsewhere = plan(made, [Candidate(facts("node-2"))]).plan
    assert there is not None
    assert elsewhere is not None
    assert there.notes == ()
    assert elsewhere.notes == (
        "of /data/big (1000 bytes) the snapshot has only its last 10 bytes: node-2 gets a hole for "
        "the rest unless the file is there",
        "of /data/state (7 bytes) the snapshot has only its size: node-2 refuses the restore "
        "unless the file is there",
    )


def test_workers_that_shared_a_node_stay_together() -> None:
    nodes = [
        Candidate(facts("node-1"), "lost", "dead"),
        Candidate(facts("node-2")),
        Candidate(facts("node-3")),
    ]
    made = snapshot(worker(0, "node-1"), worker(1, "node-1"), worker(2, "node-2"))
    planned = plan(made, nodes)
    assert places(planned) == {0: "node-3", 1: "node-3", 2: "node-2"}
    assert planned.plan is not None
    assert planned.plan.addresses == (AddressMove("10.0.0.1", "10.0.0.3"),)
    assert "it was lost: dead" in planned.plan.placements[0].why


def test_workers_that_shared_a_node_need_its_room_together() -> None:
    nodes = [Candidate(facts("node-2", memory_free_bytes=6 * GIB))]
    made = snapshot(worker(0, "node-1"), worker(1, "node-1"))
    planned = plan(made, nodes)
    assert planned.plan is None
    assert {r.worker for r in planned.reasons} == {0, 1}
    assert "memory: 8.00 GiB needed, 6.00 GiB free" in planned.reasons[0].reasons


def test_memory_of_the_jobs_own_worker_comes_back() -> None:
    full = facts("node-1", memory_free_bytes=GIB)
    made = snapshot(worker(0, "node-1"))
    assert plan(made, [Candidate(full)]).plan is None
    assert places(plan(made, [Candidate(full, own=(0,))])) == {0: "node-1"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "aarch64"}, "architecture: aarch64, needed x86_64"),
        ({"cpu_flags": ("sse4_2",)}, "processor (any) lacks avx2"),
        ({"criu_version": ""}, "no usable CRIU"),
        ({"criu_version": "4.2"}, "CRIU 4.2, needed 4.2.1 or newer"),
        ({"criu_version": "3.17.1"}, "CRIU 3.17.1, needed 4.2.1 or newer"),
        ({"kernel": "6.9.12"}, "kernel 6.9.12 is older than the snapshot's 6.18.5"),
        ({"memory_free_bytes": GIB}, "memory: 4.00 GiB needed, 1.00 GiB free"),
        ({"staging_free_bytes": 1 << 20}, "staging: 1.00 GiB needed, 1.0 MiB free"),
        ({"store": "store-2"}, "it sees image store store-2, the images are in store-1"),
        ({"files": ()}, "it has not answered which program files it has"),
        ({"files": (ProgramFile("/x", 1),)}, "program files missing: /usr/bin/python3"),
        (
            {"files": (replace(PROGRAM, digest="d2"),)},
            "program files differ: /usr/bin/python3",
        ),
        (
            {"files": (ProgramFile(PROGRAM.path, 999),)},
            "program files differ: /usr/bin/python3",
        ),
    ],
)
def test_each_mismatch_is_a_reason(change: dict[str, object], reason: str) -> None:
    planned = plan(snapshot(worker(0, "node-1")), [Candidate(facts("node-2", **change))])
    assert planned.plan is None
    assert planned.reasons[0].reasons == (reason,)
    assert planned.failure is not None
    assert planned.failure.details == (f"node-2, worker 0: {reason}",)


@pytest.mark.parametrize(
    "change",
    [
        {"criu_version": "4.10"},
        {"kernel": "7.0.1"},
        {"kernel": "6.18.1"},
        {"files": (ProgramFile(PROGRAM.path, PROGRAM.size_bytes), ProgramFile("/y", 2))},
    ],
)
def test_what_is_as_good_or_newer_fits(change: dict[str, object]) -> None:
    planned = plan(snapshot(worker(0, "node-1")), [Candidate(facts("node-2", **change))])
    assert places(planned) == {0: "node-2"}
    assert planned.plan is not None
    assert bool(planned.plan.notes) is (change == {"kernel": "7.0.1"})


def test_every_reason_is_given_and_not_only_the_first() -> None:
    poor = facts("node-2", criu_version="", store="", architecture="arm64", memory_free_bytes=0)
    candidate = Candidate(poor, "lost", "gone", others=("worker 0 of job gpt",))
    planned = plan(snapshot(worker(0, "node-1")), [candidate])
    assert len(planned.reasons[0].reasons) == 6


@pytest.mark.parametrize("state", ["lost", "left"])
def test_who_is_out_of_reach_is_not_blamed_for_its_silence(state: str) -> None:
    silent = facts("node-1", files=())
    planned = plan(snapshot(worker(0, "node-1")), [Candidate(silent, state, "power cut")])
    (told,) = planned.reasons
    assert len(told.reasons) == 1
    assert "power cut" in told.reasons[0]
    asked = plan(snapshot(worker(0, "node-1")), [Candidate(silent)])
    assert asked.reasons[0].reasons == ("it has not answered which program files it has",)


def test_a_plan_says_which_connections_come_back_closed() -> None:
    out = Endpoint("10.0.0.1", 40000, "10.9.9.9", 443)
    one = worker(0, "node-1", connections=(Endpoint("10.0.0.1", 1, "10.0.0.2", 2), out))
    two = worker(1, "node-2", connections=(Endpoint("10.0.0.2", 2, "10.0.0.1", 1),))
    planned = plan(snapshot(one, two), [Candidate(facts("node-1")), Candidate(facts("node-2"))])
    assert planned.plan is not None
    assert planned.plan.notes == (
        "worker 0: what is connected to 10.9.9.9:443, outside the job, comes back closed",
    )


def test_a_node_with_another_jobs_worker_is_no_spare() -> None:
    busy = Candidate(facts("node-2"), others=("worker 0 of job gpt",))
    planned = plan(snapshot(worker(0, "node-1")), [busy])
    assert planned.plan is None
    assert planned.reasons[0].reasons == ("it runs worker 0 of job gpt",)


def test_no_node_at_all_refuses() -> None:
    planned = plan(snapshot(worker(0, "node-1")), [])
    assert planned.failure is not None
    assert planned.failure.kind == "NoPlan"


def test_one_worker_without_a_node_refuses_all_and_is_named() -> None:
    made = snapshot(worker(0, "node-1"), worker(1, "node-2"))
    planned = plan(made, [Candidate(facts("node-1"))])
    assert planned.plan is None
    assert planned.failure is not None
    assert planned.failure.worker == 1
    assert planned.failure.details == (
        "node-1, worker 1: it would fit, but another worker needs the node",
    )


def test_the_node_where_a_worker_runs_now_comes_before_a_spare() -> None:
    nodes = [
        Candidate(facts("node-1"), "lost", "dead"),
        Candidate(facts("node-2")),
        Candidate(facts("node-3"), own=(0,)),
    ]
    planned = plan(snapshot(worker(0, "node-1")), nodes)
    assert places(planned) == {0: "node-3"}


def test_a_node_that_still_runs_some_of_its_workers_comes_before_a_spare() -> None:
    gone = Candidate(facts("node-1"), "lost", "dead")
    nodes = [gone, Candidate(facts("node-2")), Candidate(facts("node-3"), own=(1,))]
    group = snapshot(worker(0, "node-1"), worker(1, "node-1"))
    assert places(plan(group, nodes)) == {0: "node-3", 1: "node-3"}
    others = [gone, Candidate(facts("node-2"), own=(2,)), Candidate(facts("node-3"))]
    assert places(plan(group, others)) == {0: "node-3", 1: "node-3"}


def test_addresses_that_cannot_be_told_apart_refuse() -> None:
    made = snapshot(
        worker(0, "node-1", address="127.0.0.1"), worker(1, "node-2", address="127.0.0.1")
    )
    nodes = [Candidate(facts("node-1")), Candidate(facts("node-2"))]
    planned = plan(made, nodes)
    assert planned.plan is None
    assert planned.failure is not None
    assert "same address 127.0.0.1" in planned.failure.what


# -- against brute force ---------------------------------------------------------------------------

COSTS = st.integers(1, 5).flatmap(
    lambda rows: st.integers(0, 5).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0, 1, 2, 3, UNFIT]), min_size=columns, max_size=columns),
            min_size=rows,
            max_size=rows,
        )
    )
)


def cheapest(costs: list[list[int]]) -> tuple[int, int]:
    """Fewest rows without a column, then least cost, by trying everything."""
    rows, columns = len(costs), len(costs[0])
    slots = [*range(columns), *[-1] * rows]
    best = (rows, 0)
    for chosen in set(permutations(slots, rows)):
        paid = [costs[r][c] if c >= 0 else UNFIT for r, c in enumerate(chosen)]
        found = (sum(p >= UNFIT for p in paid), sum(p for p in paid if p < UNFIT))
        best = min(best, found)
    return best


@settings(max_examples=150, deadline=None)
@given(COSTS)
def test_assignment_is_the_best_there_is(costs: list[list[int]]) -> None:
    placed = assign(costs)
    taken = [c for c in placed if c is not None]
    assert len(taken) == len(set(taken))
    paid = [costs[r][c] for r, c in enumerate(placed) if c is not None]
    assert all(p < UNFIT for p in paid)
    assert (len(placed) - len(taken), sum(paid)) == cheapest(costs)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, list[Candidate]]:
    homes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    needs = draw(st.lists(st.integers(1, 4), min_size=len(homes), max_size=len(homes)))
    workers = [
        worker(at, f"node-{home}", memory_bytes=need * GIB)
        for at, (home, need) in enumerate(zip(homes, needs, strict=True))
    ]
    nodes = []
    for number in draw(st.sets(st.integers(1, 6))):
        room = draw(st.integers(0, 8))
        state = draw(st.sampled_from(["attached", "attached", "attached", "lost"]))
        arch = draw(st.sampled_from(["x86_64", "x86_64", "x86_64", "arm64"]))
        found: NodeFacts = facts(f"node-{number}", memory_free_bytes=room * GIB, architecture=arch)
        nodes.append(Candidate(found, state, "dead"))
    return snapshot(*workers), nodes


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_a_plan_is_found_whenever_there_is_one(case: tuple[Snapshot, list[Candidate]]) -> None:
    made, nodes = case
    groups: dict[str, int] = {}
    for record in made.workers:
        groups[record.node] = groups.get(record.node, 0) + record.memory_bytes
    fits = {
        (home, n.facts.node)
        for home, need in groups.items()
        for n in nodes
        if n.state == "attached"
        and n.facts.architecture == "x86_64"
        and n.facts.memory_free_bytes >= need
    }
    names = [n.facts.node for n in nodes]
    possible = [
        sum(home != name for home, name in zip(groups, chosen, strict=True))
        for chosen in permutations(names, len(groups))
        if all(pair in fits for pair in zip(groups, chosen, strict=True))
    ]
    planned = plan(made, nodes)
    assert (planned.plan is not None) == bool(possible)
    refused = {(r.worker, r.node) for r in planned.reasons}
    home_of = {r.worker: r.node for r in made.workers}
    assert refused == {(w, n) for w in home_of for n in names if (home_of[w], n) not in fits}
    if planned.plan is None:
        return
    at = places(planned)
    assert all((home_of[w], node) in fits for w, node in at.items())
    moved = {home_of[w] for w, node in at.items() if node != home_of[w]}
    assert len(moved) == min(possible), "nothing is moved that could have stayed"
    assert (
        len({(home_of[w], node) for w, node in at.items()}) == len(groups) == len(set(at.values()))
    )
