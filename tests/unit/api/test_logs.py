"""Output of workers, from shims over a coordinator to an operator, with real gRPC between them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from coordinator.api import logs
from coordinator.api.log_reader import LogReader
from coordinator.core.errors import BadRequest, NotFound
from coordinator.core.logs import LogPart, LogPlace
from coordinator.link import hub
from tests.support.cluster import Cluster, cluster


async def all_of(cluster: Cluster, **what: object) -> list[LogPart]:
    reader = LogReader(cluster.client, "llm", **{"lines": 10, **what})  # type: ignore[arg-type]
    return [part async for part in reader.read()]


def text_of(parts: list[LogPart], worker: int) -> str:
    return b"".join(part.data for part in parts if part.worker == worker).decode()


async def test_all_workers_are_read_and_one_is_where_one_is_wanted() -> None:
    async with cluster(2, ranks=2) as them:
        for shim, text in zip(them.shims, (b"zero\n", b"one\n"), strict=True):
            shim.output = text
        parts = await all_of(them)
        assert [(part.worker, part.node, part.data) for part in parts] == [
            (0, "node-0", b"zero\n"),
            (1, "node-1", b"one\n"),
        ]
        assert [part.node for part in await all_of(them, worker=1)] == ["node-1"]
        assert [part.worker for part in await all_of(them, rank=3)] == [1]


async def test_what_does_not_fit_into_one_answer_comes_in_several() -> None:
    async with cluster(2) as them:
        long = b"".join(b"line %d\n" % number for number in range(400_000))
        assert len(long) > 3 * logs.ANSWER_BYTES_MAX
        them.shims[1].output = long
        parts = await all_of(them)
        assert text_of(parts, 1) == long.decode()
        assert max(len(part.data) for part in parts) <= logs.ANSWER_BYTES_MAX


async def test_more_workers_than_fit_into_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PLACES_MAX", 2)
    async with cluster(5) as them:
        assert [part.worker for part in await all_of(them)] == [0, 1, 2, 3, 4]
        with pytest.raises(BadRequest, match="can be asked for at once"):
            await them.client.read_logs("llm", [LogPlace(0)] * 3)


async def test_who_is_away_is_named_and_the_others_are_read() -> None:
    async with cluster(2) as them:
        them.shims[0].output = b"here\n"
        them.shims[1].vanish()
        await them.shims[1].until(lambda: them.shims[1].ended is not None)
        until = asyncio.get_running_loop().time() + 10
        while all(view.state == "attached" for view in await them.client.nodes()):
            assert asyncio.get_running_loop().time() < until
        here, away = await all_of(them)
        assert here.data == b"here\n"
        assert away.failure is not None
        assert "worker 1 cannot be read: node-1 is lost: the stream ended" in away.failure.what
        assert (away.node, away.failure.node, away.failure.kind) == (
            "node-1",
            "node-1",
            "LinkError",
        )


async def test_a_shim_that_does_not_answer_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub.Hub.ask_logs, "__kwdefaults__", {"deadline_s": 0.2})
    async with cluster(2) as them:
        them.shims[0].reads_logs = False
        silent, other = await all_of(them)
        assert silent.failure is not None
        assert "node-0 has not answered in time" in silent.failure.what
        assert "version" in silent.failure.advice
        assert other.failure is None


async def test_a_follower_hears_what_comes_and_of_one_who_goes() -> None:
    async with cluster(2) as them:
        them.shims[0].output = b"first\n"
        reader = LogReader(them.client, "llm", lines=10, poll_s=0.02)
        async with (
            asyncio.timeout(10),
            aclosing(reader.follow(lambda error: pytest.fail(str(error)))) as parts,
        ):
            heard = b""
            async for part in parts:
                heard += part.data if part.worker == 0 else b""
                if heard == b"first\n":
                    them.shims[0].output = b"first\nsecond\n"
                if heard == b"first\nsecond\n":
                    them.shims[0].vanish()
                if part.failure is not None:
                    assert "node-0 is lost" in part.failure.what
                    break
        assert heard == b"first\nsecond\n", "once, and in order"


async def test_nobody_knows_that_job_worker_or_rank() -> None:
    async with cluster(2, ranks=2) as them:
        with pytest.raises(NotFound, match="there is no job other"):
            await them.client.read_logs("other")
        with pytest.raises(NotFound, match="has no worker 2"):
            await all_of(them, worker=2)
        with pytest.raises(NotFound, match="no node has told of rank 4") as caught:
            await all_of(them, rank=4)
        assert caught.value.advice == "there are ranks 0 to 3"
