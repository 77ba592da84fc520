"""What the three hot calls cost inside the server, without sockets and without the disk's sync.

    python -m bench.paths [--profile send|receive|delete]

A whole node runs in this process; sixteen connections are given their requests at once, as in the `life` section, and
the loop runs until all are answered. Syncs are left out, and the best of many rounds is taken, so that the figures hold
still on a noisy machine: they are for finding where the time goes and for comparing two versions of Baton.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
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
from bench import bodies, sqs

_CONNECTIONS = 16
_BATCH = 10
_ROUNDS = 120


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
    """Sixteen connections to a node in this process."""

    def __init__(self, server: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0
        self._all_answered: asyncio.Future[None] = loop.create_future()
        server.loop = loop
        self.wires = [Wire(self._one_answered) for _ in range(_CONNECTIONS)]
        self.connections = [Connection(server) for _ in self.wires]
        for connection, wire in zip(self.connections, self.wires, strict=True):
            connection.connection_made(wire)

    def _one_answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_answered.set_result(None)

    async def ask(self, requests: list[bytes]) -> tuple[float, list[bytes]]:
        """Give each connection its request; the seconds until the last answer, and the answers."""
        self._left = len(requests)
        self._all_answered = self._loop.create_future()
        started = time.perf_counter()
        for connection, request in zip(self.connections, requests, strict=False):
            connection.data_received(request)
        await self._all_answered
        seconds = time.perf_counter() - started
        answers = [wire.answer for wire in self.wires[: len(requests)]]
        for answer in answers:
            sqs.check(answer)
        return seconds, answers


async def measure(directory: Path, profiled: str) -> dict[str, float]:
    """µs a message of each call, the best of many rounds; prints a profile of one of them if asked."""
    setattr(os, "fdatasync", lambda descriptor: None)  # noqa: B010 (plain assignment is a type error)
    loop = asyncio.get_running_loop()
    node = Node(Settings(data=str(directory), inline_sync_us=1_000_000))
    await node.start()
    server = compose(node)
    await server.start("127.0.0.1", 0)
    url = str((await asyncio.to_thread(sqs.call, server.port, "CreateQueue", QueueName="paths"))["QueueUrl"])
    clients = Clients(server, loop)
    work = sqs.SqsQueue.at(server.port, url)
    texts = bodies.texts(_CONNECTIONS * _BATCH)
    batches = [work.prepare(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
    profile = cProfile.Profile()
    best: dict[str, float] = {}
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    for _ in range(_ROUNDS):
        receipts: list[list[bytes]] = []
        for call in ("send", "receive", "delete"):
            if call == "send":
                requests = [work.send(batch)[0] for batch in batches]
            elif call == "receive":
                requests = [work.receive(_BATCH)[0] for _ in batches]
            else:
                requests = [work.delete(some)[0] for some in receipts]
            if call == profiled:
                profile.enable()
            seconds, answers = await clients.ask(requests)
            profile.disable()
            if call == "receive":
                receipts = [work.receipts(answer) for answer in answers]
            cost = seconds * 1e6 / (_CONNECTIONS * _BATCH)
            best[call] = min(cost, best.get(call, cost))
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    await server.stop(0.1)
    await node.stop()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the three hot calls inside the server.")
    parser.add_argument("--profile", choices=("send", "receive", "delete"), default="")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="baton-paths-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        best = runner.run(measure(Path(directory) / "data", options.profile))
    for call, cost in best.items():
        print(f"{call:8} {cost:6.2f} µs a message")
    print(f"{'life':8} {sum(best.values()):6.2f} µs a message")


if __name__ == "__main__":
    main()
