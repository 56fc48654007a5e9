"""A job's policy for people, with the numbers behind it."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.api.values import PolicyAnswer, Story
from coordinator.api.words import duration_text
from coordinator.cli.tables import or_nothing, table
from coordinator.core.job_policy import JobPolicy, LastResort, OnFailure, RecoveryState, When

_BOUNDS = {
    "least": "--least, no more often",
    "most": "--most, no more seldom",
    "budget": "--budget",
    "attempt": "the time one checkpoint takes",
    "first": "--least: the first one shows what they cost",
}


def rule_text(policy: JobPolicy) -> str:
    """When a job is saved, in a few words."""
    budget = f", at most {policy.budget:.3g} of its time" if policy.budget else ""
    match policy.when:
        case When.SECONDS:
            return f"every {duration_text(policy.interval_s)}{budget}"
        case When.STEPS:
            return f"every {policy.interval_steps} steps{budget}"
        case When.AUTO:
            return f"auto{budget}"
    return "only when somebody asks"


def failure_text(policy: JobPolicy) -> str:
    """What is done when its run ends that should not have."""
    if policy.on_failure is OnFailure.LEAVE:
        return "nothing"
    hung = f", also after {policy.hung:g} usual steps without one" if policy.hung else ""
    cold = policy.last_resort is LastResort.COLD_START
    last = "it is started from scratch" if cold else "it is stopped"
    return (
        f"its last good snapshot is restored{hung}; an older one after {policy.tries} tries, "
        f"nodes are waited for {duration_text(policy.wait_s)}, and in the end {last}"
    )


def policy_view(answer: PolicyAnswer, *, explain: bool) -> RenderableType:
    """The policy and when the next checkpoint is due; `explain`: why then."""
    lines = [Text.assemble((answer.policy.job, "bold"), f": {rule_text(answer.policy)}")]
    lines.append(Text(f"next: {_next(answer)}"))
    lines.append(Text(f"on failure: {failure_text(answer.policy)}"))
    if answer.note:
        lines.append(Text(answer.note, style="yellow"))
    if not explain:
        return Group(*lines)
    return Group(*lines, _numbers(answer), _nodes(answer))


def _next(answer: PolicyAnswer) -> str:
    if answer.due_in_s < 0:
        return f"waits for {answer.waits}"
    due = f"in {duration_text(answer.due_in_s)}" if answer.due_in_s else "now"
    return due if answer.waits == "its time" else f"{due}, then waits for {answer.waits}"


def _numbers(answer: PolicyAnswer) -> RenderableType:
    rows = table("NUMBER", "VALUE", "WHAT", right=("VALUE",))

    measured = answer.attempt_s > 0

    def row(name: str, seconds: float, what: str, *, known: bool = True) -> None:
        rows.add_row(name, duration_text(seconds) if known else "not known", what)

    if answer.policy.when is When.AUTO:
        bound = _BOUNDS.get(answer.bound, "Daly's formula")
        row("interval", answer.interval_s, f"from one checkpoint to the next, by {bound}")
        known = measured and answer.daly_s > 0
        row("Daly", answer.daly_s, "the optimum of higher order, from the next two", known=known)
        row("Young", answer.young_s, "the optimum of first order, for comparison", known=known)
        row("MTBF", answer.mtbf_s, f"expected {duration_text(answer.policy.mtbf_s)} before")
    elif answer.bound == "budget":
        row("interval", answer.interval_s, "from one checkpoint to the next, by --budget")
    cost = "by how much one checkpoint makes the job later"
    row("cost", answer.checkpoint_s, cost, known=measured)
    row("latency", answer.latency_s, "from the cut until it can be restored", known=measured)
    row("attempt", answer.attempt_s, "from the request to the commit", known=measured)
    row("restart", answer.restart_s, "from the last step before a failure to the first new one")
    lost, told = answer.lost_s_per_day, "checkpoints, work done again, restarts"
    row("lost a day", lost, told, known=lost > 0)
    return rows


def _nodes(answer: PolicyAnswer) -> RenderableType:
    rows = table("SEEN", "WATCHED", "FAILURES", right=("WATCHED", "FAILURES"))
    rows.add_row(
        "the job by itself",
        duration_text(answer.history.watched_s),
        str(answer.history.failures),
    )
    for node in answer.history.nodes:
        rows.add_row(node.node, duration_text(node.watched_s), str(node.failures))
    return rows


def story_view(story: Story) -> RenderableType:
    """One line for each thing, in the reader's time zone; the last one is where it stands."""
    rows = table("WHEN", "WHAT")
    for line in story.lines:
        at = datetime.fromtimestamp(line.unix_s).astimezone()
        rows.add_row(at.strftime("%Y-%m-%d %H:%M:%S"), line.text)
    if story.recovery.state is RecoveryState.UNSEEN:
        return or_nothing(rows, "nothing was done by itself")
    return Group(rows, Text(f"recovery is {story.recovery.state}", style="bold"))
