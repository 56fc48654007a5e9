"""The endpoint as its clients see it: Redis's own Python package, redis-cli, and bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.core.meeting import KEYS_MAX, MEETING_BYTES_MAX, VALUE_BYTES_MAX
from tests.conftest import tool
from worker_shim.nccl.endpoint import HOST, Endpoint
from worker_shim.nccl.resp import ARGUMENTS_MAX, INLINE_BYTES_MAX

BINARY = bytes(range(256)) + b"\r\n$-1\r\n"


class Open:
    """An endpoint with a meeting of job `llm` after `a1`."""

    def __init__(self, endpoint: Endpoint, port: int) -> None:
        self.endpoint, self.port = endpoint, port
        self.prefix = endpoint.meetings.open("llm", "llm/0", "a1")

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    async def say(self, data: bytes, *, at_most: int = 1 << 16) -> bytes:
        """What a bare connection is answered before it is closed, or within a moment."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()
        answer = b""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.3):
                while part := await reader.read(at_most):
                    answer += part
        writer.close()
        return answer


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Open]:
    endpoint = Endpoint()
    yield Open(endpoint, await endpoint.start())
    endpoint.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_python_package_sets_and_gets(opened: Open, protocol: int) -> None:
    options: dict[str, Any] = {"host": HOST, "port": opened.port, "client_name": "a-rank"}
    async with redis.asyncio.Redis(**options, protocol=protocol) as client:
        assert await client.ping()
        assert await client.get(opened.key("uid")) is None
        assert await client.set(opened.key("uid"), BINARY)
        assert await client.get(opened.key("uid")) == BINARY
        assert await client.exists(opened.key("uid"), opened.key("other")) == 1
        assert await client.client_getname() in ("a-rank", b"a-rank")
        assert await client.delete(opened.key("uid"), opened.key("other")) == 1
        assert await client.get(opened.key("uid")) is None
        assert (await client.info())["redis_mode"] == "standalone"
        async with client.pipeline(transaction=False) as many:
            for number in range(50):
                many.set(opened.key(f"k{number}"), str(number))
            assert await many.execute() == [True] * 50


async def test_it_logs_in_as_at_a_server_without_a_password(opened: Open) -> None:
    options: dict[str, Any] = {"host": HOST, "port": opened.port}
    async with redis.asyncio.Redis(**options, username="default", password="any") as client:
        assert await client.ping()
    async with redis.asyncio.Redis(**options, username="eve", password="any") as client:
        with pytest.raises(redis.exceptions.RedisError, match="username-password"):
            await client.ping()


async def test_a_key_of_no_open_meeting_is_refused(opened: Open) -> None:
    async with redis.asyncio.Redis(host=HOST, port=opened.port) as client:
        other = opened.endpoint.meetings.open("other", "other/0", "a1")
        await client.set(f"{other}/uid", b"theirs")
        assert await client.get(opened.key("uid")) is None
        for key in ("uid", "a1/uid", f"{opened.prefix}", f"{opened.prefix}/", "x/y"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await client.get(key)
        opened.endpoint.meetings.close("llm/0")
        with pytest.raises(redis.exceptions.NoPermissionError):
            await client.set(opened.key("uid"), b"late")


async def test_a_meeting_is_bounded(opened: Open) -> None:
    async with redis.asyncio.Redis(host=HOST, port=opened.port) as client:
        value = b"v" * VALUE_BYTES_MAX
        fits = MEETING_BYTES_MAX // (VALUE_BYTES_MAX + 4)
        for number in range(fits):
            await client.set(opened.key(f"{number:04}"), value)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            await client.set(opened.key("one more"), value)
        await client.delete(opened.key("0000"))
        await client.set(opened.key("0001"), value)  # in the place of what was there
        await client.set(opened.key("room"), b"again")
    assert fits < KEYS_MAX


@pytest.mark.redis
async def test_redis_cli_gets_what_was_set(opened: Open) -> None:
    async def cli(*words: str) -> str:
        line = [tool("redis-cli") or "redis-cli", "-h", HOST, "-p", str(opened.port), *words]
        process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(20):
            return (await process.communicate())[0].decode().strip()

    assert await cli("SET", opened.key("uid"), "a value") == "OK"
    assert await cli("-3", "GET", opened.key("uid")) == "a value"
    assert await cli("--user", "default", "--pass", "x", "-n", "0", "PING") == "PONG"
    assert await cli("DEL", opened.key("uid")) == "1"
    assert await cli("GET", opened.key("uid")) == ""
    assert "unknown command 'FLUSHALL'" in await cli("FLUSHALL")
    assert "redis_version" in await cli("INFO", "server")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"PING\r\n", b"+PONG\r\n"),
        (b"ping hello\n", b"$5\r\nhello\r\n"),
        (b'ECHO "a b"\r\n', b"$3\r\na b\r\n"),
        (b"\r\nPING\r\n", b"+PONG\r\n"),
        (b"HELLO 4\r\n", b"-NOPROTO unsupported protocol version\r\n"),
        (b"SELECT 1\r\n", b"-ERR DB index is out of range\r\n"),
        (b"GET\r\n", b"-ERR wrong number of arguments for 'get' command\r\n"),
        (b"HELLO 2 SETNAME\r\n", b"-ERR wrong number of arguments for 'hello' command\r\n"),
        (b"QUIT\r\nPING\r\n", b"+OK\r\n"),
        (b'ECHO "a\r\n', b"-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"*1\r\n:1\r\n", b"-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"*%d\r\n" % (ARGUMENTS_MAX + 1), b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*-1\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (
            b"*2\r\n$3\r\nGET\r\n$%d\r\n" % (VALUE_BYTES_MAX + 1),
            b"-ERR Protocol error: invalid bulk length\r\n",
        ),
        (b"x" * (INLINE_BYTES_MAX + 10), b"-ERR Protocol error: too big inline request\r\n"),
    ],
)
async def test_bare_words_and_limits(opened: Open, said: bytes, answer: bytes) -> None:
    assert await opened.say(said) == answer


async def test_hello_answers_in_the_protocol_that_it_asks_for(opened: Open) -> None:
    assert (await opened.say(b"HELLO 2\r\n")).startswith(b"*14\r\n$6\r\nserver\r\n")
    third = await opened.say(b"HELLO 3\r\nGET %b\r\n" % opened.key("uid").encode())
    assert third.startswith(b"%7\r\n$6\r\nserver\r\n")
    assert third.endswith(b"_\r\n")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"*3\r\n", b"$3\r\n", b"SET\r\n"])))
async def test_no_bytes_break_it(opened: Open, parts: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection(HOST, opened.port)
    writer.write(b"".join(parts))
    writer.write_eof()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(5):
            await reader.read()
    writer.close()
    assert await opened.say(b"PING\r\nQUIT\r\n") == b"+PONG\r\n+OK\r\n"
