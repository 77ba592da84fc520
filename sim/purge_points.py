"""Records in the history where purges begin: no call of a client shows which messages a purge may remove."""

from __future__ import annotations

import asyncio

from batonq.node.routing.local_shard import LocalShard
from sim.checks.evidence import QueueFacts
from sim.history import OK, History, PurgePoint
from sim.log import Witness
from sim.patches import Patches


def purge_points_noted(history: History, witness: Witness, queues: dict[str, QueueFacts]) -> Patches:
    """Record the answer of each shard that is asked where a purge begins."""
    purge_point = LocalShard.purge_point

    async def note(self: LocalShard, queue: int) -> int:
        through = await purge_point(self, queue)
        name = next((facts.name for facts in queues.values() if facts.number == queue), "")
        now_s = asyncio.get_running_loop().time()
        history.say(now_s, "purge", f"of {name or queue} goes up to {through} on shard {self._number}")
        history.add(
            PurgePoint(
                history.next_number(),
                "purge",
                name,
                now_s,
                0,
                now_s,
                outcome=OK,
                shard=self._number,
                through=through,
                place=witness.commits,
            )
        )
        return through

    return [(LocalShard, "purge_point", note)]
