"""Where nothing fits: the job's own commands are started from scratch, if that was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.fit import Candidate
from coordinator.core.model import (
    AddressMove,
    Failure,
    NodeFacts,
    OldAddresses,
    Phase,
    ProgramFile,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.planner import Planned
from coordinator.core.starting import as_a_word, plan_or_start
from tests.support.core_checks import answer_until
from tests.support.core_restores import half_lost_world, incarnations
from tests.support.core_shims import GIB, PROGRAM, facts
from tests.support.core_world import World
from tests.unit.core.test_gpu_plans import A100, gpus, node, trainer
from tests.unit.core.test_planner import places, snapshot, worker

S = RestoreState
O = OldAddresses  # noqa: E741
OTHER = (ProgramFile(PROGRAM.path, PROGRAM.size_bytes, "d2"),)


def started(
    made: Snapshot, nodes: list[Candidate], old_addresses: OldAddresses = O.REFUSE
) -> tuple[Planned, str]:
    return plan_or_start(made, nodes, cold_start=True, old_addresses=old_addresses)


def test_nothing_is_started_where_the_snapshot_fits() -> None:
    planned, why = started(snapshot(worker(0, "node-1")), [Candidate(facts("node-2"))])
    assert planned.plan is not None
    assert (planned.plan.cold, why) == (False, "")


def test_nothing_is_started_where_nobody_asked_for_it() -> None:
    made, nodes = snapshot(worker(0, "node-1")), [Candidate(facts("node-2", files=OTHER))]
    refused, why = plan_or_start(made, nodes)
    assert (refused.plan, why) == (None, "")


@pytest.mark.parametrize(
    "change",
    [
        {"files": OTHER},
        {"criu_version": ""},
        {"kernel": "5.4.0"},
        {"cpu_flags": ()},
        {"staging_free_bytes": 0},
    ],
)
def test_a_node_need_only_be_able_to_run_the_command(change: dict[str, object]) -> None:
    planned, why = started(snapshot(worker(0, "node-1")), [Candidate(facts("node-2", **change))])
    assert planned.plan is not None
    assert planned.plan.cold
    assert places(planned) == {0: "node-2"}
    assert "no node for worker 0 of snapshot a1 among 1 nodes; node-2, worker 0: " in why
    assert "started from scratch, not from snapshot a1" in planned.plan.notes[0]
    assert planned.plan.addresses == ()


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Candidate(facts("node-2"), "lost", "dead"), "it was lost: dead"),
        (
            Candidate(facts("node-2"), others=("worker 0 of job gpt",)),
            "it runs worker 0 of job gpt",
        ),
        (Candidate(facts("node-2", architecture="arm64")), "architecture: arm64, needed x86_64"),
        (
            Candidate(facts("node-2", store="")),
            "it sees image store none, what was started stands in store-1",
        ),
    ],
)
def test_what_a_node_must_be_all_the_same(candidate: Candidate, reason: str) -> None:
    unfit = replace(candidate, facts=replace(candidate.facts, criu_version=""))
    planned, _ = started(snapshot(worker(0, "node-1")), [unfit])
    assert planned.plan is None
    assert planned.reasons[0].reasons == (reason,)
    assert planned.failure is not None
    assert "no node to run worker 0" in planned.failure.what


def test_gpus_have_to_be_enough_and_large_enough() -> None:
    made = snapshot(trainer(0, "node-1"))
    other = {"model": A100, "memory_bytes": 160 * GIB}
    planned, _ = started(made, [Candidate(node("node-2", gpus("node-2", 4, **other)))])
    assert places(planned) == {0: "node-2"}
    small = [replace(gpu, memory_bytes=80 * GIB) for gpu in gpus("node-2", 2)]
    for found, reason in (
        (gpus("node-2", 1), "it has 1 sound GPUs, needed 2 NVIDIA H200"),
        (gpus("node-2", 2, sick="ECC"), "it has 0 sound GPUs, needed 2 NVIDIA H200"),
        (small, "its GPUs have too little memory: 80.0 GiB, needed 141.0 GiB"),
    ):
        planned, _ = started(made, [Candidate(node("node-2", found))])
        assert planned.reasons[0].reasons == (reason,)


def start_reasons(there: NodeFacts, record: WorkerRecord | None = None) -> tuple[str, ...]:
    """Why one node cannot even start the command; its restore is refused anyhow."""
    unfit = replace(there, criu_version="")
    planned, why = started(snapshot(record or trainer(0, "node-1")), [Candidate(unfit)])
    assert why
    return planned.reasons[0].reasons if planned.reasons else ()


def test_gpus_that_are_hidden_from_a_container_are_not_missed() -> None:
    assert start_reasons(node("node-2", gpus_unseen="3 GPUs and 2 can be seen")) == ()


def test_nothing_is_started_on_gpus_that_cannot_be_relied_on() -> None:
    hangs = node("node-2", gpu_trouble="NVML hangs")
    assert start_reasons(hangs) == ("its GPUs cannot be relied on: NVML hangs",)
    divided = (gpus("node-2")[0], replace(gpus("node-2", 3)[1], mig=True), gpus("node-2", 3)[2])
    assert start_reasons(node("node-2", divided)) == (
        "GPU 1 is divided into instances (MIG), which cannot be saved",
    )


def test_without_an_inventory_of_the_snapshot_a_node_with_gpus_will_do() -> None:
    record = trainer(0, "node-1", gpus=(), gpu_driver="")
    lacking = ("it has 0 sound GPUs, needed at least one",)
    assert start_reasons(facts("node-2"), record) == lacking
    assert start_reasons(node("node-2", gpus("node-2", sick="ECC")), record) == lacking
    hangs = node("node-2", gpu_trouble="NVML hangs")
    assert start_reasons(hangs, record) == ("its GPUs cannot be relied on: NVML hangs",)
    assert start_reasons(node("node-2", gpus("node-2", 1)), record) == ()
    assert start_reasons(facts("node-1", gpu_trouble="NVML is not there"), record) == ()


def test_a_start_is_explained_with_the_restores_refusals_beside_it() -> None:
    nodes = [Candidate(facts(f"node-{n}", files=OTHER)) for n in range(1, 20)]
    nodes.append(Candidate(facts("node-20"), "lost", "dead"))
    made = snapshot(worker(0, "node-1"))
    planned, _ = plan_or_start(made, nodes, cold_start=True, explain=True)
    assert planned.plan is not None
    taken = [fit.node for fit in planned.fits if fit.chosen]
    assert taken == ["node-1"]
    assert {fit.node for fit in planned.fits} == {f"node-{n}" for n in range(1, 20)}
    assert [each.node for each in planned.reasons] == ["node-20"]
    assert len(planned.restore_refused) == 20
    assert "program files differ" in planned.restore_refused[0].reasons[0]
    assert planned.plan.notes[-1] == "and 4 more"
    briefly, _ = started(made, nodes)
    assert briefly.fits == ()
    assert len(briefly.restore_refused) == 20
    nowhere, _ = started(made, nodes[-1:])
    assert nowhere.plan is None
    assert len(nowhere.reasons) == len(nowhere.restore_refused) == 1


def test_workers_that_shared_a_node_start_together_and_old_nodes_come_first() -> None:
    made = snapshot(worker(0, "node-1"), worker(1, "node-1"), worker(2, "node-2"))
    nodes = [Candidate(facts(f"node-{n}", files=OTHER)) for n in (1, 3, 4)]
    nodes.append(Candidate(facts("node-2"), "lost", "dead"))
    assert places(started(made, nodes)[0]) == {0: "node-1", 1: "node-1", 2: "node-3"}


# -- old hosts in commands -------------------------------------------------------------------------

COMMAND = ("torchrun", "--master-addr", "10.0.0.1", "--rdzv=10.0.0.1:29500", "x10.0.0.11")


def naming(**changes: object) -> WorkerRecord:
    return worker(0, "node-1", **{"command": COMMAND, **changes})


def test_commands_that_name_hosts_which_are_others_now_are_refused() -> None:
    record = naming(named=("MASTER_ADDR=10.0.0.1", "OTHER=10.0.0.9"))
    planned, _ = started(snapshot(record), [Candidate(facts("node-2", files=OTHER))])
    assert planned.plan is None
    assert planned.failure is not None
    of = "names 10.0.0.1 of node-1, whose workers start on node-2 (10.0.0.2)"
    assert planned.failure.details == (
        f"worker 0: argument 2 (10.0.0.1) {of}",
        f"worker 0: argument 3 (--rdzv=10.0.0.1:29500) {of}",
        f"worker 0: MASTER_ADDR in its environment {of}",
    )
    assert "--old-addresses move" in planned.failure.advice


@pytest.mark.parametrize(
    ("how", "moves", "told"),
    [
        (O.KEEP, (), "it stays as it is"),
        (O.MOVE, (AddressMove("10.0.0.1", "10.0.0.2"),), "it is replaced where it is an address"),
    ],
)
def test_an_operator_decides_about_them(
    how: OldAddresses, moves: tuple[AddressMove, ...], told: str
) -> None:
    planned, _ = started(snapshot(naming()), [Candidate(facts("node-2", files=OTHER))], how)
    assert planned.plan is not None
    assert planned.plan.addresses == moves
    assert all(note.endswith(told) for note in planned.plan.notes[2:])
    assert len(planned.plan.notes) == 4


def test_what_names_another_workers_old_host_counts_too() -> None:
    first, second = worker(0, "node-1"), worker(1, "node-2", command=COMMAND)
    nodes = [Candidate(facts(f"node-{n}", files=OTHER)) for n in (2, 3)]
    planned, _ = started(snapshot(first, second), nodes)
    assert planned.failure is not None
    assert "worker 1: argument 2 (10.0.0.1) names 10.0.0.1 of node-1" in planned.failure.details[0]


def test_names_of_nodes_and_gpus_that_are_not_there() -> None:
    uuid = "GPU-node-1-1"
    record = trainer(
        0, "node-1", command=("train", "--to=node-1"), named=(f"CUDA_VISIBLE_DEVICES={uuid}",)
    )
    planned, _ = started(snapshot(record), [Candidate(node("node-2", gpu_driver="1"))])
    assert planned.failure is not None
    host, gpu = planned.failure.details
    assert "argument 1 (--to=node-1) names node-1 of node-1" in host
    assert gpu == (
        f"worker 0: CUDA_VISIBLE_DEVICES in its environment names {uuid}, which node-2 does not "
        "have"
    )


def test_nothing_is_named_where_everybody_stays() -> None:
    planned, _ = started(snapshot(naming()), [Candidate(facts("node-1", files=OTHER))])
    assert places(planned) == {0: "node-1"}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("10.0.0.1", "10.0.0.1:29500", True),
        ("10.0.0.1", "tcp://10.0.0.1.", True),
        ("10.0.0.1", "a=10.0.0.1,b", True),
        ("10.0.0.1", "10.0.0.11", False),
        ("10.0.0.1", "110.0.0.1", False),
        ("10.0.0.1", "10.0.0.1.5", False),
        ("fd00::1", "[fd00::1]:29500", True),
        ("fd00::1", "fd00::12", False),
        ("fd00::1", "fd00::1:2", False),
        ("node-1", "--to=node-1", True),
        ("node-1", "node-10", False),
        ("node-1", "node-1.example", False),
        ("node-1", "my-node-1", False),
    ],
)
def test_a_name_is_found_where_it_stands_alone(name: str, text: str, found: bool) -> None:
    assert bool(as_a_word(name).search(text)) is found


# -- the round -------------------------------------------------------------------------------------


def mismatched() -> World:
    """A job with a snapshot that no node fits any more: the program was changed."""
    world = half_lost_world()
    for each in world.nodes.values():
        each.facts = replace(each.facts, files=OTHER)
    return world


def restore(world: World, *, cold: bool = True) -> None:
    files = tuple(n.facts for n in world.nodes.values() if n.attached)
    made = world.snapshots["a1"]
    asked = events.RestoreRequested("llm", "r1", made, 0.0, 2000.0, files, cold_start=cold)
    world.event(asked)


def test_the_round_of_a_start() -> None:
    world = mismatched()
    seen: list[commands.SendOrder] = []
    world.watchers.append(lambda c: seen.append(c) if isinstance(c, commands.SendOrder) else None)
    restore(world)
    world.settle()
    record = world.restores["r1"]
    assert record.state is S.RUNNING
    assert (record.cold, record.snapshot, record.incarnation) == (True, "a1", 2)
    assert record.reason.startswith("started from scratch, not from snapshot a1, because no node")
    assert "program files differ: /usr/bin/python3" in record.cold_why
    assert {o.phase for o in seen} == {Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.RELEASE}
    assert all(o.cold for o in seen if o.phase is Phase.FETCH)
    assert incarnations(world) == {"node-1": [2], "node-2": [1], "node-3": [2]}
    (view,) = world.control.jobs()
    assert (view.state, view.nodes) == ("running", ("node-1", "node-3"))
    assert view.job.latest == "a1"


def test_without_the_wish_it_is_refused() -> None:
    world = mismatched()
    restore(world, cold=False)
    assert world.refused["r1"].failure.kind == "NoPlan"
    assert "r1" not in world.restores


def test_a_job_that_may_run_out_of_sight_is_not_started_beside_it() -> None:
    world = mismatched()
    world.lose("node-1", "power cut")
    restore(world)
    assert world.refused["r1"].failure.kind == "OldRunUnseen"


def test_a_start_has_no_rounds_of_devices() -> None:
    world = mismatched()
    made = world.snapshots["a1"]
    with_state = [
        replace(r, gpu_pids=(1001,), gpus=gpus(r.node), gpu_driver="1") for r in made.workers
    ]
    world.snapshots["a1"] = replace(made, workers=tuple(with_state))
    for each in world.nodes.values():
        each.facts = replace(each.facts, gpus=gpus(each.name), gpu_driver="2")
        if each.attached:
            world.attach(each.name)
    restore(world)
    world.settle()
    assert world.restores["r1"].state is S.RUNNING
    assert not {t.phase for t in world.restores["r1"].timings} & {
        Phase.GPU_RESTORE,
        Phase.GPU_UNLOCK,
    }


def test_a_worker_that_cannot_be_started_fails_it_and_nothing_is_left() -> None:
    world = mismatched()
    restore(world)
    answer_until(world, Phase.RELEASE)
    last = next(o for o in world.orders if o.node == "node-3")
    world.orders.remove(last)
    world.event(world.nodes["node-3"].fail(last, "the program is missing"))
    world.settle()
    record = world.restores["r1"]
    assert (record.state, record.cold) == (S.FAILED, True)
    assert isinstance(record.failure, Failure)
    assert incarnations(world) == {"node-1": [], "node-2": [1], "node-3": []}


def test_a_new_leader_goes_on_with_a_start_and_says_what_it_was() -> None:
    world = mismatched()
    restore(world)
    answer_until(world, Phase.RELEASE)
    world.new_leader()
    world.settle()
    record = world.restores["r1"]
    assert record.state is S.RUNNING
    assert record.cold
    assert record.reason.startswith("started from scratch, not from snapshot a1, because no node")
