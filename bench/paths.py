"""The cost of the three hot calls inside the server, without sockets and without the disk's sync.

    python -m bench.paths [sqs|rest] [--connections N] [--batch N] [--rounds N] [--profile send|receive|delete]
    python -m bench.paths [sqs|rest] --metrics

A whole node runs in this process; the connections (16 of SQS, one of REST) get their requests at once, as in the
sections `life` and `rest`, and the loop runs until all are answered. Syncs are left out, and the best of many rounds is
used, so that the figures are stable on a noisy machine. Use them to find where the time goes, and to compare two
versions of Baton. With --metrics, rounds with and without metrics take turns in one process, and their medians are
compared: the machine's noise is the same for both.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from batonq.api.http.connection import Connection
from batonq.cli.serve import GC_THRESHOLDS, compose
from batonq.node.node import Node
from batonq.node.settings import Settings
from bench import bodies, sqs, unmeasured
from bench.flows import Work
from bench.rest import RestQueue

_READ_BYTES = 256 * 1024  # the event loop's read size


class Wire(asyncio.Transport):
    """The server's side of a connection whose client is this module."""

    def __init__(self, count_down: Callable[[], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000)})
        self.answer = b""
        self._count_down = count_down

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answer = bytes(data)
        self._count_down()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Clients:
    """Connections to a node in this process."""

    def __init__(self, server: Any, loop: asyncio.AbstractEventLoop, connections: int) -> None:
        self._loop = loop
        self._left = 0
        self._all_answered: asyncio.Future[None] = loop.create_future()
        server.loop = loop
        self.wires = [Wire(self._one_answered) for _ in range(connections)]
        self.connections = [Connection(server) for _ in self.wires]
        for connection, wire in zip(self.connections, self.wires, strict=True):
            connection.connection_made(wire)

    def _one_answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_answered.set_result(None)

    async def ask(self, requests: list[bytes]) -> tuple[float, list[bytes]]:
        """Send each connection its request. Returns the processor time until the last response, and the responses."""
        self._left = len(requests)
        self._all_answered = self._loop.create_future()
        started = time.thread_time()
        for connection, request in zip(self.connections, requests, strict=False):
            for at in range(0, len(request), _READ_BYTES):
                connection.data_received(request[at : at + _READ_BYTES])
        await self._all_answered
        seconds = time.thread_time() - started
        return seconds, [wire.answer for wire in self.wires[: len(requests)]]


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """µs per message of each call in each round; optionally prints a profile of one call."""
    setattr(os, "fdatasync", lambda descriptor: None)  # noqa: B010 (plain assignment is a type error)
    loop = asyncio.get_running_loop()
    node = Node(Settings(data=str(directory), inline_sync_us=1_000_000))
    await node.start()
    server = compose(node)
    await server.start("127.0.0.1", 0)
    clients = Clients(server, loop, options.connections)
    door: Callable[[int, str], Work] = RestQueue if options.door == "rest" else sqs.SqsQueue
    work = await asyncio.to_thread(door, server.port, "paths")
    count = options.connections * options.batch
    texts = bodies.texts(count)
    batches = [work.prepare(texts[at : at + options.batch]) for at in range(0, len(texts), options.batch)]
    profile = cProfile.Profile()
    costs: dict[str, list[float]] = {}
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    for number in range(options.rounds):
        unmeasured.count(not options.metrics or number % 2 == 0)
        receipts: list[list[bytes]] = []
        for call in ("send", "receive", "delete"):
            if call == "send":
                requests = [work.send(batch)[0] for batch in batches]
            elif call == "receive":
                requests = [work.receive(options.batch)[0] for _ in batches]
            else:
                requests = [work.delete(some)[0] for some in receipts]
            if call == options.profile:
                profile.enable()
            seconds, answers = await clients.ask(requests)
            profile.disable()
            for answer in answers:
                work.check(answer)
            if call == "receive":
                receipts = [work.receipts(answer) for answer in answers]
            costs.setdefault(call, []).append(seconds * 1e6 / count)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    await server.stop(0.1)
    await node.stop()
    return costs


def compare(costs: dict[str, list[float]]) -> None:
    """Compare the rounds with metrics with those without, which take turns."""
    whole = {**costs, "life": [sum(calls) for calls in zip(*costs.values(), strict=True)]}
    for call, rounds in whole.items():
        on, off = statistics.median(rounds[::2]), statistics.median(rounds[1::2])
        print(f"{call:8} {on:6.2f} µs per message with metrics, {off:6.2f} without: {on / off:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the three hot calls inside the server.")
    parser.add_argument("door", nargs="?", choices=("sqs", "rest"), default="sqs")
    parser.add_argument("--connections", type=int, help="default 16 for SQS, 1 for REST")
    parser.add_argument("--batch", type=int, help="default 10 for SQS, 500 for REST")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--metrics", action="store_true", help="compare the cost with and without metrics")
    parser.add_argument("--profile", choices=("send", "receive", "delete"), default="")
    options = parser.parse_args()
    options.connections = options.connections or (1 if options.door == "rest" else 16)
    options.batch = options.batch or (500 if options.door == "rest" else 10)
    with (
        tempfile.TemporaryDirectory(prefix="baton-paths-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        costs = runner.run(measure(Path(directory) / "data", options))
    if options.metrics:
        compare(costs)
        return
    best = {call: min(rounds) for call, rounds in costs.items()}
    for call, cost in best.items():
        print(f"{call:8} {cost:6.2f} µs per message")
    print(f"{'life':8} {sum(best.values()):6.2f} µs per message")


if __name__ == "__main__":
    main()
