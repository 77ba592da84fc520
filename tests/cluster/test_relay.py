"""Calls that were relayed for a node that has gone: nobody holds what their receives got, and nothing is run twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batonq.node.relayed import (
    RelayedAnswer,
    RelayedCall,
    RelayedReceive,
    RelayedSend,
    RelayedSent,
    RelayedTexts,
)

from batonq.node import wire
from batonq.node.broker import Queue
from batonq.node.cluster.answering import call_name
from batonq.node.cluster.node import ClusterNode
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT
from tests.support import brokers


class Relayed:
    """One call to the owner of a queue's shard: a send and a receive."""

    def __init__(self, owner: ClusterNode, queue: Queue) -> None:
        calls: list[RelayedCall] = [
            RelayedSend(queue.number, "ann", 0, 0, [b"sent"], [bytes(16)]),
            RelayedReceive(queue.number, queue.account, queue.name, "zoe", 1, None),
        ]
        self._owner = owner
        self._path = f"shards/{queue.shard}/relay"
        self._name = call_name("a-call", owner.epoch_here(queue.shard))
        self._body = wire.encode((calls,))

    async def ask(self) -> list[RelayedAnswer]:
        answer = await self._owner.answering.handle(self._path, self._name, self._body)
        answers: list[RelayedAnswer] = wire.decode_answer("relay", answer)
        return answers

    async def ask_and_leave(self) -> None:
        """The connection is lost while the owner is at work."""
        asking = asyncio.create_task(self.ask())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def in_flight(node: ClusterNode, queue: Queue) -> tuple[int, int, int]:
    counters = await node.broker.counters(queue)
    return counters.visible, counters.in_flight, counters.sent


def test_receives_of_a_node_that_has_gone_are_given_back_and_the_rest_stays(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        call = Relayed(owner, queue)
        await call.ask_and_leave()
        host = owner.shards[queue.shard].host()
        await nodes.until(lambda: host.counters(queue.number).visible == 1)
        sent, received = await call.ask()
        assert isinstance(sent, RelayedSent) and received is None, "to be received the general way"
        assert await in_flight(owner, queue) == (1, 0, 1), "and nothing was run again"
        (found,) = await brokers.receive(owner.broker, queue, 10, None, 0, "ben")
        assert found.receive_count == 1

    run_nodes(tmp_path, main, "a", "b")


def test_who_asks_again_in_time_keeps_what_was_received(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        call = Relayed(owner, queue)
        again = asyncio.create_task(call.ask())
        await call.ask_and_leave()
        sent, received = await again
        assert isinstance(sent, RelayedSent) and isinstance(received, RelayedTexts)
        await asyncio.sleep(0.05)
        assert await in_flight(owner, queue) == (0, 1, 1)
        assert await call.ask() == [sent, received]

    run_nodes(tmp_path, main, "a", "b")
