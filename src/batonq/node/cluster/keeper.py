"""A shard's place in a node of a cluster: always followed, and served while the node owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, Unavailable
from batonq.log.interface import Log, OwnershipLeases
from batonq.log.replicated_log import MirroredLog
from batonq.node import events
from batonq.node.cluster.balance import Load
from batonq.node.cluster.follower import Follower, Machine
from batonq.node.cluster.pause_detector import Awake
from batonq.node.context import NodeContext
from batonq.node.shard_host.keeper import KeeperState, Opened, ShardKeeper
from batonq.node.shard_host.recovery import Recovery

MEASURED_S = 2.0


class Measured(NamedTuple):
    """What had been written and delivered at a time, and the load computed from that."""

    at_s: float
    rows: int
    reads: int
    load: Load


NOT_MEASURED = Measured(0.0, 0, 0, Load())


class ClusterKeeper(ShardKeeper):
    """`open` starts following. `follower` becomes the owner and steps down."""

    def __init__(
        self,
        number: int,
        context: NodeContext,
        *,
        recovery: Recovery,
        leases: OwnershipLeases,
        on_frame: Callable[[int], None],
        awake: Awake,
        **same: Any,
    ) -> None:
        super().__init__(number, context, opener=recovery.read_shard, **same)
        self.follower = Follower(
            number,
            f"Shard {number}",
            self._context,
            leases=leases,
            read=self._read,
            serve=self._serve_machine,
            stop=self._stop,
            on_frame=lambda: on_frame(number),
            on_state=self._set_state,
            awake=awake,
        )
        self._followed = False  # the value of `followed` at the time of `close`
        self._measured = NOT_MEASURED

    def _set_state(self, state: KeeperState, why: str) -> None:
        self.state, self.why = state, why

    async def open(self) -> None:
        await self.follower.open()

    async def _read(self) -> tuple[Machine, MirroredLog]:
        opened = await self._opener(self.number)
        return opened.shard, cast(MirroredLog, opened.log)

    async def _serve_machine(self, machine: Machine, log: MirroredLog, outage_ms: int) -> None:
        await self._serve(Opened(cast(Shard, machine), log, outage_ms=outage_ms))

    @property
    def holds(self) -> bool:
        return self.serving and self.follower.holds

    def assured(self) -> bool:
        return self.follower.leased

    def reading(self) -> tuple[Shard, Log]:
        machine, log = self.follower.machine, self.follower.log
        if machine is None or log is None:
            raise Unavailable(self.why)
        return cast(Shard, machine), log

    @property
    def readable(self) -> bool:
        return self.follower.machine is not None

    async def _stop(self) -> bool:
        """Stop serving. Returns whether all decisions are committed."""
        host, self._host = self._host, None
        if host is None:
            return False
        host.stop_waiting()
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await host.drain()
        except (TimeoutError, BatonError) as problem:
            events.warning("drain_failed", f"Shard {self.number} could not be drained: {problem}", shard=self.number)
        clean = host.commit.idle and not host.commit.failed
        host.close("The shard is being handed over to another node. Retry.")
        return clean

    def _failed(self, problem: BaseException) -> None:
        host, self._host = self._host, None
        if host is None:
            return  # while the shard is being taken, `take` raises the error
        self.failures += 1
        self.follower.lost(problem)

    def abandon(self, problem: BaseException) -> None:
        """The lease is lost: this node will commit nothing more."""
        if self._host is not None:
            self._host.commit.abandon(problem)

    @property
    def followed(self) -> bool:
        """Whether the folded state is exactly the committed state: this node had made no decisions."""
        return self._followed

    async def close(self) -> None:
        self._followed = self.follower.state is KeeperState.FOLLOWING
        host, self._host = self._host, None
        if host is not None:
            host.close("The node is stopping. Retry.")
        await self.follower.close()

    def load(self) -> Load:
        """The shard's load on this node. Rates cover the last seconds, however often this is called."""
        host = self._host
        if host is None:
            self._measured = NOT_MEASURED
            return Load()
        now_s = self._loop.time()
        before = self._measured
        passed_s = now_s - before.at_s
        if before.at_s and passed_s < MEASURED_S:
            return before.load
        states = list(host.shard.queues.values())
        rows, reads = self.statistics.rows, sum(state.received for state in states)
        load = Load(
            rows_per_s=max(0, rows - before.rows) / passed_s if before.at_s else 0.0,
            reads_per_s=max(0, reads - before.reads) / passed_s if before.at_s else 0.0,
            bytes=host.log.bytes_retained(),
            leases=sum(state.in_flight for state in states),
        )
        self._measured = Measured(now_s, rows, reads, load)
        return load
