"""Compares HTTP stacks: the same 10 KiB POST and 1 KiB response on each, 16 connections, interleaved.

    python -m bench.httpstack [--rounds 5] [--requests 20000]

The servers do nothing but HTTP: no JSON, no disk. uvicorn and h11 are measured if they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

from bench import sqs
from bench.clients import Flow, drive
from bench.machine import CpuTimes
from bench.servers import Server, Servers, accepts

_STACKS = {
    "own protocol, httptools, uvloop": "",
    "own protocol, httptools, asyncio": "",
    "uvicorn, httptools, uvloop": "uvicorn",
    "uvicorn, h11, asyncio": "uvicorn",
}
_CONNECTIONS = 16
_ANSWER = (
    b'{"Successful":[' + b",".join([b'{"Id":"0","MessageId":"%036d","MD5OfMessageBody":"%032d"}' % (0, 0)] * 10) + b"]}"
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)


class AnswerProtocol(asyncio.Protocol):
    """Reads one request after another and sends each the same response."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpRequestParser(self)
        self.target = b""
        self.chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-amz-target":
            self.target = value

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        b"".join(self.chunks)
        self.chunks = []
        self.transport.write(_HEAD + _ANSWER)


async def _application(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    headers = [(b"content-type", b"application/x-amz-json-1.0"), (b"content-length", b"%d" % len(_ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _ANSWER})


async def _serve_protocol(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(AnswerProtocol, "127.0.0.1", port)
    await server.serve_forever()


def serve(stack: str, port: int) -> None:
    loop = "uvloop" if "uvloop" in stack else "asyncio"
    if stack.startswith("uvicorn"):
        import uvicorn

        parser = "httptools" if "httptools" in stack else "h11"
        application = cast(Any, _application)
        uvicorn.run(
            application, port=port, loop=cast(Any, loop), http=cast(Any, parser), access_log=False, lifespan="off"
        )
        return
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve_protocol(port))


def _flow(request: bytes, count: int) -> Flow:
    for _ in range(count):
        sqs.check((yield request, 1))


def _measure(server: Server, requests: int) -> tuple[float, float]:
    request = sqs.Caller(server.port, "SendMessageBatch").request(b"x" * 10_800)
    before = server.cpu_us()
    seconds = drive(server.port, sqs.complete, [_flow(request, requests // _CONNECTIONS) for _ in range(_CONNECTIONS)])
    return requests / seconds, (server.cpu_us() - before) / requests


def _start(servers: Servers, stack: str) -> Server:
    def command(port: int, _directory: Path) -> list[str]:
        return [sys.executable, "-m", "bench.httpstack", "--serve", stack, "--port", str(port)]

    return servers.start(f"stack-{list(_STACKS).index(stack)}", command, accepts)


def compare(directory: Path, rounds: int, requests: int) -> None:
    with Servers(directory) as servers:
        stacks = [stack for stack, needs in _STACKS.items() if not needs or importlib.util.find_spec(needs)]
        running = {stack: _start(servers, stack) for stack in stacks}
        results: dict[str, list[tuple[float, float]]] = {stack: [] for stack in stacks}
        times = CpuTimes.now()
        for _ in range(rounds):
            for stack, server in running.items():
                results[stack].append(_measure(server, requests))
        steal = CpuTimes.now().steal_percent_since(times)
    print(f"{_CONNECTIONS} connections, {requests} requests a round, {rounds} rounds, steal {steal:.1f} %")
    best = max(statistics.median(rate for rate, _ in results[stack]) for stack in stacks)
    for stack in stacks:
        rate = statistics.median(rate for rate, _ in results[stack])
        cpu = statistics.median(cpu for _, cpu in results[stack])
        print(f"{stack:36} {rate:8,.0f} requests/s  {rate / best:5.2f}  {cpu:6.1f} µs of server CPU a request")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare HTTP stacks.")
    parser.add_argument("--serve", choices=tuple(_STACKS))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--data", type=Path, default=Path(".bench-data"))
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port)
    else:
        compare(options.data, options.rounds, options.requests)


if __name__ == "__main__":
    main()
