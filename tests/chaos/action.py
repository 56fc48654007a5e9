"""One checkpoint, restore or delete as an operator sees it, followed to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError
from tests.chaos.history import History
from tests.chaos.options import ACTION_S, JOB


@dataclass
class Action:
    """A checkpoint, restore or delete as an operator sees it."""

    verb: str
    snapshot: str = ""
    snapshots: tuple[str, ...] = ()  # of a delete
    deadline_s: float = 0.0  # 0: the coordinator's policy
    old_run_ended: bool = False
    id: str = ""
    states: list[str] = field(default_factory=list)
    error: AllstopError | None = None
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    over: bool = False

    async def reached(self, state: str) -> None:
        """Return when it has come to that state, or is over."""
        async with self.news:
            await self.news.wait_for(lambda: self.over or state in self.states)


async def follow(action: Action, client: OperatorClient, history: History) -> None:
    """Ask for it and follow it to its end, as far as the coordinators let us."""
    try:
        async with asyncio.timeout(ACTION_S), contextlib.aclosing(asked(action, client)) as events:
            async for event in events:
                action.id = event.action
                history.note("event", **kept(event))
                if not action.states or action.states[-1] != event.state:
                    history.note("state", f"    {event.state:<11} {event.reason}")
                async with action.news:
                    action.states.append(event.state)
                    action.news.notify_all()
    except AllstopError as error:
        action.error = error
        history.note("failed", f"    {error}", error=error.to_fields())
    except TimeoutError:
        history.violation(f"{action.verb} {action.id} was not over within {ACTION_S} s")
    finally:
        async with action.news:
            action.over = True
            action.news.notify_all()


def asked(action: Action, client: OperatorClient) -> AsyncGenerator[ActionEvent, None]:
    """The request itself."""
    if action.verb == "checkpoint":
        return client.checkpoint(JOB, deadline_s=action.deadline_s)
    if action.verb == "delete":
        return client.delete(JOB, action.snapshots)
    return client.restore(JOB, action.snapshot, old_run_ended=action.old_run_ended)


def kept(event: ActionEvent) -> dict[str, object]:
    """The parts of an action's event that the history keeps."""
    names = ("action", "state", "reason", "elapsed_ms", "last", "expected")
    fields = {name: getattr(event, name) for name in names}
    awaited = (f"worker {one.worker} on {one.node}, {one.age_ms} ms" for one in event.awaited)
    return {**fields, "awaited": list(awaited)}
