"""Owners and their leases: what an owner may tell and do, and what must not survive it, when its lease has ended."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from batonq.core.commands import Accepted
from batonq.errors import LeaseLost, OwnershipHeld, Unavailable
from batonq.log.layout import CATALOG_SHARD
from batonq.log.opening import OnFrame
from batonq.node.messages.received import Delivery
from batonq.node.shard_host.keeper import KeeperState
from tests.cluster.memory import LEASE_S, MemoryLeases, Nodes, bodies, keeper, other, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers


def test_a_lease_of_five_seconds_outlives_an_outage_of_nine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 0.3)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        victim = await nodes.owned(queue.shard)
        holder, waiting = (node for node in nodes.hub.nodes.values() if node is not victim)
        await brokers.send(holder.broker, queue, [make_send("kept"), make_send("left")])
        held = await brokers.receive(holder.broker, queue, 10, 5_000, 0, "holder")
        kept, left = sorted(held, key=lambda delivery: delivery.body)
        others: list[Delivery] = []
        refused: list[str] = []

        async def poll() -> None:
            while True:
                try:
                    others.extend(await brokers.receive(waiting.broker, queue, 10, 60_000, 20_000, "another"))
                except Unavailable as problem:
                    refused.append(problem.message)

        polling = asyncio.create_task(poll())
        for node in (holder, waiting):
            node.ownership_loop.draining = True  # so that nobody takes it before nine seconds have passed
        await nodes.crash(victim.settings.node)
        await nodes.until(lambda: nodes.hub.lease(queue.shard) is None)
        with pytest.raises(Unavailable):
            await brokers.change_visibility(holder.broker, queue, [(kept.receipt, 5_000)], strict=True)
        for node in (holder, waiting):
            node.clock.advance(9_000)
            node.ownership_loop.draining = False
        owner = await nodes.owned(queue.shard)
        assert (await owner.broker.counters(queue)).in_flight == 2
        assert await brokers.change_visibility(holder.broker, queue, [(kept.receipt, 5_000)], strict=True) == [None]
        assert await brokers.delete(holder.broker, queue, [kept.receipt], strict=True) == [None]
        await nodes.until(lambda: bool(refused))
        assert others == [], "nobody else got what was held"

        for node in (holder, waiting):  # what was left of the lease, and no more
            await node.broker.advance_clock(5_000)
        await nodes.until(lambda: bool(others))
        polling.cancel()
        assert [(delivery.body, delivery.receive_count) for delivery in others] == [(b"left", 2)]
        (late,) = await brokers.delete(holder.broker, queue, [left.receipt], strict=True)
        assert isinstance(late, LeaseLost)

    run_nodes(tmp_path, main, "a", "b", "c")


def test_what_a_fenced_owner_had_decided_does_not_survive_it(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        asleep = await nodes.owned(queue.shard)
        awake = other(nodes, asleep)
        await brokers.send(awake.broker, queue, [make_send("first")])
        cast(MemoryLeases, asleep._leases).keeps = False  # its leases run out, and it does not notice
        await nodes.until(lambda: queue.shard in awake.ownership_loop.serving())
        host = keeper(asleep, queue.shard)
        if host.serving:
            with pytest.raises(Unavailable):
                await brokers.send_at(asleep.broker.local_port(queue.shard), queue.number, [make_send("stale")])
        await nodes.until(lambda: keeper(asleep, queue.shard).state is KeeperState.FOLLOWING)
        assert await bodies(asleep, queue) == ["first"]
        mine, theirs = keeper(asleep, queue.shard).reading()[0], keeper(awake, queue.shard).host().shard
        await nodes.until(lambda: mine.next_sequence == theirs.next_sequence and mine.epoch == theirs.epoch)
        assert b"stale" not in b"".join(nodes.hub.fars[queue.shard].stored)

    run_nodes(tmp_path, main, "a", "b")


def test_an_owner_that_cannot_know_whether_its_lease_lasts_tells_nothing(tmp_path: Path) -> None:
    """Found by the simulator: an owner that had been asleep refused a receipt that the next owner had given out."""

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        for shard in (queue.shard, CATALOG_SHARD):
            owner = await nodes.owned(shard)
            follower = owner.ownership_loop._owned[shard].follower
            follower.leased_s -= 10 * LEASE_S  # as it is at the first moment after a long sleep
            assert follower.state is KeeperState.SERVING
            if shard == CATALOG_SHARD:
                assert not owner.catalog.owned
            else:
                assert owner.port_here(shard) is None and not owner.broker.serves(shard)
            await nodes.until(lambda follower=follower: follower.leased)  # type: ignore[misc]
        asked = await nodes.owned(queue.shard)
        keeper(asked, queue.shard).follower.leased_s -= 10 * LEASE_S
        (sent,) = await brokers.send(asked.broker, queue, [make_send("once it knows")])
        assert isinstance(sent, Accepted)

    run_nodes(tmp_path, main, "a", "b")


def test_owners_go_on_while_the_leases_cannot_be_reached(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {"VisibilityTimeout": "60"}, {})
        owner = await nodes.owned(queue.shard)
        host = keeper(owner, queue.shard).host()
        follower = keeper(owner, queue.shard).follower
        asked = other(nodes, owner)
        await brokers.send(asked.broker, queue, [make_send("before")])
        (held,) = await brokers.receive(asked.broker, queue, 1, None, 0, "tester")
        assert not any(await brokers.delete(asked.broker, queue, [held.receipt]))
        nodes.hub.leases_away = True
        await nodes.until(lambda: not follower.leased)
        for node in (owner, asked):
            (sent,) = await brokers.send(node.broker, queue, [make_send("meanwhile")])
            assert isinstance(sent, Accepted)
            (found,) = await brokers.receive(node.broker, queue, 1, None, 0, "tester")
            assert not any(await brokers.delete(node.broker, queue, [found.receipt]))
        with pytest.raises(Unavailable, match="out of date"):  # another owner might have it
            await brokers.change_visibility(owner.broker, queue, [(held.receipt, 1_000)])
        with pytest.raises(Unavailable, match="out of date"):
            await brokers.receive(owner.broker, queue, 1, None, 0, "tester")
        await asyncio.sleep(2 * LEASE_S)
        nodes.hub.leases_away = False
        await nodes.until(lambda: follower.leased)
        assert keeper(owner, queue.shard).host() is host, "it did not change hands"
        assert await brokers.receive(owner.broker, queue, 1, None, 0, "tester") == []

    run_nodes(tmp_path, main, "a", "b")


def test_owners_wait_for_logs_that_nobody_leads_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the NATS server dies that leads the leases and the shard's stream: the streams may be there first."""
    monkeypatch.setattr("batonq.node.cluster.follower.LEADERLESS_TERMS", 3)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        host = keeper(owner, queue.shard).host()
        follower = keeper(owner, queue.shard).follower
        nodes.hub.leases_away = nodes.hub.leaderless = True
        sending = asyncio.create_task(brokers.send(owner.broker, queue, [make_send("meanwhile")]))
        await nodes.until(lambda: not follower.leased)
        await asyncio.sleep(LEASE_S)
        assert keeper(owner, queue.shard).holds and not sending.done()
        nodes.hub.leaderless = False
        (sent,) = await asyncio.wait_for(sending, 60)
        assert isinstance(sent, Accepted) and not follower.leased, "before the leases are there"
        nodes.hub.leases_away = False
        await nodes.until(lambda: follower.leased)
        assert keeper(owner, queue.shard).host() is host, "it did not change hands"

        nodes.hub.leases_away = nodes.hub.leaderless = True
        with pytest.raises(Unavailable):
            await brokers.send(owner.broker, queue, [make_send("never")])
        assert keeper(owner, queue.shard).state is not KeeperState.SERVING
        nodes.hub.leases_away = nodes.hub.leaderless = False
        assert await bodies(await nodes.owned(queue.shard), queue) in (["meanwhile"], ["meanwhile", "never"])

    run_nodes(tmp_path, main, "a", "b")


