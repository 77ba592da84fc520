"""A purge removes what its queue had when the purge began, and nothing that was sent later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.core.ids import parse_message_id
from batonq.core.limits import ShardLimits
from batonq.node.routing.forwarding import RemoteShard
from batonq.node.routing.wire import answer
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("spread", [1, 3])
@pytest.mark.parametrize("before", [0, 6])
def test_a_message_that_was_sent_after_a_purge_began_stays(
    tmp_path: Path, before: int, spread: int, remote: bool
) -> None:
    """Also on shards that never had a message when the purge began."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.Spread": str(spread)}, {})
        for number in range(before):
            await send(node, queue, f"early {number}")
        ports = {}
        for shard in queue.shards:
            local = node.broker._port(shard)

            async def call(operation: str, data: bytes, _wait_ms: int, local=local) -> bytes:  # type: ignore[no-untyped-def]
                return await answer(local, operation, data)

            ports[shard] = RemoteShard(call) if remote else local
        points = {shard: await port.purge_point(queue.number) for shard, port in ports.items()}
        late = [await send(node, queue, f"late {number}") for number in range(6)]
        places = {parse_message_id(sent.message_id)[0] for (sent,) in late}  # type: ignore[union-attr, index]
        assert places == set(queue.shards)
        for shard, port in ports.items():
            await port.purge(queue.number, points[shard])
        left = [delivery.body for _ in range(6) for delivery in await receive(node, queue)]
        assert sorted(left) == [f"late {number}".encode() for number in range(6)]
        await node.stop()

    run_virtual(main)


def test_a_purge_that_begins_during_another_removes_what_was_sent_in_between(tmp_path: Path) -> None:
    """The end of the first purge is not the end of the second."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=1, purge_wait_s=0.0, shard_limits=ShardLimits(purge_step_max=5))
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for number in range(20):
            await send(node, queue, f"early {number}")
        shard = node.keeper(queue.shards[0]).host().shard
        first = loop.create_task(node.broker.purge_queue(queue))
        while shard.counters(queue.number).visible == 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert shard.counters(queue.number).visible, "the first purge has more to do"
        await send(node, queue, "late")
        await node.broker.purge_queue(queue)
        await first
        assert shard.counters(queue.number).visible == 0
        await node.stop()

    run_virtual(main)
