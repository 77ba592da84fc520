"""Deletes objects of the payload store that no message needs any more.

Servers and clients have put them there. Only objects of hours that ended long ago are looked at: nobody writes or
sends them any more (see payload_store.py). Every shard is asked which of them it needs, also for messages that were
moved, and for retained history (see core/shard/state/stored_payloads.py). If one shard does not answer, nothing is
deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from batonq.core.shard.state.stored_payloads import KEPT_MS
from batonq.errors import BatonError
from batonq.node import events
from batonq.node.messages.large_payloads import LIST_S, LargePayloads
from batonq.node.routing.ports import ShardPort

HOURS_MAX = 1_000  # per round; the rest is looked at in the next one
ASK_S = KEPT_MS / 1000 / 6  # asking all shards must not take as long as they remember what they have moved


class PayloadSweeper:
    """`ports` are those of all shards, wherever they are served. `leads`: whether this node is the one that sweeps."""

    def __init__(
        self,
        payloads: LargePayloads,
        ports: Callable[[], Sequence[ShardPort]],
        leads: Callable[[], bool],
        every_s: float,
    ) -> None:
        self._payloads = payloads
        self._ports = ports
        self._leads = leads
        self._every_s = every_s
        self._next_hour = ""  # folder where the next round begins, if one does not come to the end
        self.deleted = 0  # objects, since the start

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            if not self._leads():
                continue
            try:
                await self.sweep()
            except (BatonError, TimeoutError) as problem:
                reason = problem.message if isinstance(problem, BatonError) else "a shard did not answer in time."
                events.warning("payloads_not_swept", f"Unused bodies stay in the payload store for now: {reason}")

    async def sweep(self) -> int:
        """One round. Returns the number of deleted objects. Raises BatonError or TimeoutError if the store or a shard
        does not answer.
        """
        # Another server that began to use the store at the same moment may have it now.
        store, call = await self._payloads.store(again=True), self._payloads.call
        hours: list[str] = []
        for folder in ("", self._payloads.client_folder):
            hours += await call(LIST_S, store.settled_hours, folder)
        hours = [hour for hour in hours if hour >= self._next_hour] or hours
        deleted = 0
        for hour in hours[:HOURS_MAX]:
            keys = await call(LIST_S, store.keys, hour)
            needed = await self._needed(hour) if keys else set()
            unused = [key for key in keys if key not in needed]
            for key in unused:
                await call(LIST_S, store.delete, key)
            deleted += len(unused)
            if len(unused) == len(keys):
                await call(LIST_S, store.drop_hour, hour)
        self._next_hour = hours[HOURS_MAX] if len(hours) > HOURS_MAX else ""
        self.deleted += deleted
        if deleted:
            events.info("payloads_swept", f"Deleted {deleted} unused bodies from the payload store", objects=deleted)
        return deleted

    async def _needed(self, hour: str) -> set[str]:
        async with asyncio.timeout(ASK_S):
            told = await asyncio.gather(*(port.needed_payloads(hour) for port in self._ports()))
        return set().union(*told)
