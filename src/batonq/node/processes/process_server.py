"""Answers other processes: about this process's shards, like a node of a cluster, and about itself."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from batonq.errors import InvalidInput, NotFound
from batonq.node.backup import backups
from batonq.node.cluster.node_server import Serving, ShardAnswering
from batonq.node.operations.history import Served

STATUS = "status"
_millis = msgspec.msgpack.Decoder(int)
_read = msgspec.msgpack.Decoder(tuple[int, int, int, float, int | None])
encode = msgspec.msgpack.encode


class Process(Serving, Protocol):
    """The parts of a process that other processes may ask for."""

    backups: backups.Backups

    async def read_history_here(
        self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None
    ) -> Served: ...
    async def advance_clock_here(self, forward_ms: int) -> int: ...


class ProcessAnswering(ShardAnswering):
    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._process = process

    async def _own(self, what: str, body: bytes) -> bytes:
        try:
            return encode(await self._tell(what, body))
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None

    async def _tell(self, what: str, body: bytes) -> Any:
        process = self._process
        if what == STATUS:
            return process.status()
        if what == "history":
            return await process.read_history_here(*_read.decode(body))
        if what == "clock":
            return await process.advance_clock_here(_millis.decode(body))
        if what == backups.COMMAND:
            return await process.backups.answer(body)
        if what == "give_up":
            return self._let_go(body)
        if what in ("take", "move", "drain", "undrain"):
            raise InvalidInput(
                "Shards cannot be handed over between the processes of one server. Stop the server and restart it "
                "with another value of --processes."
            )
        raise NotFound(f"Unknown process command {what!r}.")
