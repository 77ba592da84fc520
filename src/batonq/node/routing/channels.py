"""Channels between shards: committed entries only, in order, in a bounded window, resent until they are settled.

There is one pump per pair of shards. The pump reads what the source owes, waits until that is committed, hands it to
the destination, and settles what the destination has committed. After a crash at any point the entry numbers leave
exactly one copy: the destination answers an entry that it has seen from its cursor, and the source resends from the
last settled entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from batonq.core.commands import Arrival
from batonq.core.records import Reason
from batonq.errors import BatonError, LogCorrupt
from batonq.log.cancellation import end
from batonq.node.alarms.book import AlarmBook
from batonq.node.alarms.kinds import CRITICAL
from batonq.node.messages.log_reader import make_arrival
from batonq.node.routing.ports import ShardPort
from batonq.node.shard_host.host import ShardHost, committed
from batonq.node.shard_host.keeper import ShardKeeper

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0
PAUSE_MAX_S = 20.0


class Transport(Protocol):
    """How entries reach their destination shard."""

    async def deliver(self, destination: int, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Return (number, verdict) per entry, committed at the destination.

        Raises BatonError when the delivery may be retried, and LogCorrupt when the numbers do not match.
        """


class PortTransport:
    """Delivers entries to a shard, on this node or another one."""

    def __init__(self, port: Callable[[int], ShardPort]) -> None:
        self._port = port

    async def deliver(self, destination: int, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        return await self._port(destination).arrive(arrivals)


class Channels:
    """The pumps of all shards that this node serves."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        alarms: AlarmBook,
        window_entries: int,
        window_bytes: int,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._alarms = alarms
        self._window_entries = window_entries
        self._window_bytes = window_bytes
        self._pumps: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._stopping = False
        self._paused = ""  # the backup for which nothing is delivered and settled
        self._going = asyncio.Event()  # set while deliveries go on
        self._going.set()
        self._resuming: asyncio.TimerHandle | None = None

    def look(self, keeper: ShardKeeper) -> None:
        """Start pumps for what the shard owes to other shards. Called after a commit, or when a shard was opened."""
        if self._stopping or not keeper.serving:
            return
        host = keeper.host()
        for destination in host.shard.unsettled():
            pair = (keeper.number, destination)
            if destination != keeper.number and pair not in self._pumps:
                task = self._loop.create_task(self._pump(keeper.number, destination, host))
                self._pumps[pair] = task
                task.add_done_callback(partial(self._ended, keeper, pair))

    # --- a pause, so that several processes can be backed up at one point

    def pause(self, backup: str) -> bool:
        """Deliver and settle nothing until `resume`, or for PAUSE_MAX_S. False: another backup has paused already."""
        if self._paused and self._paused != backup:
            return False
        self._paused = backup
        self._going.clear()
        if self._resuming is not None:
            self._resuming.cancel()
        self._resuming = self._loop.call_later(PAUSE_MAX_S, self.resume, backup)
        return True

    def paused_for(self, backup: str) -> bool:
        return self._paused == backup

    def resume(self, backup: str) -> bool:
        """Returns whether the pause for this backup was still in effect."""
        if self._paused != backup:
            return False
        self._paused = ""
        self._going.set()
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        return True

    async def close(self) -> None:
        self._stopping = True
        self._going.set()
        if self._resuming is not None:
            self._resuming.cancel()
        await end(*self._pumps.values())

    def _ended(self, keeper: ShardKeeper, pair: tuple[int, int], _task: asyncio.Task[None]) -> None:
        self._pumps.pop(pair, None)
        self.look(keeper)  # entries that became owed while the pump was ending

    async def _pump(self, source: int, destination: int, host: ShardHost) -> None:
        """Run while the source owes the destination anything. When the host ends, a new pump takes over."""
        pause_s = RETRY_FIRST_S
        pair = f"{source}-{destination}"
        while host.serving:
            try:
                if not await self._send_window(destination, host):
                    self._alarms.clear("channel-stopped", pair)
                    return
                pause_s = RETRY_FIRST_S
            except Exception as problem:
                if not isinstance(problem, BatonError) or isinstance(problem, LogCorrupt):
                    # An immediate retry would only keep the loop busy: an operator has to look.
                    text = f"The channel from shard {source} to shard {destination} is stopped: {problem}"
                    self._alarms.put("channel-stopped", text, of=pair, severity=CRITICAL)
                    pause_s = RETRY_MAX_S
                elif pause_s >= RETRY_MAX_S:
                    text = f"Shard {destination} does not accept messages from shard {source}: {problem.message}"
                    self._alarms.put("channel-stopped", text, of=pair)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _send_window(self, destination: int, host: ShardHost) -> bool:
        """Move one window of entries. Returns False when nothing is owed."""
        entries = host.shard.pending_entries(destination, 0, self._window_entries)
        if not entries:
            return False
        await committed(host)
        arrivals: list[Arrival] = []
        total = 0
        copied: dict[bytes, int] = {}  # payload of a published message → index of its first copy
        for entry in entries:
            arrival = make_arrival(host.shard, host.log, entry)
            if arrival.reason == Reason.FANOUT:
                first = copied.setdefault(arrival.payload, len(arrivals))
                if first < len(arrivals):
                    arrival.same_as, arrival.payload = len(arrivals) - first, b""
            arrivals.append(arrival)
            total += len(arrival.payload)
            if total >= self._window_bytes:
                break
        await self._going.wait()
        results = await self._transport.deliver(destination, arrivals)
        await self._going.wait()
        host.settle(destination, results)
        host.commit.kick()
        return True
