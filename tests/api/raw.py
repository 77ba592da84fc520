"""A bare HTTP server in the test's own loop, and a client that can misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from batonq.api.http import HttpLimits, HttpServer, Request, Response, Router
from batonq.api.http.messages import Direct

Scenario = Callable[[], Awaitable[None]]


class Connect(Protocol):
    async def __call__(self, source: str = "127.0.0.1") -> Client:
        """Open a connection from one of this machine's loopback addresses."""


async def echo(request: Request) -> Response:
    text = f"{request.method} {request.path}?{request.query} {len(request.body)} {request.body[:20]!r}"
    return Response(200, text.encode())


@asynccontextmanager
async def serving(
    handler: Callable[[Request], Awaitable[Response]] = echo, direct: Direct | None = None, **limits: Any
) -> AsyncIterator[tuple[HttpServer, Connect]]:
    server = HttpServer(Router(handler).resolve, HttpLimits(**limits), direct)
    await server.start("127.0.0.1", 0)
    clients: list[Client] = []

    async def connect(source: str = "127.0.0.1") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0)))
        clients.append(client)
        return client

    try:
        yield server, connect
    finally:
        for client in clients:
            client.close()
        await server.stop(0.1)


class Client:
    """A client that can misbehave."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        content = await self.reader.readexactly(int(headers["content-length"])) if body and headers else b""
        return int(first.split()[1]), headers, content

    async def ended(self) -> bool:
        return await self.reader.read() == b""

    def close(self) -> None:
        self.writer.close()


def post(body: bytes = b"", path: str = "/", extra: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)