def test_an_owner_without_leases_whose_log_is_another_s_by_now_ends(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        follower = keeper(owner, queue.shard).follower
        nodes.hub.leases_away = True
        await nodes.until(lambda: not follower.leased)
        assert keeper(owner, queue.shard).holds
        taker = keeper(other(nodes, owner), queue.shard).follower
        nodes.hub.leases_away = False  # only for the other one
        nodes.hub.away.add(owner.settings.node)
        epoch = await taker._leases.acquire(queue.shard, follower.log.tail_epoch if follower.log is not None else 0)
        nodes.hub.away.clear()
        nodes.hub.leases_away = True
        assert taker._machine is not None and taker._log is not None
        await taker._log.catch_up(taker._folder)
        taker._folder.finish(taker._log)
        taker._own(taker._machine, taker._log, epoch, 0)
        await taker._serve(taker._machine, taker._log, 0)
        with pytest.raises(Unavailable):
            await brokers.send(owner.broker, queue, [make_send("stale")])
        assert keeper(owner, queue.shard).state is not KeeperState.SERVING
        nodes.hub.leases_away = False
        assert b"stale" not in b"".join(nodes.hub.fars[queue.shard].stored)

    run_nodes(tmp_path, main, "a", "b")


def test_a_lease_that_another_owner_has_come_after_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator: a node whose lease ended while it read on made up an epoch above that of the next owner,
    which went on serving what was not the end of the log any more.
    """

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        late = other(nodes, owner)
        follower = keeper(late, queue.shard).follower
        epoch = keeper(owner, queue.shard).host().shard.epoch
        await nodes.until(lambda: follower.log is not None and follower.log.tail_epoch == epoch)

        async def acquired_before(shard: int, above: int = 0) -> int:
            return epoch - 1

        monkeypatch.setattr(late._leases, "acquire", acquired_before)
        frames = nodes.hub.fars[queue.shard].next
        with pytest.raises(OwnershipHeld):
            await follower.take()
        assert nodes.hub.fars[queue.shard].next == frames
        assert follower.state is KeeperState.FOLLOWING
        await brokers.send(late.broker, queue, [make_send("to the owner")])
        assert await bodies(owner, queue) == ["to the owner"]

    run_nodes(tmp_path, main, "a", "b")


def test_a_take_that_fails_leaves_no_lease_behind(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        first = await nodes.owned(queue.shard)
        second = other(nodes, first)
        follower = keeper(second, queue.shard).follower
        log = follower.log
        assert log is not None
        read, tries = log.catch_up, count()

        async def catch_up(on_frame: OnFrame) -> None:
            if next(tries) == 1:  # the lease is there by now
                raise Unavailable("the log does not answer")
            await read(on_frame)

        log.catch_up = catch_up  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await first.ownership_loop.move(queue.shard, second.settings.node)
        assert queue.shard not in second._leases.held()
        assert follower.state is KeeperState.FOLLOWING
        owner = await nodes.owned(queue.shard)
        await brokers.send(owner.broker, queue, [make_send("after")])
        assert await bodies(second, queue, 1_000) == ["after"]

    run_nodes(tmp_path, main, "a", "b")


def test_what_is_served_without_a_lease_is_given_up_and_taken_again(tmp_path: Path) -> None:
    """Found by the simulator: a node slept while it took the catalog, heard that its lease had ended before it served
    it, and then served it for ever, a lease that nobody renews.
    """

    async def main(nodes: Nodes) -> None:
        node = nodes["a"]
        queue = await node.broker.create_queue(ACCOUNT, "work", {}, {})
        await brokers.send(node.broker, queue, [make_send("kept")])
        for number in (CATALOG_SHARD, queue.shard):
            epoch = nodes.hub.epochs[number]
            cast(MemoryLeases, node._leases)._held.pop(number)
            nodes.hub.owners.pop(number)
            follower = node._owned[number].follower
            await nodes.until(lambda: nodes.hub.epochs[number] > epoch and follower.state is KeeperState.SERVING)  # noqa: B023
        assert await bodies(node, queue) == ["kept"]

    run_nodes(tmp_path, main, "a")


@pytest.mark.parametrize("also_from_nodes", [False, True], ids=["from the log", "from all"])
def test_a_node_that_is_cut_off_is_replaced_and_comes_back(tmp_path: Path, also_from_nodes: bool) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        lost = await nodes.owned(queue.shard)
        others = [node for node in nodes.hub.nodes.values() if node is not lost]
        await brokers.send(others[0].broker, queue, [make_send("before")])
        nodes.hub.away.add(lost.settings.node)
        if also_from_nodes:
            for node in others:
                nodes.hub.cut |= {(node.settings.node, lost.settings.advertise)}
                nodes.hub.cut |= {(lost.settings.node, node.settings.advertise)}
        sending = asyncio.create_task(brokers.send(lost.broker, queue, [make_send("maybe")]))
        await nodes.until(lambda: any(queue.shard in node.ownership_loop.serving() for node in others))
        await brokers.send(others[0].broker, queue, [make_send("meanwhile")])
        await nodes.until(lambda: queue.shard not in lost.ownership_loop.serving())
        nodes.hub.away.clear()
        nodes.hub.cut.clear()
        answer = (await asyncio.gather(sending, return_exceptions=True))[0]
        assert isinstance(answer, Unavailable), "nobody knows; it was told to try again"
        await nodes.until(lambda: keeper(lost, queue.shard).state is KeeperState.FOLLOWING)
        found = await bodies(lost, queue, 1_000)
        assert found in (["before", "meanwhile"], ["before", "maybe", "meanwhile"])

    run_nodes(tmp_path, main, "a", "b", "c")


def test_what_the_owner_before_appended_late_is_read_and_then_taken_over(tmp_path: Path) -> None:
    """Its lease is over, it is not fenced yet, and commits between the reading of its successor and the first frame."""

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        first = await nodes.owned(queue.shard)
        second = other(nodes, first)
        log = keeper(second, queue.shard).follower.log
        assert log is not None
        read, reads = log.catch_up, count(1)
        late: list[object] = []

        async def catch_up(on_frame: OnFrame) -> None:
            await read(on_frame)
            if next(reads) == 2:
                late.extend(
                    await brokers.send_at(first.broker.local_port(queue.shard), queue.number, [make_send("late")])
                )

        log.catch_up = catch_up  # type: ignore[method-assign]
        cast(MemoryLeases, first._leases).keeps = False
        await nodes.until(lambda: queue.shard in second.ownership_loop.serving())
        assert late and isinstance(late[0], Accepted), "it was acknowledged"
        assert await bodies(second, queue) == ["late"]
        await nodes.until(lambda: keeper(first, queue.shard).state is KeeperState.FOLLOWING)

    run_nodes(tmp_path, main, "a", "b", shards=1)
