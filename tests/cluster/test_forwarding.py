"""Commands of a node that has gone: nobody holds what its receives got, and nothing is executed twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batonq.core.commands import Command, Receive, Sent
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.node_server import call_name
from batonq.node.messages.received import Received
from batonq.node.routing import wire
from tests.cluster.memory import Nodes, other, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers
from tests.support.ask import batch


class Forwarded:
    """One call to the owner of a queue's shard."""

    def __init__(self, owner: ClusterNode, queue: Queue, operation: str, *commands: Command) -> None:
        self._owner = owner
        self._path = f"shards/{queue.shard}/{operation}"
        self._name = call_name("a-call", owner.epoch_here(queue.shard))
        self._body = wire.encode_commands(commands)

    async def ask(self) -> list[Any]:
        return wire.decode_outcomes(await self._owner.answering.handle(self._path, self._name, self._body))

    async def ask_and_leave(self, turns: int = 1) -> None:
        """The connection is lost while the owner is at work."""
        asking = asyncio.create_task(self.ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def give_up(self) -> None:
        """Tell the owner that nobody wants the answer."""
        await self._owner.answering.handle("node/give_up", "", msgspec.msgpack.encode(self._name))


def both(owner: ClusterNode, queue: Queue, attempt: str = "") -> Forwarded:
    """A send and a receive."""
    message = make_send("sent", group="g", dedup_id="d") if queue.fifo else make_send("sent")
    receive = Receive(queue.number, 1, None, "zoe", attempt)
    return Forwarded(owner, queue, wire.SUBMIT, batch(queue.number, [message]), receive)


async def in_flight(node: ClusterNode, queue: Queue) -> tuple[int, int, int]:
    counters = await node.broker.counters(queue)
    return counters.visible, counters.in_flight, counters.sent


async def make_queue(nodes: Nodes, fifo: bool = False) -> tuple[Queue, ClusterNode]:
    """With the owner of its shard."""
    attributes = {"FifoQueue": "true"} if fifo else {}
    queue = await nodes["a"].broker.create_queue(ACCOUNT, "work.fifo" if fifo else "work", attributes, {})
    return queue, await nodes.owned(queue.shard)


def test_receives_of_a_node_that_has_gone_are_given_back_and_the_rest_stays(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes)
        call = both(owner, queue)
        await call.ask_and_leave()
        host = owner.shards[queue.shard].host()
        await nodes.until(lambda: host.counters(queue.number).visible == 1)
        sent, received = await call.ask()
        assert isinstance(sent, Sent) and isinstance(received, Received) and not received, "it got nothing"
        assert await in_flight(owner, queue) == (1, 0, 1), "and nothing was executed again"
        (found,) = await brokers.receive(owner.broker, queue, 10, None, 0, "ben")
        assert found.receive_count == 1

    run_nodes(tmp_path, main, "a", "b")


def test_who_asks_again_in_time_keeps_what_was_received(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes)
        call = both(owner, queue)
        again = asyncio.create_task(call.ask())
        await call.ask_and_leave()
        sent, received = await again
        assert isinstance(sent, Sent) and received.bodies == [b"sent"]
        await asyncio.sleep(0.05)
        assert await in_flight(owner, queue) == (0, 1, 1)
        assert [one.bodies for one in (await call.ask())[1:]] == [[b"sent"]]

    run_nodes(tmp_path, main, "a", "b")


def test_a_receive_by_attempt_keeps_its_leases_because_its_client_asks_again(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes, fifo=True)
        call = both(owner, queue, "attempt")
        await call.ask_and_leave()
        host = owner.shards[queue.shard].host()
        await nodes.until(lambda: host.counters(queue.number).in_flight == 1)
        await asyncio.sleep(0.05)
        assert await in_flight(owner, queue) == (0, 1, 1)
        assert (await call.ask())[1].bodies == [b"sent"]

    run_nodes(tmp_path, main, "a", "b")


@pytest.mark.parametrize("turns", [1, 5])
def test_a_long_poll_ends_with_its_connection(tmp_path: Path, turns: int) -> None:
    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes)
        call = Forwarded(owner, queue, wire.POLL, Receive(queue.number, 1, None, "zoe", wait_ms=20_000))
        await call.ask_and_leave(turns)
        host = owner.shards[queue.shard].host()
        await nodes.until(lambda: host.polls.total == 0)
        await brokers.send(owner.broker, queue, [make_send("sent")])
        await asyncio.sleep(0.05)
        assert await in_flight(owner, queue) == (1, 0, 1)

    run_nodes(tmp_path, main, "a", "b")


@pytest.mark.parametrize("answered", [False, True])
def test_what_a_long_poll_got_that_nobody_wants_is_given_back(tmp_path: Path, answered: bool) -> None:
    """Also when the owner has answered already: whoever asked has gone at the same time."""

    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes)
        call = Forwarded(owner, queue, wire.POLL, Receive(queue.number, 1, None, "zoe", wait_ms=20_000))
        asking = asyncio.create_task(call.ask())
        host = owner.shards[queue.shard].host()
        await nodes.until(lambda: host.polls.total == 1)
        sending = asyncio.create_task(brokers.send(owner.broker, queue, [make_send("sent")]))
        if answered:
            (received,) = await asking
            assert received.bodies == [b"sent"]
        else:
            await nodes.until(lambda: host.polls.total == 0)
        for _ in range(2):
            await call.give_up()
        await sending
        await asyncio.gather(asking, return_exceptions=True)
        await nodes.until(lambda: host.counters(queue.number).visible == 1)
        (found,) = await brokers.receive(owner.broker, queue, 10, None, 0, "ben")
        assert found.receive_count == 1

    run_nodes(tmp_path, main, "a", "b")


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_client_that_goes_takes_no_message_of_another_node_along(tmp_path: Path, turns: int) -> None:
    """Whenever it goes while it waits, or while its answer is on the way."""

    async def main(nodes: Nodes) -> None:
        queue, owner = await make_queue(nodes)
        asked = other(nodes, owner)
        await asked.broker.refresh()
        host = owner.shards[queue.shard].host()
        told: list[Any] = []
        waiting = asked.broker.receive(queue, Receive(queue.number, 1, None, "zoe", wait_ms=20_000), told.append)
        assert waiting is not None
        await nodes.until(lambda: host.polls.total == 1)
        sending = asyncio.create_task(brokers.send(owner.broker, queue, [make_send("sent")]))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.abandon()
        await sending
        for outcome in told:  # it came at the same time
            outcome.give_back()
        await nodes.until(lambda: host.counters(queue.number).visible == 1)
        assert host.polls.total == 0 and len(told) <= 1
        (found,) = await brokers.receive(owner.broker, queue, 10, None, 0, "ben")
        assert found.receive_count == 1

    run_nodes(tmp_path, main, "a", "b")
