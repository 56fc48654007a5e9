"""Every scenario, cut short after each line: the coordinator dies there, another takes over.

The next leader has nothing but what the store holds, read back through the real store, and what the
shims say that attach to it. What was on its way is lost, or it arrived and only the answer is lost.
The end is the same as without the crash wherever the record allows going on; else what was under
way is undone, and every worker runs. The invariants are checked at each step on the way.
"""

from itertools import product
from pathlib import Path

import pytest

from coordinator.core.model import AttemptRecord, AttemptState, RestoreRecord, RestoreState
from tests.scenarios.run import HERE, Scenario
from tests.scenarios.test_scenarios import SCENARIOS
from tests.support.core_invariants import Invariants, check_ends
from tests.support.core_world import World

A, R = AttemptState, RestoreState
Ending = AttemptState | RestoreState
GOES_ON: dict[Ending, Ending] = {
    A.PERSISTING: A.COMMITTED,
    R.RELEASING: R.RUNNING,
}  # if nobody has let go
SETTLED: dict[Ending, Ending] = {
    A.STOPPING: A.COMMITTED,
    A.COMMITTED: A.COMMITTED,
    R.RUNNING: R.RUNNING,
}
CASES = [
    (path, at)
    for path in SCENARIOS
    for at in range(1, sum(line.startswith("> ") for line in path.read_text().splitlines()) + 1)
]


def lines_of(path: Path) -> list[str]:
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("> ")]


def played(path: Path, at: int) -> World:
    """The world after so many lines."""
    scenario = Scenario()
    Invariants(scenario.world)
    for line in lines_of(path)[:at]:
        scenario.run(line)
    return scenario.world


def rest(world: World) -> None:
    """Whatever is under way comes to its end; then the nodes that are away come back."""
    world.settle()
    world.tick(5000)
    world.settle()
    for node in [n for n in world.nodes.values() if not n.attached]:
        world.attach(node.name)
    for node in world.nodes.values():
        world.report(node.name)
    world.settle()
    world.tick(5000)
    world.settle()


def crash(world: World, *, written: bool, obeyed: bool) -> None:
    """The coordinator dies; what it had sent to the store and to shims arrives, or does not."""
    if written:
        for write in world.writes:
            world.apply(write)
    if obeyed:
        for order in world.orders:
            node = world.nodes[order.node]
            if node.attached:
                node.carry_out(order)
        for task in world.keeping.tasks:
            world.keeping.done(task)
    world.new_leader()


def ends(world: World) -> dict[str, Ending]:
    found: dict[str, AttemptRecord | RestoreRecord] = {**world.attempts, **world.restores}
    return {name: record.state for name, record in found.items()}


@pytest.mark.parametrize(("path", "at"), CASES, ids=lambda v: getattr(v, "stem", str(v)))
def test_a_crash_after_a_step(path: Path, at: int) -> None:
    undisturbed = played(path, at)
    rest(undisturbed)
    without = ends(undisturbed)
    for written, obeyed in product((False, True), repeat=2):
        world = played(path, at)
        crash(world, written=written, obeyed=obeyed)
        found = ends(world)  # what the new leader was left with
        rest(world)
        check_ends(world)
        for name, state in found.items():
            told = f"{name}, found {state} ({written=}, {obeyed=})"
            assert ends(world)[name] in allowed(state, without.get(name)), told
        records = (*world.attempts.values(), *world.restores.values())
        assert not any(record.owed for record in records), "all nodes came back, all is paid"
        dying = [name for name, made in world.snapshots.items() if made.deleting]
        assert not dying, "what is being deleted goes in the end"
        check_goes_on(world)


def allowed(found: Ending, without: Ending | None) -> set[Ending]:
    """How something may end that the next leader finds so, and that ends so without a crash."""
    if found in SETTLED:
        return {SETTLED[found]}
    given_up = A.ABORTED if isinstance(found, AttemptState) else R.FAILED
    if found in GOES_ON:
        best = GOES_ON[found]
        return {best} if without is best else {best, given_up}
    return {given_up}


def check_goes_on(world: World) -> None:
    """Jobs that run whole can be saved."""
    for number, view in enumerate(world.control.jobs()):
        if view.state == "running" and not any(w.findings for w in view.workers):
            world.checkpoint(view.job.job, f"last-{number}")
            world.settle()
            assert world.attempts[f"last-{number}"].state is A.COMMITTED
            assert world.jobs[view.job.job].latest == f"last-{number}"


def test_every_line_of_every_scenario_is_crashed_at() -> None:
    assert {path for path, _ in CASES} == set(HERE.glob("*.txt"))
    assert len(CASES) > 150
