"""A view of a whole server: each process is asked for its part, and a process that does not answer is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from batonq.errors import BatonError, NotFound, Unavailable
from batonq.node.cluster.peers import PREFIX, Asking
from batonq.node.operations.history import History, Listed, Served
from batonq.node.operations.metrics import Front
from batonq.node.operations.overview import HistoryReading, Overview, QueueReading, ShardReading
from batonq.node.processes.place import Place, ToldOwners, name_of
from batonq.node.routing.splitter import summed
from batonq.node.shard_host.group_commit import CommitStatistics
from batonq.node.shard_host.keeper import KeeperState

ASK_S = 3.0
CLOCK_S = 60.0
READ_S = 30.0
_overview = msgspec.msgpack.Decoder(Overview)
_front = msgspec.msgpack.Decoder(Front)
_listed = msgspec.msgpack.Decoder(Listed)
_served = msgspec.msgpack.Decoder(Served)


class Others:
    """The other processes of the server."""

    def __init__(self, owners: ToldOwners, peers: Asking) -> None:
        self._owners = owners
        self._peers = peers

    async def overviews(self) -> list[Overview]:
        return [*map(_overview.decode, (await self._ask_all("overview")).values())]

    async def fronts(self) -> dict[str, Front]:
        """Front metrics by the name of the process."""
        return {name_of(number): _front.decode(answer) for number, answer in (await self._ask_all("front")).items()}

    async def histories(self, names: bool) -> list[Listed]:
        return [*map(_listed.decode, (await self._ask_all("histories", names)).values())]

    async def history(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None) -> Served:
        """Raises the error of the process that has the shard, and Unavailable when that process does not answer."""
        lease = self._owners.owner(shard)
        if lease is None:
            raise Unavailable(f"The process that serves shard {shard} is being restarted. Retry.")
        body = msgspec.msgpack.encode((shard, start, bytes_max, wait_s, stop))
        path = f"{PREFIX}node/history"
        return _served.decode(await self._peers.ask(lease.address, path, "", body, READ_S + wait_s))

    async def advance_clock(self, forward_ms: int) -> None:
        await self._ask_all("clock", forward_ms, CLOCK_S)

    async def _ask_all(self, what: str, body: Any = None, timeout_s: float = ASK_S) -> dict[int, bytes]:
        others = self._owners.others()
        data = msgspec.msgpack.encode(body)
        answers = await asyncio.gather(
            *(self._peers.ask(address, f"{PREFIX}node/{what}", "", data, timeout_s) for address in others.values()),
            return_exceptions=True,
        )
        found: dict[int, bytes] = {}
        for number, answer in zip(others, answers, strict=True):
            if isinstance(answer, bytes):
                found[number] = answer
            elif not isinstance(answer, BatonError):
                raise answer
        return found


class ProcessHistory(History):
    """History of all shards, whichever process has them."""

    def __init__(self, *, place: Place, others: Others, **same: Any) -> None:
        super().__init__(**same)
        self._place = place
        self._others = others

    async def listed(self, names: bool) -> Listed:
        found = [await super().listed(names), *await self._others.histories(names)]
        shards = sorted(one for each in found for one in each.shards)
        queues = {shard: queues for each in found for shard, queues in each.queues.items()}
        listed = {one.shard for one in shards}
        return Listed(shards, queues, [keeper.number for keeper in self._shards if keeper.number not in listed])

    async def listed_here(self, names: bool) -> Listed:
        return await super().listed(names)

    async def read(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None = None) -> Served:
        if not 0 <= shard < len(self._shards) or self._place.has(shard):
            return await self.read_here(shard, start, bytes_max, wait_s, stop)
        return await self._others.history(shard, start, bytes_max, wait_s, stop)

    async def read_here(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None) -> Served:
        if 0 <= shard < len(self._shards) and not self._place.has(shard):
            raise NotFound(f"This process does not serve shard {shard}.")
        return await super().read(shard, start, bytes_max, wait_s, stop)


def joined(parts: Sequence[Overview], queues: int, shards: int) -> Overview:
    """One overview of all processes. `queues` and `shards` are the total numbers."""
    whole = Overview(max(part.at_ms for part in parts))
    found: dict[tuple[str, str], list[QueueReading]] = {}
    for part in parts:
        for queue in part.queues:
            found.setdefault((queue.account, queue.name), []).append(queue)
    for _, readings in sorted(found.items()):
        counters = [reading.counters for reading in readings]
        waiters = max(reading.waiters for reading in readings)
        whole.queues.append(readings[0]._replace(waiters=waiters, counters=summed(counters)))
    whole.missing = max(0, queues - len(found))
    told = {shard.number: shard for part in parts for shard in part.shards}
    whole.shards = [told.get(number) or away(number) for number in range(shards)]
    whole.alarms = sorted(
        (alarm for part in parts for alarm in part.alarms), key=lambda alarm: alarm.last_ms, reverse=True
    )
    whole.alarms_raised = sum(part.alarms_raised for part in parts)
    whole.history = HistoryReading(*map(sum, zip(*(part.history for part in parts), strict=True)))
    whole.archive = sorted(one for part in parts for one in part.archive)
    return whole


def away(number: int) -> ShardReading:
    """A shard whose process does not answer."""
    why = "The process that serves the shard is being restarted. Retry."
    return ShardReading(number, KeeperState.STOPPED.value, why, 0, 0, "", 0, CommitStatistics())


def labelled(fronts: Mapping[str, Front]) -> Front:
    """Label the metrics per process. Each process counts from zero at its start, so their numbers are not summed."""
    whole: Front = []
    for at, (metric, _) in enumerate(next(iter(fronts.values()))):
        samples = []
        for name, front in fronts.items():
            for labels, value in front[at][1]:
                samples.append((f'{labels},process="{name}"' if labels else f'process="{name}"', value))
        whole.append((metric, samples))
    return whole
