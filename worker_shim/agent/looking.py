"""Keeping what is known of a worker up to date between orders: ranks, and the preflight."""

from __future__ import annotations

import asyncio
import time

from coordinator.core.model import Finding, Severity
from worker_shim.agent import rebuilding
from worker_shim.agent.holding import look_over
from worker_shim.agent.worker import Worker

PREFLIGHT_INTERVAL_S = 5.0
KEPT_CODES = frozenset({"dead_man"})


class Looker:
    """Looks at workers for the reports; the preflight is dearer and done less often."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[int, float]] = {}  # worker -> root pid, when

    async def look(self, worker: Worker, *, busy: bool) -> None:
        """Bring the worker's ranks and findings up to date; a held worker is left in peace."""
        if not worker.alive:
            self._checked.pop(worker.name, None)
            rebuilding.forget(worker)
            return
        await rebuilding.watch(worker)
        tree = await asyncio.to_thread(worker.tree)
        if worker.page is not None:
            worker.ranks = worker.page.ranks(tree)
        root, when = self._checked.get(worker.name, (0, 0.0))
        now = time.monotonic()
        # Who mends what was found wants to try again, and not to be refused for what was.
        refused = any(finding.severity is Severity.REFUSE for finding in worker.findings)
        interval_s = 0.0 if refused else PREFLIGHT_INTERVAL_S
        if busy or (root == worker.root_pid and now - when < interval_s):
            return
        self._checked[worker.name] = (worker.root_pid, now)
        found = await look_over(worker, tree)
        if not worker.action:
            worker.findings = (*found, *_kept(worker.findings))


def _kept(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What no preflight can see again."""
    return tuple(finding for finding in findings if finding.code in KEPT_CODES)
