"""Ownership as rows: taken and kept with conditional updates, with times by the database's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection

from batonq.errors import Fenced, OwnershipHeld
from batonq.log.backend import NameTaken
from batonq.log.interface import Lease, Member
from batonq.log.postgres import schema
from batonq.log.postgres.connection import Line, wait_for_event


class PostgresLeases:
    """See interface.Leases. `changed` returns an event that is set at the next reported change of an owner."""

    def __init__(
        self,
        line: Line,
        *,
        node: str,
        address: str,
        ttl_s: float,
        changed: Callable[[], asyncio.Event],
        poll_s: float,
    ) -> None:
        assert node
        self._line = line
        self._node = node
        self._address = address
        self._ttl_s = ttl_s
        self._changed = changed
        self._poll_s = poll_s
        self._epochs: dict[int, int] = {}
        self._incarnation = ""
        self._replaces = ""

    async def acquire(self, shard: int, above: int = 0) -> int:
        values = {"shard": shard, "above": above, "node": self._node, "address": self._address, "ttl": self._ttl_s}
        rows = await self._line.run(schema.ACQUIRE, values)
        if not rows:
            holder = (await self._line.run(schema.OWNER, (shard,)))[0]
            raise OwnershipHeld(f"shard {shard} is owned by node {holder[0]} at {holder[1]}")
        self._epochs[shard] = rows[0][0]
        return self._epochs[shard]

    async def renew(self, shard: int) -> None:
        epoch = self._epochs.get(shard, 0)
        values = {"shard": shard, "node": self._node, "epoch": epoch, "ttl": self._ttl_s}
        if not await self._line.run(schema.RENEW, values):
            self._epochs.pop(shard, None)
            raise Fenced(f"the lease of node {self._node} on shard {shard} has expired")

    async def release(self, shard: int) -> None:
        epoch = self._epochs.pop(shard, None)
        if epoch is not None:
            await self._line.run(schema.RELEASE, {"shard": shard, "node": self._node, "epoch": epoch})

    def incarnate(self, incarnation: str, replaces: str = "") -> None:
        self._incarnation, self._replaces = incarnation, replaces

    async def announce(self, note: str) -> None:
        values = {"node": self._node, "address": self._address, "note": note, "ttl": self._ttl_s}
        values |= {"incarnation": self._incarnation, "replaces": self._replaces}
        if not await self._line.run(schema.MEMBER, values):
            rows = await self._line.run(schema.MEMBER_ADDRESS, (self._node,))
            raise NameTaken(self._node, str(rows[0][0]) if rows else "an unknown address")

    async def withdraw(self) -> None:
        await self._line.run(schema.NO_MEMBER, (self._node, self._incarnation))

    async def agree(self, name: str, text: str, replaces: Collection[str] = ()) -> str:
        values = {"name": name, "value": text, "replaces": list(replaces)}
        return str((await self._line.run(schema.AGREE, values))[0][0])

    async def expect(self, node: str, is_expected: bool) -> None:
        await self._line.run(schema.EXPECT if is_expected else schema.NOT_EXPECTED, (node,))

    async def expected(self) -> list[str]:
        return [str(row[0]) for row in await self._line.run(schema.EXPECTED)]

    async def store_time_ms(self) -> int:
        return int((await self._line.run(schema.TIME))[0][0])

    async def members(self) -> list[Member]:
        return [Member(*row) for row in await self._line.run(schema.MEMBERS)]

    def held(self) -> list[int]:
        return list(self._epochs)

    async def holders(self) -> dict[int, Lease]:
        return (await self._read())[0]

    async def _read(self) -> tuple[dict[int, Lease], float]:
        """The owners, and when the first of their leases expires."""
        rows = await self._line.run(schema.OWNERS)
        leases = {shard: Lease(shard, node, address, epoch) for shard, node, address, epoch, _ in rows}
        return leases, min((left_s for *_, left_s in rows), default=self._poll_s)

    async def watch(self) -> AsyncGenerator[Lease, None]:
        known: dict[int, Lease] = {}
        while True:
            changed = self._changed()
            leases, left_s = await self._read()
            for shard in known.keys() | leases.keys():
                now = leases.get(shard, Lease(shard, "", "", known[shard].epoch if shard in known else 0))
                if now != known.get(shard):
                    yield now
            known = leases
            await wait_for_event(changed, min(max(left_s, 0) + 0.02, self._poll_s))
