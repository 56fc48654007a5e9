"""One helper asked by many: who gives up, and what becomes of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.errors import DriverError
from worker_shim.cuda.asking import HelperProcess

HELPER = "tests.support.held_helper"
LONG_S = 20.0


class Gate:
    """Where the helper waits; `waiting` is set once it does."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.waiting, self._open = asyncio.Event(), asyncio.Event()

    async def watch(self) -> None:
        self._server = await asyncio.start_unix_server(self._came, self.path)

    async def _came(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.waiting.set()
        await self._open.wait()
        writer.close()

    async def reached(self) -> None:
        await asyncio.wait_for(self.waiting.wait(), LONG_S)

    def open(self) -> None:
        self._open.set()

    async def close(self) -> None:
        self.open()
        self._server.close()


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[Gate]:
    made = Gate(tmp_path / "gate")
    await made.watch()
    yield made
    await made.close()


@pytest.fixture
async def helper() -> AsyncIterator[HelperProcess]:
    made = HelperProcess(HELPER, {})
    yield made
    await made.close()


async def ask(helper: HelperProcess, within_s: float = LONG_S, **request: Any) -> Any:
    told = await helper.ask(lambda _: request, "asking", time.monotonic() + within_s)
    return told["value"]


async def test_who_waits_behind_another_gives_up_alone(helper: HelperProcess, gate: Gate) -> None:
    first = asyncio.create_task(ask(helper, value=1, gate=gate.path))
    await gate.reached()
    with pytest.raises(DriverError, match="turn did not come") as late:
        await ask(helper, 0.05, value=2)
    assert late.value.definite
    gate.open()
    assert await first == 1, "the one that was answered is left alone"


async def test_a_request_that_is_given_up_leaves_no_answer_behind(
    helper: HelperProcess, gate: Gate
) -> None:
    cancelled = asyncio.create_task(ask(helper, value=1, gate=gate.path))
    await gate.reached()
    cancelled.cancel()
    gate.open()
    assert await ask(helper, value=2) == 2
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_start_that_is_given_up_leaves_no_first_word_behind(gate: Gate) -> None:
    helper = HelperProcess(HELPER, {"GATE_AT_START": gate.path})
    try:
        cancelled = asyncio.create_task(ask(helper, value=1))
        await gate.reached()
        cancelled.cancel()
        gate.open()
        assert await ask(helper, value=2) == 2
    finally:
        await helper.close()


async def test_a_request_that_is_late_may_have_been_carried_out(
    helper: HelperProcess, gate: Gate
) -> None:
    await helper.start(until=time.monotonic() + LONG_S)
    with pytest.raises(DriverError, match="not answered in time") as late:
        await ask(helper, 0.2, value=1, gate=gate.path)
    assert not late.value.definite
    assert await ask(helper, value=2) == 2


async def test_a_start_that_is_late_has_asked_nothing(gate: Gate) -> None:
    helper = HelperProcess(HELPER, {"GATE_AT_START": gate.path})
    try:
        with pytest.raises(DriverError) as late:
            await ask(helper, 0.5, value=1)
        assert late.value.definite
    finally:
        await helper.close()


async def test_what_it_said_at_its_end_is_kept(helper: HelperProcess) -> None:
    with pytest.raises(DriverError, match="ended with 3") as ended:
        await ask(helper, end=True)
    assert ended.value.details == ("its last words",)
    assert not ended.value.definite
    assert await ask(helper, value=2) == 2


async def test_a_close_does_not_wait_for_a_request(helper: HelperProcess, gate: Gate) -> None:
    asked = asyncio.create_task(ask(helper, value=1, gate=gate.path))
    await gate.reached()
    await asyncio.wait_for(helper.close(), LONG_S)
    with pytest.raises(DriverError, match="in the middle of it"):
        await asked
