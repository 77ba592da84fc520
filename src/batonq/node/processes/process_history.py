"""History of a server with several processes: each process has the history of its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from batonq.errors import NotFound
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.operations.history import History, Listed, Served
from batonq.node.processes.place import Place, name_of
from batonq.node.shard_host.keeper import ShardKeeper

READ_S = 30.0
_listed = msgspec.msgpack.Decoder(Listed)
_served = msgspec.msgpack.Decoder(Served)


class ProcessHistory(History):
    """History of all shards, whichever process has them."""

    def __init__(
        self,
        *,
        place: Place,
        everywhere: Everywhere,
        shards: Sequence[ShardKeeper],
        rate_bytes: int,
        seconds: Callable[[], float],
    ) -> None:
        super().__init__(shards=shards, rate_bytes=rate_bytes, seconds=seconds)
        self._place = place
        self._everywhere = everywhere
        everywhere.provide("histories", self._listed_here)

    async def _listed_here(self, arguments: dict[str, Any]) -> Listed:
        return await super().listed(bool(arguments["names"]))

    async def listed(self, names: bool) -> Listed:
        parts = await self._everywhere.read_as(_listed, "histories", names=names)
        found = [part.value for part in parts if part.value is not None]
        shards = sorted(one for each in found for one in each.shards)
        queues = {shard: queues for each in found for shard, queues in each.queues.items()}
        listed = {one.shard for one in shards}
        return Listed(shards, queues, [keeper.number for keeper in self._shards if keeper.number not in listed])

    async def read(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None = None) -> Served:
        """Raises the error of the process that has the shard, and Unavailable when that process does not answer."""
        if not 0 <= shard < len(self._shards) or self._place.has(shard):
            return await self.read_here(shard, start, bytes_max, wait_s, stop)
        body = msgspec.msgpack.encode((shard, start, bytes_max, wait_s, stop))
        owner = name_of(self._place.process_of(shard))
        return _served.decode(await self._everywhere.others.ask(owner, "history", body, READ_S + wait_s))

    async def read_here(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None) -> Served:
        if 0 <= shard < len(self._shards) and not self._place.has(shard):
            raise NotFound(f"This process does not serve shard {shard}.")
        return await super().read(shard, start, bytes_max, wait_s, stop)
