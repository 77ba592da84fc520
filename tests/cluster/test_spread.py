"""Queues on several shards of a cluster: any node takes any request, and a shard without an owner stops nobody else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted
from batonq.core.ids import request_hash
from batonq.core.limits import ShardLimits
from batonq.core.records import PLAIN_VERSION, ROLES_VERSION, SPREAD_VERSION
from batonq.errors import InvalidAttributeValue, InvalidInput, QueueDoesNotExist, Unavailable
from batonq.log.frames import parse_header
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.jobs.job_control import Redrive
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

NAMES = ("a", "b", "c")


async def spread(nodes: Nodes, name: str = "wide", **attributes: str) -> Queue:
    """A queue on the three shards of three nodes, one each, that all of them know."""
    for shard, node in enumerate(NAMES):
        owner = await nodes.owned(shard)
        if owner is not nodes[node]:
            await owner.ownership_loop.move(shard, node)
    queue = await nodes["a"].broker.create_queue(ACCOUNT, name, {"Baton.Spread": "3", **attributes}, {})
    for node in NAMES:
        await nodes[node].broker.refresh()
    await nodes.until(lambda: all(sorted(nodes[node].ownership_loop.owners) for node in NAMES))
    await nodes.until(
        lambda: all(
            (lease := nodes[node].ownership_loop.owners.get(shard)) is not None and lease.node == NAMES[shard]
            for node in NAMES
            for shard in range(3)
        )
    )
    return queue


async def take(node: ClusterNode, queue: Queue, wait_ms: int = 0, most: int = 10) -> list[str]:
    found = await brokers.receive(node.broker, queue, most, None, wait_ms, "tester")
    assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))
    return [delivery.body.decode() for delivery in found]


def test_any_node_sends_receives_and_deletes_on_every_shard(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        for number in range(12):
            (sent,) = await brokers.send(nodes[NAMES[number % 3]].broker, queue, [make_send(str(number))])
            assert isinstance(sent, Accepted)
        for node in NAMES:
            assert (await nodes[node].broker.counters(queue)).visible == 12
        held = [nodes[node].shards[at].host().shard.queues[queue.number].visible for at, node in enumerate(NAMES)]
        assert sum(held) == 12 and min(held) >= 3, "each node goes round"
        sends = [make_send(f"key {number}", dedup_id=str(number)) for number in range(20)]
        results = [await brokers.send(nodes[node].broker, queue, sends) for node in NAMES]
        assert [[one.message_id for one in result] for result in results] == [  # type: ignore[union-attr]
            [one.message_id for one in results[0]]  # type: ignore[union-attr]
        ] * 3
        bodies: list[str] = []
        while found := await take(nodes[NAMES[len(bodies) % 3]], queue):
            bodies += found
        assert Counter(bodies) == Counter([*map(str, range(12)), *(f"key {number}" for number in range(20))])

    run_nodes(tmp_path, main, *NAMES)


def versions(nodes: Nodes) -> set[int]:
    """Of all frames of all logs."""
    return {parse_header(data).version for far in nodes.hub.fars.values() for data in far.stored}


def test_nothing_is_written_that_an_older_node_cannot_read(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        members = nodes["c"].ownership_loop.others
        leases = members._leases
        announce = leases.announce

        async def announce_as_before(note: str) -> None:
            told = json.loads(note)
            del told["format"]
            await announce(json.dumps(told))

        leases.announce = announce_as_before  # type: ignore[method-assign]
        await members.announce({}, draining=False)
        broker = nodes["b"].broker
        plain = await broker.create_queue(ACCOUNT, "plain", {}, {})
        assert len(plain.shards) == 1, "--spread is a wish"
        for number in range(20):
            await brokers.send(broker, plain, [make_send(str(number))])
        with pytest.raises(InvalidAttributeValue, match=r"log format 4.*c \(up to 3\). Upgrade them first"):
            await broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "2"}, {})
        with pytest.raises(InvalidAttributeValue, match=r"c \(up to 3\). Upgrade them first"):
            await nodes["a"].broker.set_attributes(plain, {"Baton.Spread": "3"})
        with pytest.raises(InvalidAttributeValue, match=r"c \(up to 3\). Upgrade them first"):
            await broker.create_queue(ACCOUNT, "named", {"Baton.Durability": "1"}, {})
        with pytest.raises(InvalidInput, match=r"c \(up to 3\). Upgrade them first"):
            await nodes["b"].catalog.change(Catalog.open_shards, 1, replicas=3)
        with pytest.raises(
            InvalidInput, match=r"role or an expiry yet.*log format 5.*c \(up to 3\). Upgrade them first"
        ):
            await broker.create_key(account=ACCOUNT, name="reader", role="read", lasts_ms=0)
        with pytest.raises(InvalidInput, match=r"limited to some messages yet.*log format 6.*c \(up to 3\). Upgrade"):
            await nodes["a"].broker.set_attributes(plain, {"Baton.Paused": "delivery"})
        with pytest.raises(InvalidInput, match=r"by a job yet.*log format 5.*c \(up to 3\). Upgrade them first"):
            await broker.start_job(plain, Redrive(deletes=True, filter={"bodyContains": "x"}))
        plain_key = await broker.create_key(account=ACCOUNT, name="", role="write", lasts_ms=0)
        assert versions(nodes) == {PLAIN_VERSION}
        leases.announce = announce  # type: ignore[method-assign]
        await members.announce({}, draining=False)
        await broker.set_attributes(plain, {"Baton.Spread": "3"})
        assert versions(nodes) == {PLAIN_VERSION, SPREAD_VERSION}
        assert len((await broker.create_queue(ACCOUNT, "wide", {}, {})).shards) == 2
        reader = await broker.create_key(account=ACCOUNT, name="reader", role="read", lasts_ms=0)
        assert set(broker.access_keys()) == {plain_key, reader} and reader.role == "read"
        await broker.set_tags(plain, {"team": "red"}, [])
        assert versions(nodes) == {PLAIN_VERSION, SPREAD_VERSION, ROLES_VERSION}

    run_nodes(tmp_path, main, *NAMES, spread=2)


def test_an_empty_receive_asks_each_shard_of_another_node_once(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        node = nodes["a"]
        for _ in range(3):
            nodes.hub.calls.clear()
            assert await take(node, queue) == []
            asked = [path for path in nodes.hub.calls if path.startswith("/internal/shards/")]
            assert sorted(asked) == ["/internal/shards/1/hint", "/internal/shards/2/hint"]

    run_nodes(tmp_path, main, *NAMES)


def test_a_long_poll_is_woken_by_any_node_and_asks_once_for_all_who_wait(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        polls = [asyncio.create_task(take(nodes["a"], queue, 15_000, 1)) for _ in range(5)]
        await nodes.until(lambda: nodes["c"].shards[2].host().polls.waiting(queue.number) == 5)
        nodes.hub.calls.clear()
        for number, node in enumerate(("b", "c", "a", "b", "c")):
            await brokers.send(nodes[node].broker, queue, [make_send(str(number))])
            assert await polls[number] == [str(number)]
        hints = Counter(path for path in nodes.hub.calls if path.endswith("/hint"))
        assert max(hints.values()) <= 6, "not one for each who waits"

    run_nodes(tmp_path, main, *NAMES)


def test_sends_without_a_key_go_on_at_once_while_a_shard_has_no_owner(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        kept = nodes["a"]
        key = next(f"k{at}" for at in range(99) if queue.spread.of_key(f"k{at}") == queue.shards[2])
        before = await brokers.send(kept.broker, queue, [make_send("before", dedup_id=key)])
        await nodes.crash("c")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        named: dict[str, str] = {}
        for number in range(9):
            name = f"request {number}" if number % 2 else ""
            (sent,) = await brokers.send(kept.broker, queue, [make_send(str(number))], name, first_try=True)
            assert isinstance(sent, Accepted)
            named[name] = sent.message_id
        assert loop.time() - began_s < 0.5, "nobody waited for the shard that has no owner"
        found: list[str] = []
        while len(found) < 9:
            found += await take(kept, queue, 1_000)
        assert sorted(found) == [str(number) for number in range(9)]
        (again,) = await brokers.send(kept.broker, queue, [make_send("again", dedup_id=key)])
        assert again.message_id == before[0].message_id, "what has a key waited for its shard"  # type: ignore[union-attr]
        await nodes.owned(2)
        homes = {queue.spread.of_hash(request_hash(queue.number, name)) for name in named if name}
        assert queue.shards[2] in homes, "one of them went elsewhere"
        for name in filter(None, named):
            (sent,) = await brokers.send(nodes["b"].broker, queue, [make_send(name[-1])], name)
            assert isinstance(sent, Accepted) and sent.message_id == named[name], "any node finds it where it went"
        assert await take(kept, queue, 5_000) == ["before"]

    run_nodes(tmp_path, main, *NAMES)


def test_a_queue_grows_under_load_and_a_stale_node_loses_nothing(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "wide", {}, {})
        for name in NAMES:
            await nodes[name].broker.refresh()
        sent: list[str] = []
        done = asyncio.Event()
        got: list[str] = []

        async def produce(name: str) -> None:
            node = nodes[name]
            number = 0
            while not done.is_set():
                text = f"{name} {number}"
                (result,) = await brokers.send(
                    node.broker,
                    node.broker.queue(ACCOUNT, "wide"),
                    [make_send(text, dedup_id=text if number % 2 else "")],
                )
                assert isinstance(result, Accepted)
                sent.append(text)
                number += 1
                await asyncio.sleep(0.002)

        async def consume(name: str) -> None:
            node = nodes[name]
            while not done.is_set() or len(got) < len(sent):
                got.extend(await take(node, node.broker.queue(ACCOUNT, "wide"), 100))

        work = [asyncio.create_task(part(name)) for name in NAMES for part in (produce, consume)]
        for wanted in ("2", "3"):
            await asyncio.sleep(0.3)
            await nodes["b"].broker.set_attributes(queue, {"Baton.Spread": wanted})
        await asyncio.sleep(0.3)
        stale = await brokers.send(
            nodes["c"].broker, queue, [make_send("by the old spread")]
        )  # as it was when it was made
        assert isinstance(stale[0], Accepted)
        sent.append("by the old spread")
        done.set()
        await asyncio.gather(*work)
        assert Counter(got) == Counter(sent)
        current = nodes["a"].broker.queue(ACCOUNT, "wide")
        assert len(current.shards) == 3
        counters = await nodes["c"].broker.counters(current)
        assert (counters.sent, counters.deleted, counters.visible) == (len(sent), len(sent), 0)

    run_nodes(tmp_path, main, *NAMES)


def test_the_owner_decides_not_what_a_node_remembers(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        await brokers.send(nodes["a"].broker, queue, [make_send("old")])
        await nodes["b"].broker.delete_queue(queue)
        again = await nodes["b"].broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "3"}, {})
        assert again.number != queue.number
        with pytest.raises(QueueDoesNotExist):
            await brokers.send(nodes["a"].broker, queue, [make_send("to a queue that is gone")])
        with pytest.raises(QueueDoesNotExist):
            await brokers.receive(nodes["c"].broker, queue, 10, None, 0, "tester")
        assert (await nodes["a"].broker.counters(again)).visible == 0

    run_nodes(tmp_path, main, *NAMES, delete_wait_s=0.0)


def test_a_job_goes_on_at_all_shards_through_the_death_of_an_owner(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        morgue = await spread(nodes, "morgue")
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:morgue"
        policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
        attributes = {"Baton.Spread": "2", "RedrivePolicy": policy, "Baton.DeadLetterOn": "failure"}
        kept = nodes["a"]
        queue = await kept.broker.create_queue(ACCOUNT, "orders", attributes, {})
        for number in range(30):
            await brokers.send(kept.broker, queue, [make_send(str(number))])
        dead = 0
        while dead < 30:
            held = await brokers.receive(kept.broker, queue, 10, None, 100, "tester")
            results = await brokers.nack_many(
                kept.broker, queue, [(one.receipt, 0, "no", "", False, False) for one in held]
            )
            assert not any(results)
            dead += len(held)
        await until_counted(kept, morgue, 30)
        job = await kept.broker.start_job(morgue, Redrive(rate_per_s=20, ramp_s=0))
        await asyncio.sleep(0.3)
        await nodes.crash("c")

        async def ended() -> bool:
            try:
                return (await kept.broker.job(ACCOUNT, job.id)).state == "COMPLETED"
            except Unavailable:
                return False

        async with asyncio.timeout(15):
            while not await ended():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        status = await kept.broker.job(ACCOUNT, job.id)
        assert (status.moved, status.remaining) == (30, 0)
        await until_counted(kept, queue, 30)
        bodies: list[str] = []
        while found := await take(kept, queue):
            bodies += found
        assert sorted(map(int, bodies)) == list(range(30))

    run_nodes(tmp_path, main, *NAMES)


def test_a_purge_goes_on_through_the_death_of_an_owner_and_spares_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await spread(nodes)
        kept, loses = nodes["a"], nodes["c"]
        for number in range(20):
            await brokers.send(kept.broker, queue, [make_send(f"{number} {at}") for at in range(5)])
        host = loses.shards[2].host()
        held = host.counters(queue.number).visible
        purge, steps = host.purge, 0

        def purge_and_die(number: int, through: int) -> tuple[int, bool]:
            nonlocal steps
            steps += 1
            if steps > 2:
                raise Unavailable("it dies")
            return purge(number, through)

        monkeypatch.setattr(host, "purge", purge_and_die)
        purging = asyncio.create_task(kept.broker.purge_queue(queue))
        others = [nodes[name].shards[at].host().shard.queues[queue.number] for at, name in enumerate("ab")]
        await nodes.until(lambda: steps > 2 and all(state.purge_generation for state in others))
        left = host.counters(queue.number).visible
        assert 0 < left < held, "it died in the middle"
        await nodes.crash("c")
        late = [make_send(f"late {number}", dedup_id=str(number)) for number in range(9)]
        results = await brokers.send(kept.broker, queue, late)
        assert all(isinstance(result, Accepted) for result in results)
        await purging
        assert (await kept.broker.counters(queue)).visible == len(late)
        again = await brokers.send(kept.broker, queue, late)
        known = {key for key in range(9) if queue.spread.of_key(str(key)) != 2}
        assert all(again[key].duplicate for key in known), "they were sent after the purge"  # type: ignore[union-attr]

    run_nodes(tmp_path, main, *NAMES, shard_limits=ShardLimits(purge_step_max=5))


async def until_counted(node: ClusterNode, queue: Queue, visible: int) -> None:
    async with asyncio.timeout(15):
        while (await node.broker.counters(queue)).visible != visible:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_fifo_order_and_duplicates_hold_while_the_spread_grows_and_an_owner_dies(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        attributes = {"FifoQueue": "true", "DeduplicationScope": "messageGroup", "VisibilityTimeout": "30"}
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work.fifo", attributes, {})
        for name in NAMES:
            await nodes[name].broker.refresh()
        alive = list(NAMES)
        done = asyncio.Event()
        sent: Counter[str] = Counter()
        got: dict[str, list[int]] = {}

        def some(turn: int) -> ClusterNode:
            return nodes[alive[turn % len(alive)]]

        async def produce(group: str) -> None:
            """One after the other, each until it is taken, through whatever node has its turn."""
            turn = int(group.split()[1])
            while not done.is_set():
                text = str(sent[group])
                try:
                    node = some(turn)
                    here = node.broker.queue(ACCOUNT, "work.fifo")
                    (result,) = await brokers.send(node.broker, here, [make_send(text, group=group, dedup_id=text)])
                    if isinstance(result, Accepted):
                        sent[group] += 1
                except Unavailable:
                    pass
                turn += 1
                await asyncio.sleep(0.01)

        async def consume(at: int) -> None:
            turn = at
            while not done.is_set() or sum(map(len, got.values())) < sum(sent.values()):
                turn += 1
                try:
                    node = some(turn)
                    here = node.broker.queue(ACCOUNT, "work.fifo")
                    found = await brokers.receive(node.broker, here, 5, None, 100, "tester")
                    for delivery in found:
                        seen = got.setdefault(delivery.group, [])
                        if delivery.receive_count == 1 or int(delivery.body) not in seen:
                            seen.append(int(delivery.body))
                    receipts = [delivery.receipt for delivery in found]
                    while receipts:
                        try:
                            results = await brokers.delete(some(turn).broker, here, receipts)
                        except Unavailable:
                            continue
                        receipts = [
                            receipt
                            for receipt, result in zip(receipts, results, strict=True)
                            if isinstance(result, Unavailable)
                        ]
                except Unavailable:
                    continue

        work = [asyncio.create_task(produce(f"group {at}")) for at in range(12)]
        work += [asyncio.create_task(consume(at)) for at in range(3)]
        await asyncio.sleep(0.4)
        await nodes["b"].broker.set_attributes(queue, {"Baton.Spread": "3"})
        await asyncio.sleep(0.6)
        alive.remove("c")
        await nodes.crash("c")
        await asyncio.sleep(3)
        done.set()
        async with asyncio.timeout(40):
            await asyncio.gather(*work)
        assert got == {group: list(range(count)) for group, count in sent.items()}
        current = nodes["a"].broker.queue(ACCOUNT, "work.fifo")
        used = [shard for shard in current.shards if keeper_sent(await nodes.owned(shard), shard, queue)]
        assert len(used) == 3, "groups have moved"

    run_nodes(tmp_path, main, *NAMES)


def keeper_sent(node: ClusterNode, shard: int, queue: Queue) -> int:
    return node.shards[shard].host().counters(queue.number).sent
