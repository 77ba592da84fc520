"""Keeps a shard served: opens it, and reopens it from its stored log after a failure.

An append that failed is never retried in place, because nobody knows how much of it is on the disk. Every waiting
request is answered with a retryable error. The shard drops its state and restarts from its log, after a pause that
doubles with each failure. A log that is damaged, or of a newer release, is not reopened: an operator has to look at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from batonq.core.shard.machine import Shard
from batonq.errors import LogCorrupt, Unavailable
from batonq.log.cancellation import end
from batonq.log.interface import Log
from batonq.node import events
from batonq.node.context import NodeContext
from batonq.node.shard_host.group_commit import CommitStatistics
from batonq.node.shard_host.host import STARTING, ShardHost


@dataclass(slots=True)
class Opened:
    """A shard with its state at the end of its log, and with the record of its new owner in the open frame."""

    shard: Shard
    log: Log
    outage_ms: int = 0
    frames_folded: int = 0
    snapshot_frame: int = 0  # 0: there was no snapshot


Opener = Callable[[int], Awaitable[Opened]]


class KeeperState(Enum):
    """The state of a shard on this node."""

    OPENING = "opening"
    SERVING = "serving"
    STOPPED = "stopped"  # the log failed; the shard is reopened after a pause
    BROKEN = "broken"  # the log is damaged; the shard stays closed until an operator has looked
    CLOSED = "closed"
    FOLLOWING = "following"  # in a cluster: another node serves the shard, or none does
    TAKING = "taking"  # this node is taking the shard over
    LEAVING = "leaving"  # this node is handing the shard over
    ELSEWHERE = "elsewhere"  # another process of the same server has the shard


class ShardKeeper:
    """One shard's place in a node. `host()` returns the shard's host while the shard is served."""

    def __init__(
        self,
        number: int,
        context: NodeContext,
        *,
        opener: Opener,
        on_open: Callable[[ShardKeeper], None] | None = None,
        on_commit: Callable[[ShardKeeper], None] | None = None,
    ) -> None:
        self.number = number
        self.state = KeeperState.OPENING
        self.why = STARTING
        self.statistics = CommitStatistics()
        self.failures = 0
        self._context = context
        self._loop = context.loop
        self._clock = context.clock
        self._settings = context.settings
        self._alarms = context.alarms
        self._opener = opener
        self._on_open = on_open
        self._on_commit = on_commit
        self._host: ShardHost | None = None
        self._reopening: asyncio.Task[None] | None = None

    def host(self) -> ShardHost:
        """The shard's host. Raises Unavailable while the shard is not served."""
        host = self._host
        if host is None:
            raise Unavailable(self.why)
        return host

    def reading(self) -> tuple[Shard, Log]:
        """The shard and log that this node has, for readers. Raises Unavailable."""
        host = self.host()
        return host.shard, host.log

    @property
    def readable(self) -> bool:
        return self.serving

    @property
    def serving(self) -> bool:
        return self._host is not None and self._host.serving

    @property
    def holds(self) -> bool:
        """Whether this node is to run requests to the shard."""
        return self.serving

    def assured(self) -> bool:
        """Whether ownership is assured, so that replies without a commit may be given; see group_commit.py."""
        return True

    async def open(self) -> None:
        """Open and serve the shard. Raises the error that prevents it."""
        await self._serve(await self._opener(self.number))

    async def _serve(self, opened: Opened) -> None:
        host = ShardHost(
            opened.shard,
            opened.log,
            loop=self._loop,
            clock=self._clock,
            settings=self._settings,
            cluster=self._context.cluster,
            alarms=self._alarms,
            on_commit=self._committed,
            on_failure=self._failed,
            statistics=self.statistics,
            assured=self.assured,
        )
        try:
            await host.start()
        except BaseException:
            host.close()
            opened.log.close()
            raise
        self._host = host
        self.state = KeeperState.SERVING
        self.why = ""
        self._alarms.clear("shard-stopped", self.number)
        events.debug(
            "shard_opened",
            f"Shard {self.number} is served",
            shard=self.number,
            epoch=opened.shard.epoch,
            next_frame=opened.log.next,
            snapshot_frame=opened.snapshot_frame,
            frames_folded=opened.frames_folded,
            outage_ms=opened.outage_ms,
        )
        if self._on_open is not None:
            self._on_open(self)

    async def close(self) -> None:
        """Stop serving. The caller should have drained the host before."""
        self.state = KeeperState.CLOSED
        self.why = "The node is stopping. Retry."
        await end(self._reopening)
        host, self._host = self._host, None
        if host is not None:
            host.close(self.why)
            host.log.close()

    def _committed(self) -> None:
        if self._on_commit is not None:
            self._on_commit(self)

    def _failed(self, problem: BaseException) -> None:
        """The host has ended. Its log is closed on the next turn: the failed append may still be running."""
        host, self._host = self._host, None
        if self.state is not KeeperState.SERVING or host is None:
            return  # while opening, `open` raises the error
        self.failures += 1
        self.state = KeeperState.STOPPED
        self.why = host.why
        text = f"Shard {self.number} stopped: {problem}. It is being reopened."
        self._alarms.put("shard-stopped", text, of=self.number)
        self._loop.call_soon(host.log.close)
        self._reopening = self._loop.create_task(self._reopen())

    async def _reopen(self) -> None:
        pause_s = self._settings.reopen_first_s
        while self.state is KeeperState.STOPPED:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._settings.reopen_max_s)
            try:
                await self.open()
            except LogCorrupt as problem:
                self.state = KeeperState.BROKEN
                self.why = f"Shard {self.number} is stopped: {problem.message}"
                self._alarms.put("shard-stopped", self.why, of=self.number)
            except Exception as problem:  # whatever the error is, retrying is all that is left to do
                self.why = f"Shard {self.number} could not be opened: {problem}"
                self._alarms.put("shard-stopped", self.why, of=self.number)
