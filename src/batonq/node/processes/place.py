"""Records which process has which shards, and which processes are running. The supervisor decides both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

from batonq.log.interface import Lease
from batonq.log.layout import CATALOG_SHARD
from batonq.node.cluster.peers import UNIX


@dataclass(slots=True, frozen=True)
class Place:
    """One process among all that serve a data directory. The first process also has the catalog."""

    data: str
    number: int
    of: int

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def address(self) -> str:
        return self.address_of(self.number)

    @property
    def first(self) -> bool:
        return self.number == 0

    def has(self, shard: int) -> bool:
        return self.process_of(shard) == self.number

    def process_of(self, shard: int) -> int:
        return 0 if shard == CATALOG_SHARD else shard % self.of

    def address_of(self, number: int) -> str:
        return UNIX + socket_path(self.data, number)


def name_of(number: int) -> str:
    return f"p{number}"


def socket_path(data: str, number: int) -> str:
    return os.path.join(os.path.abspath(data), f"{name_of(number)}.sock")


class ToldOwners:
    """Who owns what, for routing.

    `up` has the processes that can be asked, each with a number that is new at every start.
    """

    def __init__(self, place: Place) -> None:
        self.up: dict[int, int] = {}
        self.seen: set[int] = set()  # processes that were running at some time
        self._place = place
        self._owners: dict[int, Lease] = {}  # computed since `up` changed: every request asks for an owner
        self._changed = asyncio.Event()

    @property
    def node(self) -> str:
        return self._place.name

    def tell(self, up: Mapping[int, int]) -> None:
        self.up = dict(up)
        self.seen.update(up)
        self._owners.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def owner(self, shard: int) -> Lease | None:
        lease = self._owners.get(shard)
        if lease is None:
            number = self._place.process_of(shard)
            start = self.up.get(number)
            if start is not None:
                lease = Lease(shard, name_of(number), self._place.address_of(number), start)
                self._owners[shard] = lease
        return lease

    def others(self) -> dict[int, str]:
        """The addresses of the other processes that can be asked."""
        return {number: self._place.address_of(number) for number in self.up if number != self._place.number}

    async def refresh(self) -> None:
        """Nothing to ask: the supervisor reports changes."""

    async def next_change(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
