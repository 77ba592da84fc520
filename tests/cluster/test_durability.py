"""Durability classes in a cluster: queues on shards of their kind, which may be added and changed while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from batonq.core.commands import Accepted
from batonq.errors import InvalidAttributeValue
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.jobs.job_control import Redrive
from tests.cluster.memory import Nodes, run_nodes
from tests.cluster.processes import STEADY_LEASE_S, Cluster, NodeProcess, wait_until
from tests.cluster.test_cluster import url
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers
from tests.support.nats import NatsServers, nats_servers
from tests.system.process import baton

FIFO = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}


async def create(node: ClusterNode, name: str, **attributes: str) -> Queue:
    named = {key.replace("_", "."): value for key, value in attributes.items()}
    return await node.broker.create_queue(ACCOUNT, name, named, {})


async def send(node: ClusterNode, queue: Queue, *bodies: str, **fields: str) -> None:
    results = await brokers.send(node.broker, queue, [make_send(body, **fields) for body in bodies])
    assert all(isinstance(result, Accepted) for result in results), results


async def take(node: ClusterNode, queue: Queue, most: int = 10) -> list[str]:
    found = await brokers.receive(node.broker, queue, most, None, 0, "tester")
    assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))
    return [delivery.body.decode() for delivery in found]


def known(node: ClusterNode, queue: Queue) -> Queue:
    found = node.broker.queue_by_number(queue.number)
    assert found is not None
    return found


async def held(nodes: Nodes, queue: Queue, shard: int) -> int:
    owner = await nodes.owned(shard)
    state = owner.shards[shard].host().shard.queues.get(queue.number)
    return state.messages if state is not None else -1


# --- nodes over logs in memory ----------------------------------------------------------------------


def test_a_kind_is_added_while_the_cluster_runs(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        with pytest.raises(InvalidAttributeValue, match="no shard has 3 replicas"):
            await create(nodes["a"], "work", Baton_Durability="3")
        await nodes.start("c", other_shards="3:2")
        assert nodes.hub.kinds == [3]
        await nodes.until(lambda: all(len(nodes[name].shards) == 4 for name in "abc"))
        queue = await create(nodes["a"], "work", Baton_Durability="3", Baton_Spread="2")
        assert sorted(queue.shards) == [2, 3]
        for name in "abc":
            await nodes[name].broker.refresh()
            await send(nodes[name], queue, name)
        bodies: list[str] = []
        while found := await take(nodes["b"], queue):
            bodies += found
        assert sorted(bodies) == ["a", "b", "c"]
        kinds = {each["shard"]: each["replicas"] for each in nodes["b"].status()["shards"]}
        assert kinds == {0: 1, 1: 1, 2: 3, 3: 3, "catalog": 1}

    run_nodes(tmp_path, main, "a", "b", shards=2)


def test_a_queue_changes_its_class_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await create(nodes["a"], "work")
        assert queue.shards == (0,)
        await send(nodes["a"], queue, "before", dedup_id="k")
        stale = known(nodes["b"], queue)
        await nodes["a"].broker.set_attributes(queue, {"Baton.Durability": "3"})
        moved = known(nodes["a"], queue)
        assert moved.shards == (0, 2) and await held(nodes, queue, 0) == 1
        for number in range(5):
            await send(nodes["b"], stale, f"stale {number}")  # by one that may not have heard
            await send(nodes["a"], moved, f"new {number}")
        await send(nodes["b"], stale, "again", dedup_id="k")
        assert await held(nodes, queue, 0) == 1 and await held(nodes, queue, 2) == 10
        assert (await nodes["b"].broker.counters(moved)).visible == 11
        found: list[str] = []
        while some := await take(nodes["b"], moved):
            found += some
        expected = {f"{word} {number}" for word in ("new", "stale") for number in range(5)}
        assert len(found) == 11 and set(found) > expected

    run_nodes(tmp_path, main, "a", "b", shards=2, other_shards="3:1")


def test_a_wide_queue_changes_its_class_and_who_has_not_heard_sends_to_its_new_shards(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await create(nodes["a"], "wide", Baton_Spread="2")
        await send(nodes["a"], queue, "0")
        await send(nodes["a"], queue, "1")
        await nodes["a"].broker.set_attributes(queue, {"Baton.Durability": "3"})
        moved = known(nodes["a"], queue)
        assert (moved.shards, moved.spread.taking) == ((0, 1, 2, 3), (2, 3))
        for number in range(6):
            await send(nodes["a"], queue, f"stale {number}")  # as it was
            await send(nodes["b"], moved, f"new {number}")
            results = await brokers.send(
                nodes["a"].broker, queue, [make_send(f"named {number}")], f"request {number}", False
            )
            assert all(isinstance(result, Accepted) for result in results), results
        assert [await held(nodes, queue, shard) for shard in (0, 1)] == [1, 1]
        assert (await nodes["b"].broker.counters(moved)).visible == 20
        assert min([await held(nodes, queue, shard) for shard in (2, 3)]) > 2

    run_nodes(tmp_path, main, "a", "b", shards=2, other_shards="3:2")


def test_a_shard_that_is_empty_is_left_once_nothing_it_remembers_counts(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await create(nodes["a"], "work", Baton_DeduplicationWindow="1")
        await send(nodes["a"], queue, "waits", dedup_id="k")
        await nodes["a"].broker.set_attributes(queue, {"Baton.Durability": "3"})
        moved = known(nodes["a"], queue)
        clock = nodes["a"].clock
        over_ms = clock.now_ms() + 1_500  # longer than all that is remembered counts
        await nodes.until(lambda: clock.now_ms() > over_ms)
        assert known(nodes["a"], queue).shards == (0, 1), "its message is still there"
        assert await take(nodes["a"], moved) == ["waits"]
        await nodes.until(lambda: known(nodes["a"], queue).shards == (1,))
        now = known(nodes["a"], queue)
        await send(nodes["a"], now, "new")
        await send(nodes["a"], moved, "by one that has not heard")
        assert sorted(await take(nodes["a"], now)) == ["by one that has not heard", "new"]

    settings = {"idempotency_hours": 1e-5, "producer_idle_hours": 1e-5, "maintenance_every_s": 0.05}
    run_nodes(tmp_path, main, "a", shards=1, other_shards="3:1", **settings)


def test_numbers_rise_and_a_look_goes_on_when_a_fifo_queue_has_left_a_shard(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        broker = nodes["a"].broker
        queue = await broker.create_queue(ACCOUNT, "work.fifo", {**FIFO, "Baton.DeduplicationWindow": "1"}, {})
        sent = await brokers.send(broker, queue, [make_send("0", group="g", dedup_id="0")])
        await broker.set_attributes(queue, {"Baton.Durability": "3"})
        assert await take(nodes["a"], known(nodes["a"], queue)) == ["0"]
        sent += await brokers.send(broker, known(nodes["a"], queue), [make_send("1", group="g", dedup_id="1")])
        await nodes.until(lambda: known(nodes["a"], queue).shards == (1,))
        now = known(nodes["a"], queue)
        sent += await brokers.send(broker, now, [make_send("2", group="g", dedup_id="2")])
        numbers = [one.sequence for one in sent if isinstance(one, Accepted)]
        assert len(numbers) == 3 and numbers == sorted(set(numbers))
        pages = [await brokers.peek(broker, now, after, 1) for after in numbers]
        assert [[one.view.sequence for one in page] for page in pages] == [numbers[1:2], numbers[2:], []]
        assert [one.sequence for one in await brokers.receive(broker, now, 10, None, 0, "tester")] == numbers[1:]

    settings = {"idempotency_hours": 1e-5, "producer_idle_hours": 1e-5, "maintenance_every_s": 0.05}
    run_nodes(tmp_path, main, "a", shards=1, other_shards="3:1", **settings)


def test_groups_of_a_fifo_queue_keep_their_order_through_a_change_of_class(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work.fifo", FIFO, {})
        await send(nodes["a"], queue, "0", group="g", dedup_id="0")
        await nodes["a"].broker.set_attributes(queue, {"Baton.Durability": "3"})
        moved = known(nodes["a"], queue)
        for number in range(1, 4):
            await send(nodes["b"], moved, str(number), group="g", dedup_id=str(number))
            await send(nodes["b"], moved, str(number), group="h", dedup_id=str(number))
        assert await held(nodes, queue, 0) == 4 and await held(nodes, queue, 1) == 3
        await send(nodes["b"], moved, "0", group="g", dedup_id="0")
        orders: dict[str, list[str]] = {"g": [], "h": []}
        while found := await brokers.receive(nodes["b"].broker, moved, 10, None, 0, "tester"):
            for delivery in found:
                orders[delivery.group].append(delivery.body.decode())
            assert not any(await brokers.delete(nodes["b"].broker, moved, [delivery.receipt for delivery in found]))
        assert orders == {"g": ["0", "1", "2", "3"], "h": ["1", "2", "3"]}
        await send(nodes["a"], moved, "4", group="g", dedup_id="4")
        assert await held(nodes, queue, 1) == 1, "an empty group has moved"

    run_nodes(tmp_path, main, "a", "b", shards=1, other_shards="3:1")


def test_dead_letters_and_redrives_cross_classes_while_one_changes(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        node = nodes["a"]
        dead = await create(node, "dead", Baton_Durability="3")
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 1}
        work = await create(node, "work", RedrivePolicy=json.dumps(policy), Baton_DeadLetterOn="failure")
        assert work.shards == (0,) and dead.shards == (1,)

        async def fail(body: str) -> None:
            await send(node, work, body)
            (found,) = await brokers.receive(node.broker, known(node, work), 1, None, 0, "tester")
            await brokers.nack(node.broker, known(node, work), found.receipt)

        await fail("first")
        await nodes.until(lambda: node.shards[1].host().counters(dead.number).visible == 1)
        await node.broker.set_attributes(dead, {"Baton.Durability": ""})
        assert known(node, dead).spread.taking == (0,)
        await fail("second")
        await nodes.until(lambda: node.shards[0].host().counters(dead.number).visible == 1)
        moved = known(node, dead)
        assert (await node.broker.counters(moved)).visible == 2
        await node.broker.start_job(moved, Redrive(ramp_s=0))
        await nodes.until(lambda: node.shards[0].host().counters(work.number).visible == 2)
        assert sorted(await take(node, work)) == ["first", "second"]
        assert (await node.broker.counters(moved)).visible == 0

    run_nodes(tmp_path, main, "a", shards=1, other_shards="3:1")


# --- real servers -----------------------------------------------------------------------------------


def replicas(nats: NatsServers, cluster: str) -> dict[str, int]:
    """Of each stream of a cluster, as the servers tell: its leader, and those who follow."""
    return {
        name.removeprefix(f"baton-{cluster}-"): count
        for name, count in nats.replicas().items()
        if name.startswith(f"baton-{cluster}-")
    }


def test_streams_of_one_and_three_replicas_and_five_are_refused(tmp_path: Path) -> None:
    with nats_servers(3) as nats:
        log = f"{nats.address}/classes?{nats.monitoring}"
        flags = ("--shards", "1", "--hold-s", "3600")
        with Cluster(tmp_path, log, *flags, "--other-shards", "1:1", nodes=2, lease_s=STEADY_LEASE_S) as cluster:
            assert replicas(nats, "classes") == {"catalog": 3, "shard-0000": 3, "shard-0001": 1}
            first, second = cluster.nodes[0], cluster.nodes[1]
            first.sqs().create_queue(QueueName="dead", Attributes={"Baton.Durability": "3"})
            policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 1}
            cheap = {"Baton.Durability": "1", "Baton.DeadLetterOn": "failure", "RedrivePolicy": json.dumps(policy)}
            first.sqs().create_queue(QueueName="cheap", Attributes=cheap)
            placed = {each["name"]: each["shard"] for each in second.ask("status")["queues"]}
            assert placed == {"dead": 0, "cheap": 1}
            with pytest.raises(ClientError, match="no shard has 5 replicas"):
                second.sqs().create_queue(QueueName="q", Attributes={"Baton.Durability": "5"})

            second.sqs().send_message(QueueUrl=url(second, "cheap"), MessageBody="hello")
            (found,) = second.sqs().receive_message(QueueUrl=url(second, "cheap"), WaitTimeSeconds=20)["Messages"]
            handle = found["ReceiptHandle"]
            second.sqs().change_message_visibility(
                QueueUrl=url(second, "cheap"), ReceiptHandle=handle, VisibilityTimeout=0
            )
            (found,) = first.sqs().receive_message(QueueUrl=url(first, "dead"), WaitTimeSeconds=20)["Messages"]
            assert found["Body"] == "hello"

            shown = baton("cluster", "status", "--url", first.url)
            assert shown.returncode == 0 and "REPLICAS" in shown.stdout, shown
            lines = [line.split() for line in shown.stdout.splitlines()]
            assert [line[:2] for line in lines[-3:]] == [["0", "3"], ["1", "1"], ["catalog", "3"]]

            five = NodeProcess(2, tmp_path, log, *flags, "--other-shards", "5:1")
            five.start()
            wait_until(lambda: not five.running, "five replicas on three servers")
            assert five.terminate() == 1
            told = " ".join(str(event.get("text", event)) for event in five.events)
            assert "cannot be created with 5 replicas" in told and "at least that many servers" in told, five.events
            assert sorted(replicas(nats, "classes")) == ["catalog", "shard-0000", "shard-0001"]
            with pytest.raises(ClientError, match="no shard has 5 replicas"):
                second.sqs().create_queue(QueueName="q", Attributes={"Baton.Durability": "5"})
