"""Responses that are sent piece by piece: how they end, and that a slow or gone client costs nothing for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from batonq.api.http import Request, Response
from tests.api.raw import Client, Scenario, serving, until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Source:
    """A stream that sends a number of pieces, then waits until it is cancelled."""

    def __init__(self, pieces: int, *, endless: bool = True, piece: bytes = b"piece\n") -> None:
        self.pieces, self.endless, self.piece = pieces, endless, piece
        self.sent = 0
        self.closed = False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(self.pieces):
                yield self.piece
                self.sent += 1
            if self.endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True

    async def handle(self, request: Request) -> Response:
        return Response(200, b"", "text/event-stream", stream=self.stream())


async def _head(client: Client) -> str:
    return (await client.reader.readuntil(b"\r\n\r\n")).decode()


def test_a_stream_has_no_length_and_ends_with_the_connection(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(3, endless=False)
        async with serving(source.handle) as (server, connect):
            client = await connect()
            client.send(GET)
            head = await _head(client)
            assert "Content-Length" not in head and "Connection: close" in head
            assert await client.reader.read() == b"piece\n" * 3
            await until(lambda: source.closed and not server.connections_open)
            assert server.usage.bytes_held == 0

    run(scenario)


def test_a_stream_ends_when_its_client_leaves(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(1)
        async with serving(source.handle) as (server, connect):
            client = await connect()
            client.send(GET)
            await _head(client)
            assert await client.reader.readexactly(6) == b"piece\n"
            client.close()
            await until(lambda: source.closed and not server.connections_open)

    run(scenario)


def test_a_stopping_server_ends_its_streams_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(1)
        async with serving(source.handle) as (server, connect):
            client = await connect()
            client.send(GET)
            await _head(client)
            assert await client.reader.readexactly(6) == b"piece\n"
            await asyncio.wait_for(server.stop(60), 30)
            assert source.closed and await client.ended()

    run(scenario)


def test_a_client_that_does_not_read_holds_the_stream_back(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(1_000, piece=b"x" * 65_536)
        async with serving(source.handle, write_s=1) as (server, connect):
            client = await connect()
            client.send(GET)
            await until(lambda: source.closed)  # after a second without reading
            assert source.sent < 1_000
            await until(lambda: not server.connections_open)
            assert server.usage.bytes_held == 0

    run(scenario)


def test_a_stream_is_not_idle(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(1)
        async with serving(source.handle, idle_s=0) as (server, connect):
            client = await connect()
            client.send(GET)
            await _head(client)
            await until(lambda: server.tick >= 2)
            assert not source.closed

    run(scenario)


def test_head_gets_no_pieces(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        source = Source(3)
        async with serving(source.handle) as (_, connect):
            client = await connect()
            client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert "text/event-stream" in await _head(client)
            assert await client.ended()
            assert source.sent == 0

    run(scenario)


def test_a_stream_that_fails_ends_the_connection(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(request: Request) -> Response:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield b"one\n"
            raise ValueError("broken")

        return Response(200, b"", stream=stream())

    async def scenario() -> None:
        async with serving(failing) as (server, connect):
            client = await connect()
            client.send(GET)
            await _head(client)
            assert await client.reader.read() == b"one\n"
            assert server.counters.failures == 1

    run(scenario)
    assert "a stream failed" in caplog.text
