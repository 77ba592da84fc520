"""A call whose answer is lost between two nodes is run once, whatever the callee does next: it dies, or comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.core.commands import Accepted
from batonq.core.ids import request_hash
from batonq.errors import Unavailable
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from tests.cluster.lines import Loss
from tests.cluster.memory import other
from tests.cluster.test_spread import NAMES, spread
from tests.cluster.wired import WiredNodes, run_wired
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

MAYBE = "may or may not"


async def count(node: ClusterNode, queue: Queue) -> int:
    """All messages of a queue, once every shard has an owner again."""
    await node.broker.refresh()
    return (await node.broker.counters(queue)).visible


async def work(nodes: WiredNodes) -> tuple[Queue, ClusterNode, ClusterNode]:
    """A queue, the owner of its shard, and a node that has a kept connection to the owner."""
    queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
    owner = await nodes.owned(queue.shard)
    asking = other(nodes, owner)
    await asking.broker.refresh()
    (sent,) = await brokers.send(asking.broker, queue, [make_send("first")])
    assert isinstance(sent, Accepted)
    return queue, owner, asking


def test_an_owner_that_dies_with_the_answer_is_not_followed_by_another_that_runs_it_again(tmp_path: Path) -> None:
    async def main(nodes: WiredNodes) -> None:
        queue, owner, asking = await work(nodes)
        name = owner.settings.node

        async def die() -> None:
            nodes.relays[name].refuse()
            await nodes.crash(name)

        nodes.relays[name].loss = Loss("/submit", die)
        with pytest.raises(Unavailable, match=MAYBE):
            await brokers.send(asking.broker, queue, [make_send("second")])
        assert await count(asking, queue) == 2

    run_wired(tmp_path, main, "a", "b", "c", lease_s=2.0)


def test_an_owner_that_comes_back_without_its_memory_does_not_make_room_for_another(tmp_path: Path) -> None:
    """It says that it is not the owner, on a connection that is new."""

    async def main(nodes: WiredNodes) -> None:
        queue, owner, asking = await work(nodes)
        name = owner.settings.node

        starting: list[asyncio.Task[None]] = []

        async def come_back() -> None:
            starting.append(await nodes.restart(name))

        nodes.relays[name].loss = Loss("/submit", come_back)
        with pytest.raises(Unavailable, match=MAYBE):
            await brokers.send(asking.broker, queue, [make_send("second")])
        await starting[0]
        assert await count(asking, queue) == 2

    run_wired(tmp_path, main, "a", "b", "c", lease_s=2.0)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_named_request_to_a_spread_queue_is_not_run_on_the_next_shard(tmp_path: Path, comes_back: bool) -> None:
    """Without waiting for an owner: `at_once`. The retry of the same request finds what was done."""

    async def main(nodes: WiredNodes) -> None:
        queue = await spread(nodes)
        asking = nodes["a"]
        for number in range(6):
            await brokers.send(asking.broker, queue, [make_send(str(number))])
        assert await count(asking, queue) == 6
        invocation = _of_shard_1(queue)

        starting: list[asyncio.Task[None]] = []

        async def fall() -> None:
            if comes_back:
                starting.append(await nodes.restart("b"))
            else:
                nodes.relays["b"].refuse()
                await nodes.crash("b")

        nodes.relays["b"].loss = Loss("/submit", fall)
        with pytest.raises(Unavailable, match=MAYBE):
            await brokers.send(asking.broker, queue, [make_send("once")], invocation, first_try=True)
        await asyncio.gather(*starting)
        assert await count(asking, queue) == 7
        (sent,) = await brokers.send(asking.broker, queue, [make_send("once")], invocation)
        assert isinstance(sent, Accepted)
        assert await count(asking, queue) == 7

    run_wired(tmp_path, main, *NAMES, lease_s=2.0)


def _of_shard_1(queue: Queue) -> str:
    """The name of a request whose home is the shard of node b."""
    return next(
        name for name in map(str, range(1_000)) if queue.spread.asked(request_hash(queue.number, name))[-1] == 1
    )


def test_a_connection_that_was_closed_while_it_was_idle_costs_nobody_an_error(tmp_path: Path) -> None:
    """The call is written to a connection that the other side has closed already. The same owner is asked again."""

    async def main(nodes: WiredNodes) -> None:
        queue, owner, asking = await work(nodes)
        relay = nodes.relays[owner.settings.node]

        async def nothing() -> None:
            pass

        for number in range(3):
            relay.loss = Loss("/submit", nothing)
            (sent,) = await brokers.send(asking.broker, queue, [make_send(str(number))])
            assert isinstance(sent, Accepted) and relay.loss is None
        assert await count(asking, queue) == 4

    run_wired(tmp_path, main, "a", "b")
