"""Renews the leases of this node's shards, and stops serving a shard whose lease is lost.

The leases are for liveness only: an owner that continues without a lease is fenced by the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batonq.errors import BatonError, Fenced
from batonq.log.interface import OwnershipLeases
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.shard_host.log_stores import StoreLogs

TERMS = 4  # renewals per lease term


class LeaseKeeper:
    def __init__(
        self,
        logs: StoreLogs,
        leases: OwnershipLeases,
        *,
        term_s: float,
        alarms: AlarmBook,
        on_lost: Callable[[int, BatonError], None],
    ) -> None:
        self._logs = logs
        self._leases = leases
        self._term_s = term_s
        self._alarms = alarms
        self._on_lost = on_lost

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._term_s / TERMS)
            for shard in self._leases.held():
                await self._renew(shard)
            self._look()

    async def _renew(self, shard: int) -> None:
        try:
            await self._leases.renew(shard)
        except Fenced as problem:
            events.warning("lease_lost", problem.message, shard=shard)
            self._on_lost(shard, problem)
        except BatonError as problem:  # the next renewal may be in time; if not, the lease is lost, and the log fences
            events.warning("lease_not_renewed", problem.message, shard=shard)

    def _look(self) -> None:
        """Report what delays commits."""
        for shard, log in self._logs.opened.items():
            if log.trouble:
                text = f"The log of shard {shard} makes no progress: {log.trouble}"
                self._alarms.put("log-stalled", text, of=shard)
            else:
                self._alarms.clear("log-stalled", shard)
