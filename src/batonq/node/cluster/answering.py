"""What one node answers another: about shards that it serves, the catalog that it keeps, and itself.

Answers are remembered for some seconds by the id of the call, so that a call whose answer got lost can be made again
without being run again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Protocol

import msgspec

from batonq.errors import InvalidInput, NotFound, NotOwner
from batonq.node.cluster.catalog import ClusterCatalog
from batonq.node.cluster.ownership import OwnershipLoop
from batonq.node.ports import ShardPort
from batonq.node.remoteshard import answer

REMEMBERED_S = 20.0
REMEMBERED_MAX = 20_000
REMEMBERED_BYTES_MAX = 64 << 20
_take = msgspec.msgpack.Decoder(tuple[int, int])
_move = msgspec.msgpack.Decoder(tuple[int, str])


class Memory:
    """The last answers: at most so many, so long, and so many bytes."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, asyncio.Task[bytes]] = OrderedDict()
        self._ends: dict[str, float] = {}
        self._bytes = 0

    def find(self, call: str) -> asyncio.Task[bytes] | None:
        return self._calls.get(call)

    def add(self, call: str, task: asyncio.Task[bytes]) -> None:
        self._calls[call] = task
        task.add_done_callback(lambda _: self._ended(call))
        self._shrink()

    def forget(self, call: str) -> None:
        task = self._calls.pop(call, None)
        if task is not None and self._ends.pop(call, None) is not None:
            self._bytes -= _size(task)

    def _ended(self, call: str) -> None:
        task = self._calls.get(call)
        if task is None or task.cancelled() or isinstance(task.exception(), NotOwner):
            self._calls.pop(call, None)  # it was not run, and may be the next time
            return
        self._ends[call] = asyncio.get_running_loop().time()
        self._bytes += _size(task)

    def _shrink(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._calls:
            oldest = next(iter(self._calls))
            ended_s = self._ends.get(oldest)
            over = len(self._calls) > REMEMBERED_MAX or self._bytes > REMEMBERED_BYTES_MAX
            if ended_s is None or not (over or now_s - ended_s > REMEMBERED_S):
                return
            self.forget(oldest)


def _size(task: asyncio.Task[bytes]) -> int:
    return 0 if task.exception() is not None else len(task.result())


class Served(Protocol):
    """The node, as far as others may ask it."""

    @property
    def catalog(self) -> ClusterCatalog: ...
    @property
    def ownership_loop(self) -> OwnershipLoop: ...
    def port_here(self, shard: int) -> ShardPort | None: ...
    def status(self) -> dict[str, Any]: ...


class Answering:
    def __init__(self, node: Served) -> None:
        self._node = node
        self._memory = Memory()

    async def handle(self, path: str, call: str, body: bytes) -> bytes:
        """The answer to a request below `/internal/`. Raises BatonError."""
        known = self._memory.find(call) if call else None
        if known is not None:
            return await asyncio.shield(known)
        task = asyncio.get_running_loop().create_task(self._run(path, body))
        if call:
            self._memory.add(call, task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if path.endswith(("/receive", "/receive_matching", "/hint")):
                # Whoever asked has gone: nobody shall hold what it waits for.
                self._memory.forget(call)
                task.cancel()
            raise
        finally:
            if task.done() and not task.cancelled():
                task.exception()  # it is told, or nobody is there to be told

    async def _run(self, path: str, body: bytes) -> bytes:
        match path.split("/"):
            case ["shards", number, operation] if number.isdigit():
                return await self._shard(int(number), operation, body)
            case ["catalog", name]:
                catalog = self._node.catalog
                if not catalog.owned:
                    raise NotOwner("This node does not keep the catalog.")
                return await catalog.answer(name, body)
            case ["node", what]:
                return await self._own(what, body)
        raise NotFound(f"Nodes are not asked for {path!r}: the node that asks may be of a newer release.")

    async def _shard(self, number: int, operation: str, body: bytes) -> bytes:
        port = self._node.port_here(number)
        if port is None:
            raise NotOwner(f"This node does not serve shard {number}.")
        return await answer(port, operation, body)

    async def _own(self, what: str, body: bytes) -> bytes:
        loop = self._node.ownership_loop
        try:
            if what == "status":
                await loop.others.look()
                return msgspec.msgpack.encode(self._node.status())
            if what == "take":
                await loop.take_now(*_take.decode(body))
            elif what == "move":
                await loop.move(*_move.decode(body))
            elif what == "drain":
                await loop.hand_over()
            elif what == "undrain":
                loop.draining = False
            else:
                raise NotFound(f"A node cannot {what!r}.")
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None
        return msgspec.msgpack.encode(None)
