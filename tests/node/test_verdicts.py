"""A channel whose destination has forgotten what became of an entry: it stops, says so, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batonq.core.commands import Arrival
from batonq.core.limits import ShardLimits
from batonq.errors import Unavailable
from batonq.node.routing.channels import Transport
from tests.node.nodes import drain, make_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_channels import make_pair


class LosesAnswers:
    """The destination takes the entries, and its source does not hear of it."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.lost = 0

    async def deliver(self, destination: int, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        results = await self.inner.deliver(destination, arrivals)
        if not self.lost:
            self.lost = len(results)
            raise Unavailable("the answer got lost")
        return results


def test_a_channel_stops_when_it_cannot_be_told_what_became_of_an_entry(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = make_node(loop, tmp_path, shards=2)
        transports: list[LosesAnswers] = []

        def adapt(inner: Transport) -> Transport:
            transports.append(LosesAnswers(inner))
            return transports[0]

        node.world = replace(node.world, adapt_transport=adapt)
        await node.start()
        queue, dead = await make_pair(node)
        host = node.shards[dead.shard].host()
        host.shard.journal.limits = ShardLimits(verdicts_max=1)
        await send(node, queue, "a", "b", "c")
        for _ in range(3):
            await receive(node, queue, visibility_ms=0)
        await until(lambda: transports[0].lost > 0)
        assert transports[0].lost == 3
        await asyncio.sleep(20)
        (alarm,) = [alarm for alarm in node.alarms.active() if "no longer knows" in alarm.text]
        assert alarm.severity == "critical" and "is stopped" in alarm.text
        assert (await node.broker.counters(queue)).owed == 3, "they stay until somebody knows"
        assert sorted(await drain(node, dead)) == ["a", "b", "c"]
        await send(node, dead, "the shard is sound")
        assert await drain(node, dead) == ["the shard is sound"]
        assert node.shards[dead.shard].host() is host
        host.shard.journal.limits = ShardLimits()
        await asyncio.sleep(20)
        assert (await node.broker.counters(queue)).owed == 0
        assert not [alarm for alarm in node.alarms.active() if "no longer knows" in alarm.text]
        await node.stop()

    run_virtual(main)
