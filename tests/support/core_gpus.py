"""Nodes with GPUs that fall sick, for tests of the core."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core import events, health_events
from coordinator.core.health_records import GpuTrouble, TroubleKind
from coordinator.core.health_rules import HealthRules
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.model import Gpu, Phase
from coordinator.health.table import rules
from tests.support.core_checks import answer_until
from tests.support.core_shims import GIB, Node, facts
from tests.support.core_world import World

X = TroubleKind.XID
POLICY = JobPolicy("llm", on_failure=OnFailure.RESTORE, tries=2, wait_s=120.0)


def uuid(node: str, index: int = 0) -> str:
    return f"GPU-{node}-{index}"


def gpu(node: str, index: int = 0) -> Gpu:
    """One GPU like all others."""
    memory = 141 * GIB
    address = f"00000000:{23 + index:02x}:00.0"
    return Gpu(index, uuid(node, index), "NVIDIA H200", memory, memory, address, "9.0", minor=index)


def gpu_node(name: str) -> Node:
    """A node with two GPUs."""
    has = (gpu(name, 0), gpu(name, 1))
    driver = {"gpu_driver": "580.95.05", "cuda_version": "13.0", "gpu_engine": "library"}
    return Node(facts(name, gpus=has, **driver))


def gpu_world(
    *more: str,
    policy: JobPolicy | None = POLICY,
    health: HealthRules | None = None,
    took_s: float = 0.0,
) -> World:
    """A job of two workers with GPUs on node-1 and node-2, with a snapshot, and further nodes.

    `took_s`: so long its checkpoint took, at least.
    """
    made = World(health=health or rules())
    for name in ("node-1", "node-2", *more):
        made.node(gpu_node(name))
    made.start("llm", ["node-1", "node-2"], ranks=2, gpu=True)
    if policy is not None:
        made.event(events.PolicyChanged(policy))
    made.tick(2.0)
    made.checkpoint("llm", "a1")
    if took_s:
        answer_until(made, Phase.DUMP)
        made.tick(took_s)
    made.settle()
    made.tick(1.0)
    return made


def trouble(
    node: str, code: int = 79, *, index: int = 0, kind: TroubleKind = X, count: int = 1,
    fresh: bool = True,
) -> GpuTrouble:  # fmt: skip
    return GpuTrouble(uuid(node, index), index, kind, code, count, "nvml", fresh)


def told(world: World, node: str, *troubles: GpuTrouble) -> None:
    """The node's shim tells all the trouble that its GPUs have."""
    shim = world.nodes[node]
    shim.troubles = tuple(replace(each, fresh=False) for each in troubles)
    world.event(health_events.GpuTroubleTold(node, troubles))


def story(world: World, job: str = "llm") -> str:
    return " | ".join(line.text for line in world.control.recovery(job).story)


def health(world: World, node: str) -> str:
    (view,) = (each for each in world.control.nodes() if each.facts.node == node)
    return " | ".join(view.health)
