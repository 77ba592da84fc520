"""Nodes of a cluster in one process: who owns what, what is forwarded, and how shards move."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted
from batonq.errors import InvalidInput, JobNotFound, QueueDoesNotExist, Unavailable
from batonq.log.interface import Member
from batonq.log.layout import CATALOG_SHARD
from batonq.node import events
from batonq.node.cluster import balance
from batonq.node.cluster.keeper import ClusterKeeper
from batonq.node.cluster.ownership import OwnershipLoop
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import KeeperState
from batonq.node.shard_host.recovery import snapshot_store
from tests.cluster.memory import LEASE_S, MemoryLeases, Nodes, bodies, keeper, known, other, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers


def test_shards_spread_over_the_nodes_and_any_node_takes_any_request(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        owners = {(await nodes.owned(shard)).settings.node for shard in (0, 1, 2)}
        assert len(owners) >= 2
        for at, name in enumerate("abc"):
            queue = await nodes[name].broker.create_queue(ACCOUNT, f"queue-{name}", {"VisibilityTimeout": "7"}, {})
            assert queue.policy.visibility_ms == 7_000 and queue.shard == at
            for asked in "abc":
                node = nodes[asked]
                await node.broker.refresh()
                (sent,) = await brokers.send(node.broker, known(node, f"queue-{name}"), [make_send(f"from {asked}")])
                assert isinstance(sent, Accepted)
            counters = await nodes["b"].broker.counters(queue)
            assert counters.visible == 3
            assert await bodies(nodes["c"], queue) == ["from a", "from b", "from c"]

    run_nodes(tmp_path, main, "a", "b", "c")


def test_the_catalog_is_changed_by_its_owner_whoever_is_asked(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        owner = await nodes.owned(CATALOG_SHARD)
        asked = other(nodes, owner)
        assert not asked.catalog.owned
        queue = await asked.broker.create_queue(ACCOUNT, "work", {}, {})
        assert "/internal/catalog/create_queue" in nodes.hub.calls
        with pytest.raises(InvalidInput):
            await asked.broker.create_queue(ACCOUNT, "not a name", {}, {})
        await asked.broker.set_attributes(queue, {"VisibilityTimeout": "9"})
        shard = keeper(await nodes.owned(queue.shard), queue.shard).host().shard
        assert shard.queues[queue.number].policy.visibility_ms == 9_000, "the shard was told before it was answered"
        await asked.broker.set_tags(queue, {"team": "red"}, [])
        assert known(asked, "work").tags == {"team": "red"}
        key = await asked.catalog.change(Catalog.put_key, "key", "secret", ACCOUNT)
        assert key.secret == "secret" and asked.broker.find_key("key") == key
        await asked.broker.delete_queue(queue)
        with pytest.raises(QueueDoesNotExist):
            known(asked, "work")
        await owner.catalog.refresh()
        with pytest.raises(QueueDoesNotExist):
            await brokers.send(owner.broker, queue, [make_send("to nobody")])
        with pytest.raises(Unavailable, match="Only the catalog's owner"):
            await asked.catalog.change(Catalog.write_base, 1, 1 << 20)
        with pytest.raises(JobNotFound):
            await asked.broker.job(ACCOUNT, "nonsense")

    run_nodes(tmp_path, main, "a", "b")


def test_a_planned_move_keeps_everything_and_gives_no_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        first = await nodes.owned(queue.shard)
        second = other(nodes, first)
        await brokers.send(first.broker, queue, [make_send(str(number)) for number in range(5)])
        held = await brokers.receive(second.broker, queue, 1, 60_000, 0, "tester")
        waiting = asyncio.create_task(brokers.receive(second.broker, queue, 1, 0, 0, "tester"))
        await waiting
        log = keeper(first, queue.shard).follower.log
        await asyncio.sleep(30)  # nothing is written in this simulated time
        told: list[dict[str, Any]] = []
        monkeypatch.setattr(events, "debug", lambda event, text, **fields: told.append({"event": event, **fields}))
        await first.ownership_loop.move(queue.shard, second.settings.node)
        (opened,) = [each for each in told if each["event"] == "shard_opened"]
        assert opened["outage_ms"] < 1_000, "the time without requests is no outage"
        assert keeper(first, queue.shard).follower.log is log, "it steps down with its state, and follows on"
        host = keeper(second, queue.shard).host()
        assert host.shard.epoch == 2 and host.log.frame(host.log.next - 1).words()[4] < 1_000
        assert await brokers.delete(first.broker, queue, [held[0].receipt]) == [None]
        assert len(await bodies(first, queue)) == 4
        await nodes.until(lambda: keeper(first, queue.shard).reading()[1].next == host.log.next)
        followed, _ = keeper(first, queue.shard).reading()
        assert followed.dump(first.clock.now_ms()) == host.shard.dump(first.clock.now_ms())
        with pytest.raises(InvalidInput, match=r"Node .* does not exist"):
            await second.ownership_loop.move(queue.shard, "nobody")

    run_nodes(tmp_path, main, "a", "b")


def test_a_planned_move_takes_less_than_a_second_however_long_leases_are(tmp_path: Path) -> None:
    """In simulated time: only what is waited for takes any."""

    async def main(nodes: Nodes) -> None:
        loop = asyncio.get_running_loop()
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        for _ in range(5):
            owner = await nodes.owned(queue.shard)
            target = other(nodes, owner)
            began_s = loop.time()
            await owner.ownership_loop.move(queue.shard, target.settings.node)
            for node in (owner, target):
                (sent,) = await brokers.send(node.broker, queue, [make_send("x")])
                assert isinstance(sent, Accepted)
            assert loop.time() - began_s < 1

    run_nodes(tmp_path, main, "a", "b", lease_s=60.0)


def test_service_is_back_within_ten_seconds_of_an_owners_death(tmp_path: Path) -> None:
    """In simulated time, with leases as they are by default."""

    async def main(nodes: Nodes) -> None:
        loop = asyncio.get_running_loop()
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        for _ in range(2):
            victim = await nodes.owned(queue.shard)
            survivor = other(nodes, victim)
            await nodes.crash(victim.settings.node)
            began_s = loop.time()
            sent: list[object] = []
            while not sent:
                try:
                    sent += await brokers.send(survivor.broker, queue, [make_send("x")])
                except Unavailable:
                    await asyncio.sleep(0.05)
            assert isinstance(sent[0], Accepted) and loop.time() - began_s < 10

    run_nodes(tmp_path, main, "a", "b", "c", lease_s=Settings().lease_s)


def test_a_shard_that_the_other_node_cannot_take_is_taken_back_at_once(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        first = await nodes.owned(queue.shard)
        second = other(nodes, first)
        await nodes.crash(second.settings.node)
        with pytest.raises(Unavailable):
            await first.ownership_loop.move(queue.shard, second.settings.node)
        assert keeper(first, queue.shard).follower.state is KeeperState.SERVING
        (sent,) = await brokers.send(first.broker, queue, [make_send("to the old owner")])
        assert isinstance(sent, Accepted)

    run_nodes(tmp_path, main, "a", "b")


def test_a_node_that_starts_takes_no_shard_before_it_has_read_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        await nodes.crash("a")
        reading, read = asyncio.Event(), asyncio.Event()
        open_keeper = ClusterKeeper.open

        async def slow(self: ClusterKeeper) -> None:
            if self.number == 2:
                reading.set()
                await read.wait()
            await open_keeper(self)

        monkeypatch.setattr(ClusterKeeper, "open", slow)
        starting = asyncio.create_task(nodes.start("a"))
        await reading.wait()
        await asyncio.sleep(LEASE_S + balance.backoff_s(2, 1.0))  # a shard that is free is taken by then
        assert nodes.hub.lease(queue.shard) is None
        read.set()
        await starting
        await nodes.owned(queue.shard)

    run_nodes(tmp_path, main, "a")


def test_another_node_takes_over_from_one_that_crashed(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        victim = await nodes.owned(queue.shard)
        survivor = other(nodes, victim)
        await brokers.send(survivor.broker, queue, [make_send("kept")])
        (held,) = await brokers.receive(survivor.broker, queue, 1, 1_000, 0, "tester")
        await nodes.crash(victim.settings.node)
        for shard in (CATALOG_SHARD, 0, 1, 2):
            assert await nodes.owned(shard) is survivor
        assert (await survivor.broker.counters(queue)).in_flight == 1, "the outage does not count"
        assert await brokers.delete(survivor.broker, queue, [held.receipt], strict=True) == [None]
        await nodes.start(victim.settings.node)
        again = nodes[victim.settings.node]
        await brokers.send(again.broker, known(again, "work"), [make_send("after")])
        assert await bodies(survivor, queue) == ["after"]

    run_nodes(tmp_path, main, "a", "b")


def test_what_fails_when_nobody_waits_for_it_any_more_is_no_stray_error(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        strays: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
        node = nodes["a"]
        for work in (
            node.answering.handle("node/move", "", msgspec.msgpack.encode((0, "nobody"))),
            node.broker.create_queue(ACCOUNT, "not a name", {}, {}),
        ):
            asking = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait((asking,))
            await node.broker.refresh()
            await asyncio.sleep(0.05)
        gc.collect()
        assert not strays

    run_nodes(tmp_path, main, "a", "b")


def test_a_call_whose_answer_is_lost_is_not_run_twice(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        asked = other(nodes, await nodes.owned(queue.shard))
        nodes.hub.unanswered = ["/submit"] * 3
        await brokers.send(asked.broker, queue, [make_send("once")])
        assert (await asked.broker.counters(queue)).sent == 1
        found = await brokers.receive(asked.broker, queue, 10, 60_000, 0, "tester")
        assert [delivery.receive_count for delivery in found] == [1]
        assert await brokers.delete(asked.broker, queue, [found[0].receipt], strict=True) == [None]
        assert nodes.hub.unanswered == []

    run_nodes(tmp_path, main, "a", "b")


def test_dead_letters_go_from_node_to_node(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        broker = nodes["a"].broker
        dead = await broker.create_queue(ACCOUNT, "dead", {}, {})
        policy = f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead","maxReceiveCount":"1"}}'
        work = await broker.create_queue(ACCOUNT, "work", {"RedrivePolicy": policy}, {})
        source = await nodes.owned(work.shard)
        if dead.shard in source.ownership_loop.serving():
            await source.ownership_loop.move(dead.shard, other(nodes, source).settings.node)
        await brokers.send(broker, work, [make_send(str(number)) for number in range(5)])
        await brokers.receive(broker, work, 10, 0, 0, "tester")
        await brokers.receive(broker, work, 10, 0, 0, "tester")
        found: list[str] = []
        async with asyncio.timeout(10):
            while len(found) < 5:
                found += await bodies(nodes["b"], dead, 1_000)
        assert sorted(found) == [str(number) for number in range(5)]
        assert any(path.endswith("/arrive") for path in nodes.hub.calls)

    run_nodes(tmp_path, main, "a", "b")


def test_a_drain_says_when_nobody_can_take_what_the_node_owns(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes["b"].ownership_loop.hand_over()
        await nodes["b"].ownership_loop.others.announce({}, draining=True)
        kept = nodes["a"].ownership_loop.serving()
        with pytest.raises(Unavailable, match="No other node can take shards"):
            await nodes["a"].answering.handle("node/drain", "", b"")
        assert nodes["a"].ownership_loop.serving() == kept != [], "it goes on serving them"

    run_nodes(tmp_path, main, "a", "b")


def test_a_node_that_is_drained_owns_nothing_until_it_may_again(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes["a"].ownership_loop.hand_over()
        assert nodes["a"].ownership_loop.serving() == []
        assert sorted(nodes["b"].ownership_loop.serving()) == [0, 1, 2, CATALOG_SHARD]
        with pytest.raises(Unavailable, match="is being drained"):
            await nodes["b"].ownership_loop.move(0, "a")
        await nodes.until(lambda: nodes.owner(0) is nodes["b"])
        nodes["a"].ownership_loop.draining = False
        await nodes["b"].ownership_loop.move(0, "a")
        assert nodes["a"].ownership_loop.serving() == [0]

    run_nodes(tmp_path, main, "a", "b")


def test_shards_move_to_a_node_that_comes_later(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.until(lambda: len(nodes["a"].ownership_loop.serving()) == 5)
        await nodes.start("b")
        await nodes.until(lambda: len(nodes["b"].ownership_loop.serving()) == 2)
        await asyncio.sleep(20 * LEASE_S)
        assert len(nodes["a"].ownership_loop.serving()) == 3, "and then it is enough"

    run_nodes(tmp_path, main, "a", shards=4, hold_s=0.0)


def test_no_shard_moves_to_a_node_whose_log_does_not_get_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.until(lambda: len(nodes["a"].ownership_loop.serving()) == 5)
        in_trouble = [True]
        monkeypatch.setattr(OwnershipLoop, "_in_trouble", lambda self: self.node == "b" and in_trouble[0])
        await nodes.start("b")
        await nodes.until(lambda: "b" in nodes["a"].ownership_loop.members)
        assert nodes["a"].ownership_loop.members["b"].in_trouble
        await asyncio.sleep(20 * LEASE_S)
        assert len(nodes["a"].ownership_loop.serving()) == 5
        in_trouble[0] = False
        await nodes.until(lambda: len(nodes["b"].ownership_loop.serving()) == 2)

    run_nodes(tmp_path, main, "a", shards=4, hold_s=0.0)


def test_a_node_that_is_cut_off_from_the_catalog_trusts_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.node.cluster.catalog.CUT_OFF_S", 0.5)

    async def main(nodes: Nodes) -> None:
        owner = await nodes.owned(CATALOG_SHARD)
        asked = other(nodes, owner)
        key = await owner.catalog.change(Catalog.put_key, "key", "secret", ACCOUNT)
        await asked.catalog.refresh()
        assert asked.broker.find_key("key") == key
        nodes.hub.cut.add((asked.settings.node, owner.settings.advertise))
        await asyncio.sleep(0.7)
        with pytest.raises(Unavailable, match="cannot reach the catalog"):
            asked.broker.find_key("key")
        nodes.hub.cut.clear()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert asked.broker.find_key("key") == key
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)

    run_nodes(tmp_path, main, "a", "b")


def test_history_is_served_by_followers_too(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        follower = other(nodes, await nodes.owned(queue.shard))
        assert [each.shard for each in follower.broker.history.shards()] == [0, 1, 2]
        _, log = keeper(follower, queue.shard).reading()
        reading = asyncio.create_task(follower.broker.history.read(queue.shard, log.next, 1 << 20, 5.0))
        await asyncio.sleep(0.05)
        await brokers.send(follower.broker, queue, [make_send("seen")])
        assert b"seen" in (await reading).data

    run_nodes(tmp_path, main, "a", "b")


def test_one_receive_over_queues_of_several_nodes(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        broker = nodes["a"].broker
        queues = [await broker.create_queue(ACCOUNT, f"hooks-{number}", {}, {}) for number in range(3)]
        assert {queue.shard for queue in queues} == {0, 1, 2}
        for queue in queues:
            await brokers.send(broker, queue, [make_send(queue.name)])
        got: list[str] = []
        while len(got) < 3:
            found = await nodes["b"].broker.receive_any(
                nodes["b"].broker.select(ACCOUNT, ["hooks-*"]), 10, None, 0, "t"
            )
            assert found
            got += [f"{queue.name} {delivery.body.decode()}" for queue, delivery in found]
        assert sorted(got) == [f"hooks-{number} hooks-{number}" for number in range(3)]
        for queue in queues:  # and it waits for each of them
            waiting = asyncio.create_task(
                nodes["b"].broker.receive_any([known(nodes["b"], each.name) for each in queues], 10, None, 5_000, "t")
            )
            await asyncio.sleep(0.1)
            await brokers.send(broker, queue, [make_send("late")])
            ((where, delivery),) = await waiting
            assert (where.name, delivery.body) == (queue.name, b"late")
        with pytest.raises(QueueDoesNotExist):
            await nodes["b"].broker.receive_any(nodes["b"].broker.select(ACCOUNT, ["nothing"]), 10, None, 0, "t")

    run_nodes(tmp_path, main, "a", "b")


def test_what_is_too_much_for_one_answer_is_given_back_and_was_no_receive(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        asked = other(nodes, await nodes.owned(0))
        broker = asked.broker
        queues = [await broker.create_queue(ACCOUNT, f"hooks-{number}", {}, {}) for number in range(3)]
        far = {0, 1, 2} - set(asked.ownership_loop.serving())
        waiting = asyncio.create_task(broker.receive_any(queues, 1, None, 20_000, "t"))
        await nodes.until(lambda: _calls(nodes, "/receive_matching") == 2 * len(far))
        await asyncio.gather(*(brokers.send(broker, queue, [make_send(queue.name)]) for queue in queues))
        ((first, _),) = await waiting
        got: list[tuple[str, int]] = []
        async with asyncio.timeout(10):
            while len(got) < 2:
                found = await broker.receive_any(queues, 10, None, 1_000, "t")
                got += [(queue.name, delivery.receive_count) for queue, delivery in found]
        assert sorted(got) == [(queue.name, 1) for queue in queues if queue.name != first.name]

    run_nodes(tmp_path, main, "a", "b")


def _calls(nodes: Nodes, end: str) -> int:
    return sum(path.endswith(end) for path in nodes.hub.calls)


def test_a_node_that_was_stopped_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        follower = other(nodes, await nodes.owned(queue.shard))
        await brokers.send(follower.broker, queue, [make_send(str(number)) for number in range(5)])
        name = follower.settings.node
        await follower.hand_over()
        await nodes.hub.nodes.pop(f"http://{name}").stop()
        store = snapshot_store(follower.settings.data, queue.shard)
        assert store.numbers()
        await nodes.start(name)
        again = nodes[name]
        state, log = keeper(again, queue.shard).reading()
        owner = keeper(await nodes.owned(queue.shard), queue.shard).host()
        await nodes.until(lambda: log.next == owner.log.next)
        assert state.dump(again.clock.now_ms()) == owner.shard.dump(again.clock.now_ms())

    run_nodes(tmp_path, main, "a", "b")


def test_a_follower_that_is_killed_does_not_read_again_what_it_has_a_snapshot_of(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        follower = other(nodes, owner)
        for number in range(25):
            await brokers.send(owner.broker, queue, [make_send(str(number))])
        store = snapshot_store(follower.settings.data, queue.shard)
        await nodes.until(lambda: bool(store.numbers()))
        assert store.numbers()[-1] >= 20
        name = follower.settings.node
        await nodes.crash(name)
        await nodes.start(name)
        state, log = keeper(nodes[name], queue.shard).reading()
        host = keeper(await nodes.owned(queue.shard), queue.shard).host()
        await nodes.until(lambda: log.next == host.log.next)
        assert state.dump(owner.clock.now_ms()) == host.shard.dump(owner.clock.now_ms())

    run_nodes(tmp_path, main, "a", "b", snapshot_frames=20, snapshot_every_s=0.0, maintenance_every_s=0.05)


def test_a_node_whose_catalog_is_behind_closes_no_queue(tmp_path: Path) -> None:
    """A shard whose log knows a queue that the catalog here has not heard of yet."""

    async def main(nodes: Nodes) -> None:
        owner = await nodes.owned(CATALOG_SHARD)
        behind = other(nodes, owner)
        log = behind.catalog.follower.log
        assert log is not None and log._following is not None
        log._following.cancel()
        version = behind.catalog.current().version
        if 0 not in owner.ownership_loop.serving():
            await behind.ownership_loop.move(0, owner.settings.node)
        queue = await owner.broker.create_queue(ACCOUNT, "new", {}, {})
        assert queue.shard == 0
        await brokers.send(owner.broker, queue, [make_send("kept")])
        await owner.ownership_loop.move(0, behind.settings.node)
        assert behind.catalog.current().version == version, "it has not heard of the queue"
        state = keeper(behind, 0).host().shard.queues[queue.number]
        assert not state.closed
        await brokers.send(owner.broker, queue, [make_send("too")])
        log._following = None
        log.follow(behind.catalog.follower._folded, behind.catalog.follower._problem)
        await behind.catalog.refresh()
        assert await bodies(behind, known(behind, "new")) == ["kept", "too"]
        assert not behind.broker._ahead and queue.number not in keeper(behind, 0).host().shard.closing()

    run_nodes(tmp_path, main, "a", "b", shards=1)


def test_a_node_is_ready_when_everything_has_an_owner_and_stays_so(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        assert nodes["a"].not_ready() == ""
        victim = await nodes.owned(0)
        survivor = other(nodes, victim)
        await nodes.crash(victim.settings.node)
        await nodes.until(lambda: 0 not in survivor.ownership_loop.owners)
        assert survivor.not_ready() == "", "clients that wait a moment are served"
        survivor.stop_waiting()
        assert survivor.not_ready() == "stopping"

    run_nodes(tmp_path, main, "a", "b")


def test_a_node_stops_though_a_library_swallows_that_it_shall(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        leases = cast(MemoryLeases, nodes["a"]._leases)
        members = leases.members
        swallowed: list[str] = []

        async def late() -> list[Member]:
            if not swallowed:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:  # as asyncio.wait_for does when the answer comes at the same time
                    swallowed.append("once")
            return await members()

        leases.members = late  # type: ignore[method-assign]
        await asyncio.sleep(LEASE_S)
        async with asyncio.timeout(10):
            await nodes.stop()
        assert swallowed

    run_nodes(tmp_path, main, "a", shards=1)


def test_shards_are_added_to_a_cluster_that_runs(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        first = await nodes["a"].broker.create_queue(ACCOUNT, "first", {}, {})
        await nodes.start("c", shards=3)
        await nodes.until(lambda: all(len(node.shards) == 3 for node in nodes.hub.nodes.values()))
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "second", {}, {})
        assert (first.shard, queue.shard) == (0, 1)
        await nodes.owned(2)
        for name in "abc":
            await nodes[name].broker.refresh()
            await brokers.send(nodes[name].broker, known(nodes[name], "second"), [make_send(name)])
        assert await bodies(nodes["b"], queue) == ["a", "b", "c"]

    run_nodes(tmp_path, main, "a", "b", shards=1)


def test_load_is_measured_over_seconds_however_often_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonq.node.cluster.keeper.MEASURED_S", 0.2)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        shard = keeper(nodes["a"], queue.shard)
        assert shard.load().rows_per_s == 0
        await asyncio.sleep(0.3)
        await brokers.send(nodes["a"].broker, queue, [make_send(str(number)) for number in range(300)])
        assert len(await brokers.receive(nodes["a"].broker, queue, 100, None, 0, "tester")) == 100
        first = shard.load()
        assert 100 < first.rows_per_s < 2_000 and 50 < first.reads_per_s < 500 and first.leases == 100
        assert {shard.load() for _ in range(10)} == {first}

    run_nodes(tmp_path, main, "a", shards=1, lease_s=30.0)


def test_groups_stay_in_order_and_duplicates_are_known_through_moves_and_a_crash(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work.fifo", {"FifoQueue": "true"}, {})
        for node in nodes.hub.nodes.values():
            await node.broker.refresh()

        async def send(number: int) -> bool:
            """Whether it was a duplicate. It is sent again until it is answered, as clients do."""
            message = make_send(str(number), group="g", dedup_id=str(number))
            async with asyncio.timeout(20):
                while True:
                    node = list(nodes.hub.nodes.values())[number % len(nodes.hub.nodes)]
                    try:
                        (sent,) = await brokers.send(node.broker, queue, [message])
                        assert isinstance(sent, Accepted)
                        return sent.duplicate
                    except Unavailable:
                        await asyncio.sleep(0.05)

        for number in range(30):
            await send(number)
            if number in (5, 15):
                owner = await nodes.owned(queue.shard)
                await owner.ownership_loop.move(queue.shard, other(nodes, owner).settings.node)
            if number == 20:
                await nodes.crash((await nodes.owned(queue.shard)).settings.node)
        assert all([await send(number) for number in range(30)])
        got: list[int] = []
        while len(got) < 30:
            node = list(nodes.hub.nodes.values())[len(got) % len(nodes.hub.nodes)]
            found = await brokers.receive(node.broker, queue, 3, None, 0, "tester")
            got += [int(delivery.body) for delivery in found]
            assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))
        assert got == list(range(30))

    run_nodes(tmp_path, main, "a", "b", "c")
