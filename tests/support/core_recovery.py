"""Words for tests of recoveries: the server's part of a restore, crashes, steps."""

from __future__ import annotations

from coordinator.core import commands, events
from coordinator.core.errors import NotFound
from coordinator.core.failures import failure_of
from coordinator.core.job_policy import JobPolicy, JobRecovery, OnFailure
from tests.support.core_checks import two_and_a_spare
from tests.support.core_world import World

POLICY = JobPolicy("llm", on_failure=OnFailure.RESTORE, tries=2, wait_s=60.0)


def watched(policy: JobPolicy = POLICY) -> World:
    """A job of two workers with a snapshot, a spare, and the policy."""
    made = two_and_a_spare()
    made.event(events.PolicyChanged(policy))
    made.tick(2.0)
    made.checkpoint("llm", "a1")
    made.settle()
    return made


def recovery(world: World) -> JobRecovery:
    return world.control.recovery("llm")


def story(world: World) -> str:
    return " | ".join(line.text for line in recovery(world).story)


def serve(world: World) -> commands.AskRestore:
    """What the server does when a restore is wanted: the newest snapshot that is not skipped."""
    (asked,) = world.wanted
    world.wanted.clear()
    skip = () if asked.scratch else asked.skip
    left = [name for name in world.snapshots if name not in skip]
    if not left:
        gone = failure_of(NotFound("job llm has no snapshot"))
        world.event(events.RestoreUnready("llm", gone))
        return asked
    name = f"r{len(world.restores) + 1}-{world.now:.0f}"
    world.event(
        events.RestoreRequested(
            "llm", name, world.snapshots[left[-1]], 0.0, 1000.0 + world.now,
            tuple(n.facts for n in world.nodes.values() if n.attached),
            cause=asked.cause, scratch=asked.scratch, failed_on=asked.failed_on,
        )
    )  # fmt: skip
    return asked


def run_on(world: World, step: int) -> None:
    """The ranks take steps, and tell."""
    for node in world.nodes.values():
        for worker in node.workers.values():
            worker.boundaries = dict.fromkeys(worker.boundaries, step)
        if node.attached:
            world.report(node.name)


def saved(world: World, attempt: str, step: int) -> None:
    """The job runs on to a step and is saved there."""
    run_on(world, step - 1)
    world.checkpoint("llm", attempt)
    world.settle()
    assert world.snapshots[attempt].step == step


def crash(world: World, name: str = "node-2", code: int = 1, step: int = 0) -> None:
    """The worker on a node ends; `step`: as its shim tells."""
    node = world.nodes[name]
    for (job, number), worker in list(node.workers.items()):
        world.event(events.WorkerExited(name, job, number, worker.incarnation, code, step=step))
        node.workers.pop((job, number))


def back(world: World) -> commands.AskRestore:
    """Wait for what the recovery asks for and carry it out."""
    for _ in range(80):
        if world.wanted:
            break
        world.tick(1.0)
    asked = serve(world)
    world.settle()
    for node in list(world.nodes.values()):
        if node.attached:  # an old worker that was fenced there has ended
            world.report(node.name)
    world.settle()
    world.tick(2.0)
    return asked
