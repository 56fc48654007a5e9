"""GPUs in plans: what has to match, what only costs, and the map of every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.devices import There, Wanted, device_map
from coordinator.core.fit import Candidate
from coordinator.core.model import Gpu, GpuHeld, GpuMove, NodeFacts, WorkerRecord
from coordinator.core.planner import Planned, plan
from tests.support.core_shims import GIB, facts
from tests.unit.core.test_planner import places, snapshot, worker

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
DRIVER = "590.44.01"


def gpus(node: str, count: int = 2, *, linked: bool = True, used: int = 0, **changes: object):  # type: ignore[no-untyped-def]
    """GPUs of a node, alike; `used` is in GiB of each."""
    uuids = [f"GPU-{node}-{index}" for index in range(count)]
    return tuple(
        replace(
            Gpu(
                index=index,
                uuid=uuid,
                model=H200,
                memory_bytes=141 * GIB,
                memory_free_bytes=(141 - used) * GIB,
                pci_address=f"00000000:{0x17 + index:02x}:00.0",
                architecture="9.0",
                links=tuple(other for other in uuids if other != uuid) if linked else (),
                minor=index,
            ),
            **changes,  # type: ignore[arg-type]
        )
        for index, uuid in enumerate(uuids)
    )


def node(name: str, found: Sequence[Gpu] | None = None, **changes: object) -> NodeFacts:
    own: dict[str, object] = {"gpus": gpus(name) if found is None else tuple(found)}
    return facts(name, **{**own, "gpu_driver": DRIVER, "gpu_engine": "library", **changes})


def trainer(number: int, at: str, used: int = 40, **changes: object) -> WorkerRecord:
    """A worker with state on GPUs."""
    own: dict[str, object] = {"gpus": gpus(at, used=used), "gpu_pids": (1001,)}
    return worker(number, at, **{**own, "gpu_driver": DRIVER, "nccl": "rebuild", **changes})


def devices(planned: Planned, number: int = 0) -> dict[str, str]:
    assert planned.plan is not None, planned.failure
    return {move.old: move.new for move in planned.plan.placements[number].devices}


def test_the_same_gpus_need_no_map() -> None:
    planned = plan(snapshot(trainer(0, "node-1")), [Candidate(node("node-1"))])
    assert places(planned) == {0: "node-1"}
    assert devices(planned) == {}


def test_another_node_gets_a_map_of_every_gpu_in_order() -> None:
    shuffled = node("node-2", gpus("node-2")[::-1])
    planned = plan(snapshot(trainer(0, "node-1")), [Candidate(shuffled)])
    assert devices(planned) == {
        "GPU-node-1-0": "GPU-node-2-0",
        "GPU-node-1-1": "GPU-node-2-1",
    }


def test_workers_that_shared_gpus_get_the_same_map() -> None:
    made = snapshot(trainer(0, "node-1"), trainer(1, "node-1"), worker(2, "node-1"))
    planned = plan(made, [Candidate(node("node-2"))])
    assert devices(planned, 0) == devices(planned, 1) != {}
    assert devices(planned, 2) == {}  # it has no state on a GPU


def test_who_has_no_gpu_state_does_not_ask_for_gpus() -> None:
    planned = plan(snapshot(worker(0, "node-1")), [Candidate(facts("node-2"))])
    assert places(planned) == {0: "node-2"}


ONE_OTHER = (*gpus("node-2", 1), replace(gpus("node-2")[1], model=A100))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": ()}, "it has no GPU, needed 2 NVIDIA H200"),
        (
            {"gpus": gpus("node-2", 8)},
            "GPUs: it has 8 NVIDIA H200, needed exactly 2 NVIDIA H200, since every GPU of the node "
            "is part of the map",
        ),
        (
            {"gpus": gpus("node-2", 1)},
            "GPUs: it has 1 NVIDIA H200, needed exactly 2 NVIDIA H200, since every GPU of the node "
            "is part of the map",
        ),
        ({"gpus": ONE_OTHER}, f"GPU 1 is {A100}, needed {H200}"),
        (
            {"gpus": (gpus("node-2")[0], replace(gpus("node-2")[1], architecture="8.0"))},
            "GPU 1 has compute capability 8.0, needed 9.0",
        ),
        (
            {"gpus": (gpus("node-2")[0], replace(gpus("node-2")[1], memory_bytes=80 * GIB))},
            "GPU 1 has 80.0 GiB of memory, needed 141.0 GiB",
        ),
        ({"gpu_driver": "590.44.02"}, f"NVIDIA driver 590.44.02, needed exactly {DRIVER}"),
        (
            {"gpus": (gpus("node-2")[0], replace(gpus("node-2")[1], mig=True))},
            "GPU 1 is divided into instances (MIG), which cannot be saved",
        ),
        (
            {"gpus": (gpus("node-2")[0], replace(gpus("node-2")[1], sick="Xid 79"))},
            "GPU 1 (GPU-node-2-1) is sick: Xid 79",
        ),
        (
            {"gpus": (gpus("node-2")[0], gpus("node-2", used=120)[1])},
            "GPU 1: 40.0 GiB needed, 21.0 GiB free",
        ),
        ({"gpu_trouble": "NVML hangs"}, "its GPUs cannot be relied on: NVML hangs"),
        (
            {"gpu_engine": ""},
            "nothing there can put device memory back (cuda-checkpoint, cuda-bindings)",
        ),
    ],
)
def test_each_mismatch_is_a_reason(changes: dict[str, object], reason: str) -> None:
    planned = plan(snapshot(trainer(0, "node-1")), [Candidate(node("node-2", **changes))])
    assert planned.plan is None
    assert planned.reasons[0].reasons == (reason,)
    # the same node is good enough for a worker without state on a GPU
    assert plan(snapshot(worker(0, "node-1")), [Candidate(node("node-2", **changes))]).plan


def test_many_gpus_that_differ_are_told_in_few_words() -> None:
    made = snapshot(trainer(0, "node-1", gpus=gpus("node-1", 8)))
    planned = plan(made, [Candidate(node("node-2", gpus("node-2", 8, model=A100)))])
    assert planned.reasons[0].reasons[-1] == "and 4 more GPUs"
    assert len(planned.reasons[0].reasons) == 5


def test_without_an_inventory_at_the_checkpoint_only_the_same_node_fits() -> None:
    made = snapshot(trainer(0, "node-1", gpus=(), gpu_driver=""))
    bare = [Candidate(facts("node-1")), Candidate(facts("node-3"))]
    for nodes in ([Candidate(node("node-1")), Candidate(node("node-2"))], bare):
        planned = plan(made, nodes)
        assert places(planned) == {0: "node-1"}
        assert devices(planned) == {}
        refused = plan(made, nodes[1:])
        assert refused.plan is None
        assert refused.reasons[0].reasons == (
            "the snapshot does not say which GPUs node-1 had, so that only node-1 can take it",
        )


# -- device memory ---------------------------------------------------------------------------------


def held(number: int, at: str, *sizes: int) -> WorkerRecord:
    known = tuple(GpuHeld(f"GPU-{at}-{index}", size * GIB) for index, size in enumerate(sizes))
    return trainer(number, at, used=100, gpu_held=known)


def test_what_processes_held_counts_where_it_is_known() -> None:
    tight = Candidate(node("node-2", gpus("node-2", used=111)))  # 30 GiB free
    assert plan(snapshot(trainer(0, "node-1", used=100)), [tight]).plan is None
    assert places(plan(snapshot(held(0, "node-1", 30, 20)), [tight])) == {0: "node-2"}
    two = snapshot(held(0, "node-1", 20), held(1, "node-1", 20))
    assert "GPU 0: 40.0 GiB needed, 30.0 GiB free" in plan(two, [tight]).reasons[0].reasons


def test_memory_of_the_jobs_own_old_workers_comes_back() -> None:
    full = node("node-1", gpus("node-1", used=141))
    for record in (held(0, "node-1", 100, 100), trainer(0, "node-1", used=100)):
        made = snapshot(record)
        assert plan(made, [Candidate(full)]).plan is None
        assert places(plan(made, [Candidate(full, own=(0,))])) == {0: "node-1"}


def test_only_what_the_own_worker_holds_comes_back() -> None:
    full = node("node-1", gpus("node-1", used=141))  # 20 of them in use by somebody else
    made = snapshot(held(0, "node-1", 100, 100), held(1, "node-2", 10, 10))
    planned = plan(made, [Candidate(full, own=(1,)), Candidate(node("node-2"))])
    assert places(planned) == {0: "node-2", 1: "node-1"}
    told = next(each for each in planned.reasons if each.worker == 0)
    assert told.reasons[0] == "GPU 0: 100.0 GiB needed, 10.0 GiB free"


# -- what only costs -------------------------------------------------------------------------------

MOVED = tuple(
    replace(gpu, pci_address=f"00000000:{0xC0 + gpu.index:02x}:00.0") for gpu in gpus("node-2")
)


def test_the_same_pci_layout_is_preferred_between_nodes_that_fit() -> None:
    nodes = [Candidate(node("node-2", MOVED)), Candidate(node("node-3"))]
    planned = plan(snapshot(held(0, "node-1", 30, 20)), nodes)
    assert places(planned) == {0: "node-3"}
    assert planned.plan is not None
    assert planned.plan.notes == ()
    alone = plan(snapshot(held(0, "node-1", 30, 20)), nodes[:1])
    assert alone.plan is not None
    assert alone.plan.notes == (
        "node-2, instead of node-1: its GPUs have other PCI addresses or device files",
    )


def test_staying_counts_more_than_any_layout() -> None:
    nodes = [Candidate(node("node-2", MOVED), own=(0,)), Candidate(node("node-3"))]
    assert places(plan(snapshot(trainer(0, "node-1")), nodes)) == {0: "node-2"}


def test_nvlink_is_hard_only_for_communicators_that_were_saved_alive() -> None:
    bare = [Candidate(node("node-2", gpus("node-2", linked=False)))]
    rebuilt = plan(snapshot(held(0, "node-1", 30, 20)), bare)
    assert rebuilt.plan is not None
    assert rebuilt.plan.notes == ("node-2, instead of node-1: NVLink connects its GPUs otherwise",)
    alive = plan(snapshot(trainer(0, "node-1", nccl="keep")), bare)
    assert alive.plan is None
    assert alive.reasons[0].reasons == (
        "NVLink connects its GPUs otherwise, and NCCL's communicators were saved alive",
    )


def test_explained() -> None:
    nodes = [
        Candidate(node("node-1"), "lost", "power cut"),
        Candidate(node("node-2", MOVED)),
        Candidate(node("node-3")),
        Candidate(node("node-4")),
        Candidate(node("node-5"), own=(1,)),
        Candidate(node("node-6", gpu_driver="570.1")),
    ]
    made = snapshot(trainer(0, "node-1"), trainer(1, "node-5"))
    planned = plan(made, nodes, explain=True)
    assert places(planned) == {0: "node-3", 1: "node-5"}
    told = {(fit.worker, fit.node): (fit.chosen, fit.why) for fit in planned.fits}
    chosen = [pair for pair, (taken, _) in told.items() if taken]
    assert chosen == [(0, "node-3"), (1, "node-5")]
    assert told[0, "node-2"][1] == (
        "it fits, and costs more than node-3: its GPUs have other PCI addresses or device files"
    )
    assert told[0, "node-4"][1] == "it fits as well as node-3, which comes first by name"
    assert told[0, "node-5"][1] == "it fits, and worker 1 gets it"
    assert told[1, "node-4"][1] == (
        "it fits, and costs more than node-5: that node is free; node-5: it was there when the "
        "snapshot was taken"
    )
    refused = {(each.worker, each.node) for each in planned.reasons}
    assert refused == {(w, n) for w in (0, 1) for n in ("node-1", "node-6")}
    assert not refused & told.keys()
    assert plan(made, nodes).fits == ()


# -- whatever nodes there are ----------------------------------------------------------------------

KINDS = st.sampled_from([H200, H200, H200, A100])


@st.composite
def gpu_clusters(draw: st.DrawFn) -> tuple[list[WorkerRecord], list[Candidate]]:
    records: list[WorkerRecord] = []
    homes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    models = {
        home: draw(st.lists(KINDS, min_size=1, max_size=3))
        for home in sorted({*homes, *range(1, 6)})
    }

    def found(at: int) -> tuple[Gpu, ...]:
        return tuple(
            replace(gpu, model=model)
            for gpu, model in zip(gpus(f"node-{at}", len(models[at])), models[at], strict=True)
        )

    for number, home in enumerate(homes):
        has_state = draw(st.booleans())
        state = {"gpus": found(home), "gpu_pids": (1,) if has_state else ()}
        records.append(trainer(number, f"node-{home}", **state))
    nodes = []
    for at in draw(st.sets(st.integers(1, 5), min_size=1)):
        sick = draw(st.sampled_from(["", "", "", "ECC"]))
        mine = tuple(replace(gpu, sick=sick) for gpu in found(at))
        state = draw(st.sampled_from(["attached", "attached", "lost"]))
        nodes.append(Candidate(node(f"node-{at}", draw(st.permutations(mine))), state, "dead"))
    return records, nodes


@settings(max_examples=200, deadline=None)
@given(gpu_clusters())
def test_every_map_is_whole_and_pairs_what_is_alike(
    case: tuple[list[WorkerRecord], list[Candidate]],
) -> None:
    records, nodes = case
    planned = plan(snapshot(*records), nodes, explain=True)
    if planned.plan is None:
        return
    here = {n.facts.node: {g.uuid: g for g in n.facts.gpus} for n in nodes}
    for placement in planned.plan.placements:
        record = records[placement.worker]
        old = {g.uuid: g for g in record.gpus}
        there = here[placement.to_node]
        if not record.gpu_pids:
            assert placement.devices == ()
            continue
        assert not any(gpu.sick or gpu.mig for gpu in there.values())
        if placement.devices == ():
            assert old.keys() == there.keys(), "no map, and other GPUs"
            assert placement.to_node == placement.from_node
            continue
        assert placement.to_node != placement.from_node
        assert [move.old for move in placement.devices] == list(old), "the whole map, in order"
        assert {move.new for move in placement.devices} == there.keys(), "every GPU of the node"
        assert len({move.new for move in placement.devices}) == len(placement.devices)
        for move in placement.devices:
            assert old[move.old].model == there[move.new].model
            assert old[move.old].index == there[move.new].index


def moved(old: Sequence[Gpu], new: Sequence[Gpu]) -> tuple[GpuMove, ...]:
    """The map from the GPUs of a record to those of a node."""
    want = Wanted((trainer(0, "node-1", gpus=tuple(old)),))
    return device_map(want, There(node("node-1", new)))


@given(st.lists(st.integers(0, 9), unique=True, min_size=1), st.randoms())
def test_the_identity_is_empty_whatever_the_order(numbers: list[int], random) -> None:  # type: ignore[no-untyped-def]
    mine = [replace(gpus("node-1", 1)[0], index=n, uuid=f"GPU-{n}") for n in numbers]
    again = [replace(gpu, index=at) for at, gpu in enumerate(mine)]
    random.shuffle(again)
    assert moved(mine, again) == ()


def test_one_gpu_that_was_changed_makes_a_whole_map() -> None:
    mine = gpus("node-1", 3)
    changed = (mine[0], replace(mine[1], uuid="GPU-new"), mine[2])
    assert moved(mine, changed) == (
        GpuMove("GPU-node-1-0", "GPU-node-1-0"),
        GpuMove("GPU-node-1-1", "GPU-new"),
        GpuMove("GPU-node-1-2", "GPU-node-1-2"),
    )
