"""Whole nodes for tests: real files in a temporary directory, virtual time, no threads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, cast

from batonq.core.commands import Accepted
from batonq.errors import BatonError, LogError
from batonq.log.disk import Disk, RealDisk
from batonq.log.file_log import FileLogSettings
from batonq.log.frames import Frame
from batonq.log.interface import Done, Log
from batonq.log.layout import CATALOG_SHARD
from batonq.node.broker import Delivery, Queue
from batonq.node.node import Node, World
from batonq.node.settings import Settings
from tests.node.support import START_S, VirtualLoop
from tests.support import brokers
from tests.support.ask import Message, message
from tests.support.doubles import double

ACCOUNT = "000000000000"
SEGMENT_BYTES = 64 * 1024
STALL_S = 2.0  # how long the fault "stall" holds an append up


class FlakyLog:
    """A log whose appends go wrong when a test says so (see interface.Log)."""

    def __init__(self, inner: Log, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        fault = self._faults.next(self._inner.shard)
        if fault == "refuse":
            done(LogError("refused by the test"))
        elif fault == "fail after writing":
            self._inner.append(frame, lambda problem: done(problem or LogError("failed after writing")))
        elif fault == "hang":
            self._inner.append(frame, lambda problem: None)
        elif fault == "stall":
            asyncio.get_running_loop().call_later(STALL_S, self._inner.append, frame, done)
        else:
            self._inner.append(frame, done)


class Faults:
    """What goes wrong next: a list of faults for each shard, used up one by one, or chance."""

    def __init__(self) -> None:
        self.planned: dict[int, list[str]] = {}
        self.random: Random | None = None
        self.chance = 0.0

    def next(self, shard: int) -> str:
        planned = self.planned.get(shard)
        if planned:
            return planned.pop(0)
        if self.random is not None and shard != CATALOG_SHARD and self.random.random() < self.chance:
            return self.random.choice(("refuse", "fail after writing"))
        return ""


@double()
class UnsyncedDisk(RealDisk):
    """The real disk without waiting for it: what these tests end is a process, not a machine."""

    def fdatasync(self, handle: int) -> None:
        pass

    def fsync_directory(self, path: str) -> None:
        pass


def make_node(
    loop: VirtualLoop,
    directory: Path,
    *,
    seed: int = 1,
    disk: Disk | None = None,
    faults: Faults | None = None,
    **settings: Any,
) -> Node:
    random = Random(seed)
    world = World(
        monotonic=loop.time,
        wall=lambda: START_S + loop.time(),
        random_bytes=random.randbytes,
        disk=disk or UnsyncedDisk(),
        threads=False,
        log_settings=FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0, background=False),
        adapt_log=None if faults is None else lambda log: cast(Log, FlakyLog(log, faults)),
    )
    values: dict[str, Any] = {"data": str(directory), "segment_bytes": SEGMENT_BYTES, **settings}
    return Node(Settings(**values), world)


async def open_node(loop: VirtualLoop, directory: Path, **settings: Any) -> Node:
    node = make_node(loop, directory, **settings)
    await node.start()
    return node


async def kill(node: Node) -> None:
    """End a node as a crash would: nothing is drained or saved."""
    node.stopping = True
    if node._upkeep is not None:
        node._upkeep.cancel()
    await node._channels.close()
    await node._close()


def make_send(text: str, **fields: Any) -> Message:
    return message(text, **fields)


async def send(node: Node, queue: Queue, *texts: str, **fields: Any) -> list[Accepted | BatonError]:
    return await brokers.send(node.broker, queue, [make_send(text, **fields) for text in texts])


async def receive(
    node: Node, queue: Queue, count: int = 10, *, wait_ms: int = 0, visibility_ms: int | None = None
) -> list[Delivery]:
    return await brokers.receive(node.broker, queue, count, visibility_ms, wait_ms, "tester")


async def drain(node: Node, queue: Queue) -> list[str]:
    """Receive and delete all there is; the bodies in order."""
    bodies: list[str] = []
    while deliveries := await receive(node, queue):
        bodies += [delivery.body.decode() for delivery in deliveries]
        assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in deliveries]))
    return bodies
