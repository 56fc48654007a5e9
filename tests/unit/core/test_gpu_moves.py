"""Where ranks may get other GPUs, where only the same ones will do, and what they need there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.fit import Candidate
from coordinator.core.model import GpuHeld, NodeFacts, WorkerRecord
from coordinator.core.planner import Planned, plan
from tests.support.core_shims import GIB
from tests.unit.core.test_gpu_plans import devices, gpus, held, node, trainer
from tests.unit.core.test_planner import places, snapshot

HIDDEN = "the kernel's driver has 3 GPUs and 2 can be seen"
MOVED = {"GPU-node-1-0": "GPU-node-2-0", "GPU-node-1-1": "GPU-node-2-1"}


def onto(record: WorkerRecord, *nodes: NodeFacts) -> Planned:
    return plan(snapshot(record), [Candidate(each) for each in nodes])


def why_not(record: WorkerRecord, there: NodeFacts) -> tuple[str, ...]:
    """Of the one node."""
    planned = onto(record, there)
    assert planned.plan is None
    return planned.reasons[0].reasons


# -- who can move ----------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["570.172.08", "575.57.08", "550.54"])
def test_older_drivers_restore_onto_the_same_gpus_only(driver: str) -> None:
    record = held(0, "node-1", 30, 20)
    record = replace(record, gpu_driver=driver)
    there = node("node-2", gpu_driver=driver)
    refused = f"it has other GPUs, and driver {driver} restores onto the same ones in the same"
    assert why_not(record, there) == (f"{refused} order only",)
    at_home = onto(record, there, node("node-1", gpu_driver=driver))
    assert places(at_home) == {0: "node-1"}
    assert devices(at_home) == {}
    assert [each.node for each in at_home.reasons] == ["node-2"], "it has the same kind of GPUs"
    swapped = [replace(gpu, index=1 - gpu.index) for gpu in gpus("node-1")]
    assert why_not(record, node("node-1", swapped, gpu_driver=driver))[0].startswith(refused)
    exchanged = (gpus("node-1")[0], gpus("node-2")[1])
    assert why_not(record, node("node-1", exchanged, gpu_driver=driver))[0].startswith(refused)


def test_an_engine_without_a_map_restores_onto_the_same_gpus_only() -> None:
    record = held(0, "node-1", 30, 20)
    there = node("node-2", gpu_no_map=True)
    refused = "it has other GPUs, and its engine (library) takes no GPU map"
    assert why_not(record, there) == (refused,)
    home = node("node-1", gpu_no_map=True)
    assert devices(onto(record, there, home)) == {}
    # nodes that are alike but for this are told apart
    assert devices(onto(record, there, node("node-3"))) != {}
    planned = onto(record, there, node("node-3"))
    assert [each.node for each in planned.reasons] == ["node-2"]
    assert devices(onto(record, node("node-2"))) == MOVED


@pytest.mark.parametrize(
    ("driver", "doubted"),
    [("580.95.05", True), ("589.1", True), ("590.44.01", False), ("610.57", False), ("", False)],
)
def test_a_move_with_driver_580_is_noted_and_costs(driver: str, doubted: bool) -> None:
    record = replace(held(0, "node-1", 30, 20), gpu_driver=driver)
    planned = onto(record, node("node-2", gpu_driver=driver))
    assert planned.plan is not None
    assert bool(planned.plan.notes) == doubted
    if doubted:
        assert planned.plan.notes == (
            f"node-2, instead of node-1: its GPUs are others, and builds of driver {driver[:3]} "
            "are known that refuse that (`invalid argument`)",
        )
    exchanged = node("node-1", gpus("node-3"), gpu_driver=driver)
    at_home = onto(record, exchanged, node("node-2", gpu_driver=driver))
    assert places(at_home) == {0: "node-1"}, "it is the home, whatever its GPUs"


# -- what is not known whole -----------------------------------------------------------------------


def test_a_container_with_part_of_the_gpus_takes_its_own_snapshot() -> None:
    record = replace(held(0, "node-1", 30, 20), gpus_unseen=HIDDEN)
    home = node("node-1", gpus_unseen=HIDDEN)
    for old in (record, replace(record, gpus_unseen="")):  # snapshots of before say nothing of it
        at_home = onto(old, home)
        assert places(at_home) == {0: "node-1"}
        assert devices(at_home) == {}
    three = node("node-1", gpus("node-1", 3))  # it is given all of them now
    assert devices(onto(record, three)) == {}
    renamed = node("node-9", gpus("node-1"), gpus_unseen=HIDDEN)
    assert places(onto(record, renamed)) == {0: "node-9"}


def test_what_was_not_seen_whole_goes_nowhere_else() -> None:
    record = replace(held(0, "node-1", 30, 20), gpus_unseen=HIDDEN)
    refused = (
        f"of node-1's GPUs the snapshot does not know all ({HIDDEN}): only a node with the same "
        "ones can take it"
    )
    for there in (node("node-2"), node("node-2", gpus("node-2", 3)), node("node-1", gpus("new"))):
        assert why_not(record, there) == (refused,)


def test_each_refusal_names_the_home_of_its_own_worker() -> None:
    records = [replace(held(n, f"node-{n}", 30), gpus_unseen=HIDDEN) for n in (0, 1)]
    planned = plan(snapshot(*records), [Candidate(node("node-2"))])
    for told in planned.reasons:
        assert told.reasons[0].startswith(f"of node-{told.worker}'s GPUs the snapshot does not")


def test_nobody_moves_to_a_container_with_part_of_the_gpus() -> None:
    refused = (
        f"it has other GPUs, of which a map has to name every one, and {HIDDEN}: give its "
        "container every GPU"
    )
    assert why_not(trainer(0, "node-1"), node("node-2", gpus_unseen=HIDDEN)) == (refused,)


def test_a_gpu_that_did_not_tell_its_uuid_is_in_no_map() -> None:
    seen = (gpus("node-1")[0], replace(gpus("node-1")[1], uuid=""))
    record = replace(held(0, "node-1", 30), gpus=seen)
    assert "GPU 1 did not tell its UUID" in why_not(record, node("node-2"))[0]
    at_home = onto(record, node("node-1"))  # it answers again
    assert places(at_home) == {0: "node-1"}
    assert devices(at_home) == {}
    nameless = replace(record, gpus=seen[1:], gpu_held=())
    assert places(onto(nameless, node("node-1"))) == {0: "node-1"}
    assert "GPU 1 did not tell its UUID" in why_not(nameless, node("node-2"))[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": (), "gpu_driver": "", "gpu_held": ()},
        {"gpus": gpus("node-1", 1)},
        {"gpus": gpus("node-1", 1), "gpus_unseen": HIDDEN},
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_workers_of_a_node_share_what_one_of_them_saw(
    changes: dict[str, object], first: int
) -> None:
    saw_less = replace(held(first, "node-1", 1, 1), **changes)  # type: ignore[arg-type]
    made = snapshot(*sorted((saw_less, held(1 - first, "node-1", 30, 20)), key=lambda r: r.worker))
    planned = plan(made, [Candidate(node("node-2"))])
    assert devices(planned, 0) == devices(planned, 1) == MOVED


def test_part_of_the_gpus_is_more_than_none() -> None:
    none = trainer(0, "node-1", gpus=(), gpu_driver="")
    part = replace(held(1, "node-1", 1, 1), gpus_unseen=HIDDEN)
    renamed = Candidate(node("node-9", gpus("node-1")))
    assert places(plan(snapshot(none, part), [renamed])) == {0: "node-9", 1: "node-9"}


# -- device memory ---------------------------------------------------------------------------------


def test_no_less_is_needed_than_was_saved() -> None:
    grown = replace(held(0, "node-1", 10, 20), gpu_bytes=90 * GIB)  # when it was looked at: 30
    tight = node("node-2", gpus("node-2", used=90))
    assert why_not(grown, tight) == ("GPU 1: 60.0 GiB needed, 51.0 GiB free",)
    assert places(onto(held(0, "node-1", 10, 20), tight)) == {0: "node-2"}
    full = Candidate(node("node-1", gpus("node-1", used=141)), own=(0,))
    assert places(plan(snapshot(grown), [full])) == {0: "node-1"}, "and no less comes back"


@pytest.mark.parametrize(("used", "needed"), [(0, 40), (10, 40), (60, 60)])
def test_nor_where_it_is_not_known_who_held_what(used: int, needed: int) -> None:
    record = trainer(0, "node-1", used=used, gpu_bytes=80 * GIB)
    full = node("node-2", gpus("node-2", used=140))
    assert why_not(record, full) == tuple(
        f"GPU {at}: {needed}.0 GiB needed, 1.0 GiB free" for at in (0, 1)
    )


def test_never_more_than_a_gpu_has() -> None:
    odd = replace(held(0, "node-1", 1), gpu_bytes=150 * GIB)  # pinned memory of the host, too
    assert places(onto(odd, node("node-2"))) == {0: "node-2"}


def test_the_plan_says_by_what_memory_was_judged() -> None:
    known, unknown = held(0, "node-1", 30, 20), trainer(1, "node-2")
    made = snapshot(known, unknown)
    planned = plan(made, [Candidate(node("node-1")), Candidate(node("node-2"))])
    assert planned.plan is not None
    assert planned.plan.notes == (
        "what the workers held on the GPUs of node-2 is not known: all that was in use there "
        "counts as theirs",
    )
    nothing = replace(known, gpu_held=(GpuHeld("GPU-node-1-0", 0),))
    assert places(onto(nothing, node("node-2"))) == {0: "node-2"}
