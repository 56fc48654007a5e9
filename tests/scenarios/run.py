"""Scenarios: a story in a tiny language, and under each line everything the core did about it.

    > checkpoint llm a1          what happens; see the verbs below
    store PutAttempt ADMITTING   what the core decided, one command a line

Lines that begin with # are comments. `python -m tests.scenarios.run --rewrite` writes the
expectations anew (read the difference before it is committed).
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coordinator.core import commands, events
from coordinator.core.errors import IllegalEvent
from coordinator.core.kept import Retention
from coordinator.core.model import Cut, Failure, Finding, Phase, Severity
from tests.support.core_keeping import Keeping
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World

HERE = Path(__file__).parent
LOST_TEXT = "its stream broke"


def command_line(command: commands.Command) -> str:
    """One command in one line."""
    if isinstance(command, commands.SendOrder):
        return _order_line(command)
    if isinstance(command, commands.Announce):
        return _announce_line(command)
    if isinstance(command, commands.PutAttempt | commands.PutRestore):
        return f"store {type(command).__name__} {command.record.state}"
    if isinstance(command, commands.CommitSnapshot):
        made = command.snapshot
        return f"store CommitSnapshot step {made.step}, world {made.world_size}, cut {made.cut}"
    if isinstance(command, commands.AdmitRestore):
        record = command.record
        to = " ".join(f"{p.worker}:{p.from_node}->{p.to_node}" for p in record.plan.placements)
        return f"store AdmitRestore incarnation {record.incarnation}, {to}"
    if isinstance(command, commands.FenceWorkers):
        fenced = " ".join(f"{s.job}/{s.worker}" for s in command.workers)
        return f"fence {command.node} {fenced}: {command.reason}"
    if isinstance(command, commands.AdmitWorker):
        who = f"{command.job}/{command.worker}"
        return f"admit {who} on {command.node} (incarnation {command.incarnation})"
    if isinstance(command, commands.DeferWorker):
        return f"defer {command.job}/{command.worker} on {command.node}: {command.reason}"
    if isinstance(command, commands.Refuse):
        return _refuse_line(command)
    return _keeping_line(command)


def _refuse_line(command: commands.Refuse) -> str:
    failure = command.failure
    return "\n".join(
        [f"refuse {failure.kind}: {failure.what}", *(f"  {line}" for line in failure.details)]
    )


def _keeping_line(command: commands.Command) -> str:
    if isinstance(command, commands.BeginRun):
        record = command.record
        return f"store BeginRun incarnation {record.incarnation}, {record.workers} workers"
    if isinstance(command, commands.SendTask):
        keep = f", keep {' '.join(each.place for each in command.keep)}" if command.keep else ""
        what = f"collect {' '.join(command.dead)}{keep}" if command.dead else "list"
        return f"task for {command.node}: {what} (within {command.deadline_s:g}s)"
    names = " ".join(getattr(command, "snapshots", getattr(command, "attempts", ())))
    return f"store {type(command).__name__} {names}".rstrip()


def _order_line(order: commands.SendOrder) -> str:
    extra = [f"within {order.deadline_s:g}s"]
    extra += [f"hold {order.hold_s:g}s"] if order.hold_s else []
    extra += [f"target {order.target}"] if order.target else []
    extra += ["kill"] if order.kill else []
    extra += [f"{m.old}=>{m.new}" for m in order.addresses]
    return f"order {order.phase} worker {order.worker} on {order.node} ({', '.join(extra)})"


def _announce_line(told: commands.Announce) -> str:
    awaited = [f"{worker}@{node}" for worker, node, _, _ in told.awaited]
    waits = f" [awaits {' '.join(awaited)}]" if awaited else ""
    last = " (last)" if told.last else ""
    return f"tell {told.state}{last}: {told.reason}{waits}"


class Scenario:
    """The interpreter: one method a verb."""

    def __init__(self) -> None:
        self.world = World()
        self.lines: list[str] = []
        self.world.watchers.append(lambda command: self.lines.append(command_line(command)))
        self.kept: events.OrderAnswered | None = None

    def run(self, line: str) -> list[str]:
        """Do what a line says and return what the core did."""
        self.lines = []
        words, _, text = line.partition(": ")
        verb, *rest = words.split()
        told = len(self.world.control.story())
        act: Callable[..., None] = getattr(self, f"do_{verb.replace('-', '_')}")
        try:
            act(*rest, **({"text": text} if text else {}))
        except IllegalEvent as error:
            self.lines.append(f"illegal {str(error).split(':')[0]}")
        for decision in self.world.control.story()[told:]:
            if decision.ignored:
                self.lines.append(f"ignored {decision.cause}: {decision.reason}")
        return [part for line in self.lines for part in line.split("\n")]

    # -- the verbs -----------------------------------------------------------------------------

    def do_node(self, name: str, *changes: str) -> None:
        """A shim attaches; `criu_version=4.1` and the like make its node differ."""
        named = dict(change.split("=", 1) for change in changes)
        made = {k: int(v) if v.isdigit() else v for k, v in named.items()}
        self.world.node(Node(facts(name, **made)))

    def do_job(self, job: str, *nodes: str) -> None:
        """A job starts with one worker of two ranks on each node named."""
        self.world.start(job, list(nodes), ranks=2, at=10)

    def do_ranks(self, job: str, *nodes: str) -> None:
        """A job starts with a worker for each rank; a node named twice has two of them."""
        self.world.start(job, list(nodes), ranks=1, at=10)

    def do_run(self, job: str, worker: str, workers: str, node: str) -> None:
        """`shim run` on a node that had no shim, or whose shim ended: `run llm 1 2 node-3`."""
        at = self.world.nodes[node]
        number, count = int(worker), int(workers)
        made = Worker(job, number, count, count * 2, {number * 2 + r: 1 for r in range(2)})
        at.workers[(job, number)] = made
        self.world.attach(node, new_session=True)

    def do_steps(self, job: str, *boundaries: str) -> None:
        """Ranks 0, 1, … have finished these steps."""
        for node in self.world.nodes.values():
            for (of, _), worker in node.workers.items():
                if of == job:
                    worker.boundaries = {r: int(boundaries[r]) for r in worker.boundaries}
            self.world.report(node.name)

    def do_finding(self, node: str, severity: str, code: str, text: str) -> None:
        """The preflight of the workers on a node finds something."""
        for worker in self.world.nodes[node].workers.values():
            worker.findings = (Finding(Severity(severity), code, text),)
        self.world.report(node)

    def do_checkpoint(self, job: str, attempt: str, *how: str) -> None:
        """An operator asks; `freeze`, `stop` and `deadline=60` may follow."""
        deadline = [float(h.split("=")[1]) for h in how if h.startswith("deadline=")]
        self.world.checkpoint(
            job,
            attempt,
            cut=Cut.FREEZE if "freeze" in how else Cut.STEP,
            stop="stop" in how,
            deadline_s=deadline[0] if deadline else 0.0,
        )

    def do_restore(self, job: str, restore: str, snapshot: str) -> None:
        """An operator asks for a restore."""
        self.world.restore(job, restore, snapshot)

    def do_abort(self, action: str, text: str = "") -> None:
        """An operator gives an action up."""
        self.world.event(events.AbortRequested(action, text))

    def do_store(self, how: str = "answers", text: str = "etcd said no") -> None:
        """The store answers what it was asked before this line; or `refuses`; or `forgets`."""
        writes, self.world.writes = self.world.writes, []
        for write in writes:
            if how == "answers":
                self.world.writes.insert(0, write)
                self.world.store_one()
            elif how == "refuses":
                self._refuse(write, Failure("StoreError", text))

    def _refuse(self, write: commands.Command, failure: Failure) -> None:
        if isinstance(write, commands.CommitSnapshot):
            self.world.event(events.CommitRefused(write.snapshot.snapshot, failure))
        elif isinstance(write, commands.PutAttempt):
            self.world.event(events.StoreRefused(write.record.attempt, failure))
        elif isinstance(write, commands.AdmitRestore | commands.PutRestore):
            self.world.event(events.StoreRefused(write.record.restore, failure))
        elif isinstance(write, commands.BeginRun):
            self.world.event(events.RunRefused(write.record.job, failure))
        elif isinstance(write, Keeping.WRITES):
            self.world.event(events.StoreRefused(write.cleaning, failure))

    def _orders(self, phase: str, worker: str) -> list[commands.SendOrder]:
        return [
            o
            for o in self.world.orders
            if o.phase is Phase(phase) and worker in ("all", str(o.worker))
        ]

    def do_answer(self, phase: str, worker: str = "all") -> None:
        """Shims do what they were ordered in a phase."""
        for order in self._orders(phase, worker):
            if order in self.world.orders:
                self.kept = self.world.answer(order)

    def do_fail(self, phase: str, worker: str, text: str) -> None:
        """A shim could not."""
        order = self._orders(phase, worker)[0]
        self.world.orders.remove(order)
        self.world.event(self.world.nodes[order.node].fail(order, text))

    def do_again(self, *changes: str) -> None:
        """The last answer comes once more, perhaps changed: `epoch=7 node=node-3`."""
        assert self.kept is not None
        named = dict(change.split("=", 1) for change in changes)
        made = {k: int(v) if v.isdigit() else v for k, v in named.items()}
        self.world.event(replace(self.kept, **made))  # type: ignore[arg-type]

    def do_delete(self, *snapshots: str, text: str = "") -> None:
        """An operator asks that snapshots of llm be deleted; `force` may follow."""
        names = [each for each in snapshots if each != "force"]
        self.world.keeping.delete(*names, force="force" in snapshots)

    def do_retain(self, job: str, last: str) -> None:
        """An operator asks that so many of the newest snapshots of a job stay."""
        self.world.keeping.retain(job, Retention(keep_last=int(last)))

    def do_pin(self, snapshot: str, text: str) -> None:
        """An operator pins a snapshot."""
        self.world.keeping.pin(snapshot, text)

    def do_tasks(self, how: str = "done", text: str = "the file system is away") -> None:
        """Nodes do what they were asked about image stores; or it `fails`."""
        tasks, self.world.keeping.tasks = self.world.keeping.tasks, []
        self.world.keeping.failure = Failure("DriverError", text) if how == "fails" else None
        for task in tasks:
            self.world.keeping.answer(task)
        self.world.keeping.failure = None

    def do_snapshots(self) -> None:
        """What the store of records holds, and the image stores."""
        for name, made in self.world.snapshots.items():
            self.lines.append(f"snapshot {name}{' is being deleted' if made.deleting else ''}")
        images = " ".join(sorted(attempt for _, _, attempt in self.world.keeping.images))
        self.lines.append(f"images of {images or 'nothing'}")

    def do_lose(self, node: str, text: str = LOST_TEXT) -> None:
        """A node goes out of reach."""
        self.world.lose(node, text)

    def do_attach(self, node: str, how: str = "") -> None:
        """A node's shim opens its stream again; `anew` with a new session."""
        self.world.attach(node, new_session=how == "anew")

    def do_report(self, node: str) -> None:
        """A shim reports."""
        self.world.report(node)

    def do_exit(self, node: str, job: str, worker: str, code: str, text: str = "") -> None:
        """A worker ends."""
        gone = self.world.nodes[node].workers.pop((job, int(worker)))
        exited = events.WorkerExited(node, job, int(worker), gone.incarnation, int(code), text)
        self.world.event(exited)

    def do_tick(self, seconds: str) -> None:
        """Time passes."""
        self.world.tick(float(seconds.rstrip("s")))

    def do_leader(self) -> None:
        """Another coordinator takes over."""
        self.world.new_leader()

    def do_show(self, action: str) -> None:
        """What the store holds of an action."""
        record = self.world.attempts.get(action) or self.world.restores[action]
        owed = f", owed by {' '.join(map(str, record.owed))}" if record.owed else ""
        self.lines.append(f"{action} is {record.state} of epoch {record.epoch}{owed}")

    def do_jobs(self) -> None:
        """What `allstop jobs` would show."""
        for view in self.world.control.jobs():
            nodes = " ".join(view.nodes) or "nowhere"
            self.lines.append(
                f"job {view.job.job} {view.state} on {nodes}, incarnation {view.job.incarnation}, "
                f"latest {view.job.latest or 'none'}"
            )
            if view.waiting:
                self.lines.append(f"  a started worker waits: {view.waiting}")


def play(text: str) -> str:
    """The scenario with what the core does now as its expectations."""
    scenario = Scenario()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            out += [line, *scenario.run(line[2:])]
        elif line.startswith("#") or not line.strip():
            out.append(line)
    return "\n".join(out) + "\n"


def main(arguments: list[str]) -> int:
    """Check all scenarios, or rewrite them."""
    wrong = 0
    for path in sorted(HERE.glob("*.txt")):
        before = path.read_text()
        after = play(before)
        if after != before:
            wrong += 1
            if "--rewrite" in arguments:
                path.write_text(after)
            print(f"{path.name}: {'rewritten' if '--rewrite' in arguments else 'differs'}")
    return 0 if "--rewrite" in arguments else min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
