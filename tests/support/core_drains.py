"""Words of drains for tests of the core: ask for one, serve it, and see how it stands."""

from __future__ import annotations

from coordinator.core import commands, drain_events, events
from coordinator.core.drain_events import NoticeGiven, NoticeKind
from coordinator.core.drain_records import DrainState
from coordinator.core.errors import NotFound
from coordinator.core.failures import failure_of
from coordinator.core.model import AttemptState, Failure
from tests.support.core_world import World

D, K = DrainState, NoticeKind


def drain(
    world: World,
    node: str = "node-2",
    deadline_s: float = 0.0,
    *,
    notice: bool = False,
    why: str = "kernel update",
    session: str = "",
) -> str:
    """Ask for it; the id of the request."""
    request = f"drain {node} {world.now}"
    newest = {made.job: made for made in world.snapshots.values()}
    files = tuple(n.facts for n in world.nodes.values() if n.attached)
    world.event(
        drain_events.DrainRequested(
            node, request, why, deadline_s, 1000.0 + world.now,
            tuple(newest.values()), files, notice, session,
        )
    )  # fmt: skip
    return request


def undrain(world: World, node: str = "node-2") -> None:
    world.event(drain_events.UndrainRequested(node, "undrain"))
    world.store()


def serve(world: World) -> int:
    """What the server does with what the core asks for; how many that was."""
    due, world.due = world.due, []
    wanted, world.wanted = world.wanted, []
    for save in due:
        world.event(
            events.CheckpointRequested(
                save.job, f"a{len(world.attempts) + 1}-{world.now:.1f}", save.cut, save.stop,
                save.deadline_s, 1000.0 + world.now, cause=save.reason, drain=save.drain,
                notice=save.notice,
            )
        )  # fmt: skip
    for ask in wanted:
        good = [name for name, made in world.snapshots.items() if not made.suspect]
        left = [name for name in good if name not in ask.skip]
        if not left and not ask.snapshot:
            gone = failure_of(NotFound("no snapshot that can be relied on"))
            world.event(events.RestoreUnready(ask.job, gone, ask.drain))
            continue
        named = ask.snapshot if ask.snapshot in good or not left else ""
        world.event(
            events.RestoreRequested(
                ask.job, f"r{len(world.restores) + 1}-{world.now:.1f}",
                world.snapshots[named or left[-1]], 0.0, 1000.0 + world.now,
                tuple(n.facts for n in world.nodes.values() if n.attached),
                cause=ask.cause, drain=ask.drain, anywhere=ask.anywhere,
            )
        )  # fmt: skip
    notices, world.notices = world.notices, []
    for each in notices:
        drain(world, each.node, each.deadline_s, notice=True, why=each.why, session=each.session)
    return len(due) + len(wanted) + len(notices)


def unwritten(world: World) -> None:
    """The store does not take the one thing that it was asked to write."""
    (write,) = world.writes
    world.writes.clear()
    assert isinstance(write, commands.PutDrain)
    made = write.record
    failure = Failure("StoreError", "etcd is away")
    world.event(drain_events.DrainUnstored(made.node, made.state, made.requested_unix_s, failure))


def go_on(world: World, seconds: float = 5.0) -> None:
    """Everybody answers, time passes, and what is asked for is begun, so long."""
    until = world.now + seconds
    while world.now < until:
        serve(world)
        world.settle()
        tell(world)
        world.settle()
        world.tick(0.5)


def tell(world: World) -> None:
    """Every shim in reach tells how its workers are."""
    for node in world.nodes.values():
        if node.attached:
            world.report(node.name)


def record(world: World, node: str = "node-2") -> object:
    return world.control.drain(node)


def state(world: World, node: str = "node-2") -> DrainState:
    found = world.control.drain(node)
    return found.state if found is not None else D.UNDRAINED


def places(world: World) -> list[str]:
    (job,) = world.control.jobs()
    return list(job.nodes) if job.state == "running" else [job.state]


def on(world: World, node: str) -> list[str]:
    """How the workers on a node are that have not ended."""
    (view,) = (each for each in world.control.nodes() if each.facts.node == node)
    return [worker.state for worker in view.workers if worker.state != "exited"]


def notice(world: World, kind: NoticeKind = K.DRAIN, deadline_s: float = 60.0) -> None:
    world.event(NoticeGiven("node-2", kind, deadline_s, "spot notice"))


def refused(world: World) -> list[tuple[str, bool]]:
    """What the shim was told since, and whether it may tell it again."""
    told, world.notices_refused = world.notices_refused, []
    return [(each.kind, each.again) for each in told]


def saved(world: World) -> int:
    return sum(each.state is AttemptState.COMMITTED for each in world.control.attempts())


def replaced(world: World, name: str = "node-2") -> None:
    """A shim of the same name in another process, on which nothing runs."""
    world.nodes[name].workers.clear()
    world.attach(name, new_session=True)
