"""Topics on a node: subscriptions reach the topic's shard, copies reach their queues, whatever fails on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Accepted, Send
from batonq.core.ids import message_id
from batonq.core.shard.commands import publish as publish_command
from batonq.core.topics.message_values import BodyValues, Paths, ReadBody
from batonq.errors import BatonError, InvalidInput, NotFound, TopicDoesNotExist, TopicExists
from batonq.node.messages.body_reader import LARGE_BYTES, BodyReader
from batonq.node.messages.peek import Situation, why
from tests.node import wide
from tests.node.nodes import ACCOUNT, Faults, drain, kill, make_node, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.node.topics import all_serving, copies_waiting, delivered, make_queue, make_topic, publish, subscribe
from tests.support import brokers


def test_every_subscribed_queue_gets_a_copy_on_whichever_shard_it_is(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        topic = await make_topic(node)
        queues = [await make_queue(node, f"q{number}") for number in range(6)]
        queues.append(await make_queue(node, "wide", {"Baton.Spread": "2"}))
        for queue in queues:
            await subscribe(node, topic, queue.name)
        assert len({queue.shard for queue in queues}) == 3
        results = await publish(node, topic, "a", "b", "c")
        assert all(isinstance(one, Accepted) for one in results)
        await delivered(node)
        for queue in queues:
            assert sorted(await drain(node, queue)) == ["a", "b", "c"]
        await node.stop()

    run_virtual(main)


def test_a_subscriber_without_raw_delivery_gets_the_envelope(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2, public_url="http://queue.test")
        topic = await make_topic(node)
        near, far = await make_queue(node, "near"), await make_queue(node, "far")
        assert {near.shard, far.shard} == {0, 1}
        arns = {}
        for queue in (near, far):
            arns[queue.name] = (await subscribe(node, topic, queue.name, raw=False)).arn
        (sent,) = await publish(node, topic, "hello", kind="greeting")
        assert isinstance(sent, Accepted)
        await delivered(node)
        for queue in (near, far):
            page = await node.broker.peek(queue, 0, 10)
            (delivery,) = await receive(node, queue)
            assert delivery.body == page.messages[0].body and delivery.attributes == page.messages[0].attributes == b""
            document = json.loads(delivery.body)
            assert document.pop("UnsubscribeURL").startswith("http://queue.test/?Action=Unsubscribe&SubscriptionArn=")
            assert document.pop("Timestamp").endswith("Z")
            assert document == {
                "Type": "Notification",
                "MessageId": sent.message_id,
                "TopicArn": f"arn:aws:sns:us-east-1:{ACCOUNT}:news",
                "Message": "hello",
                "SignatureVersion": "1",
                "Signature": "",
                "SigningCertURL": "",
                "MessageAttributes": {"kind": {"Type": "String", "Value": "greeting"}},
            }
            assert delivery.message_id != sent.message_id
        await node.stop()

    run_virtual(main)


def test_topics_and_subscriptions_are_found_changed_and_deleted(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        broker = node.broker
        topic = await make_topic(node)
        assert await make_topic(node) == topic and broker.topic(ACCOUNT, "news") == topic
        await make_topic(node, "news.fifo", DisplayName="x")
        with pytest.raises(TopicExists, match="DisplayName"):
            await make_topic(node, "news.fifo", DisplayName="y")
        with pytest.raises(TopicDoesNotExist):
            broker.topic(ACCOUNT, "olds")
        assert [one.name for one in broker.topics(ACCOUNT, "news.")] == ["news.fifo"]
        await make_queue(node, "mail")
        subscription = await subscribe(node, topic, "mail")
        assert await subscribe(node, topic, "mail") == subscription == broker.subscription(subscription.arn)
        await broker.set_subscription_attributes(subscription, {"FilterPolicy": '{"kind":["sport"]}'})
        await publish(node, topic, "dull")
        await publish(node, topic, "goal", kind="sport")
        await broker.set_subscription_attributes(subscription, {"FilterPolicy": ""})
        await publish(node, topic, "all")
        await delivered(node)
        mail = broker.queue(ACCOUNT, "mail")
        assert await drain(node, mail) == ["goal", "all"]
        with pytest.raises(InvalidInput, match="kind"):
            await broker.set_subscription_attributes(subscription, {"FilterPolicy": '{"kind":"sport"}'})
        await broker.tag_topic(topic, {"team": "red"})
        assert broker.topic(ACCOUNT, "news").tags == {"team": "red"}
        await broker.unsubscribe(subscription)
        with pytest.raises(NotFound):
            broker.subscription(subscription.arn)
        await publish(node, topic, "nobody")
        await subscribe(node, topic, "mail")
        await broker.delete_topic(topic)
        assert broker.subscriptions(ACCOUNT) == []
        with pytest.raises(BatonError):
            await publish(node, topic, "late")
        await node.maintenance.step()
        assert await drain(node, mail) == []
        await node.stop()

    run_virtual(main)


def test_a_queue_that_is_deleted_and_created_again_gets_messages_again(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2, delete_wait_s=0)
        topic = await make_topic(node)
        await make_queue(node, "other")
        queue = await make_queue(node, "mail")
        await subscribe(node, topic, "mail")
        await node.broker.delete_queue(queue)
        await publish(node, topic, "lost")
        await settle()
        await until(lambda: any(alarm.kind == "copies-dropped" for alarm in node.alarms.active()))
        queue = await make_queue(node, "mail")
        await publish(node, topic, "found")
        await delivered(node)
        assert await drain(node, queue) == ["found"]
        await node.stop()

    run_virtual(main)


def test_subscriptions_survive_a_restart_and_reach_a_shard_that_was_down(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, shards=2, faults=faults, reopen_first_s=5.0)
        await node.start()
        topic = await make_topic(node)
        for name in ("a", "b"):
            await make_queue(node, name)
        await subscribe(node, topic, "a")
        faults.planned[topic.shard] = ["refuse"]
        with pytest.raises(BatonError):
            await publish(node, topic, "refused")
        with pytest.raises(BatonError):
            await subscribe(node, topic, "b")  # the catalog has it, the shard is told when it is back
        await until(lambda: node.shards[topic.shard].serving)
        await settle()
        await publish(node, topic, "x")
        await delivered(node)
        for name in ("a", "b"):
            assert await drain(node, node.broker.queue(ACCOUNT, name)) == ["x"]
        await publish(node, topic, "y")
        await kill(node)
        node = await open_node(loop, tmp_path, shards=2)
        await delivered(node)
        topic = node.broker.topic(ACCOUNT, "news")
        await publish(node, topic, "z")
        await delivered(node)
        for name in ("a", "b"):
            assert await drain(node, node.broker.queue(ACCOUNT, name)) == ["y", "z"]
        await node.stop()

    run_virtual(main)


def test_a_slow_shard_delays_its_own_copies_only(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, shards=2, faults=faults, reopen_first_s=1000.0, reopen_max_s=1000.0)
        await node.start()
        topic = await make_topic(node)
        queues = [await make_queue(node, name) for name in ("a", "b")]
        for queue in queues:
            await subscribe(node, topic, queue.name)
        (near,) = (queue for queue in queues if queue.shard == topic.shard)
        (far,) = (queue for queue in queues if queue.shard != topic.shard)
        faults.planned[far.shard] = ["refuse"]
        before = loop.time()
        assert isinstance((await publish(node, topic, "m"))[0], Accepted)
        assert loop.time() == before, "the answer does not wait for the other shard"
        await settle()
        assert await drain(node, near) == ["m"]
        assert copies_waiting(node) == 1
        await node.stop()

    run_virtual(main)


def test_a_full_subscriber_leaves_the_latency_of_the_others_as_it_was(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        topic = await make_topic(node)
        await make_queue(node, "full-near", {"Baton.MaximumMessages": "1"})
        await make_queue(node, "full-far", {"Baton.MaximumMessages": "1"})
        queues = [await make_queue(node, name) for name in ("near", "far")]
        for name in ("full-near", "full-far", "near", "far"):
            await subscribe(node, topic, name)
        got: list[str] = []
        for number in range(50):
            before = loop.time()
            await publish(node, topic, str(number))
            await settle()
            assert loop.time() == before, "a publish waits for nothing"
            for queue in queues:
                got += await drain(node, queue)
            assert loop.time() == before, "both copies are there at once"
        assert Counter(got) == Counter({str(number): 2 for number in range(50)})
        assert copies_waiting(node) == 98
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(6))
def test_kills_during_publishes_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Every message that was acknowledged, or may have been taken, reaches each queue exactly once or not at all, and
    all queues agree.
    """

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        faults = Faults()
        node = make_node(loop, tmp_path, shards=3, faults=faults, reopen_first_s=0.1, reopen_max_s=0.5)
        await node.start()
        names = [f"q{number}" for number in range(5)]
        topic = await make_topic(node)
        for name in names:
            await make_queue(node, name)
            await subscribe(node, topic, name, raw=random.random() < 0.5)
        acknowledged: set[str] = set()
        tried: set[str] = set()
        for round_ in range(8):
            faults.random, faults.chance = random, 0.1
            for number in range(12):
                text = f"{round_}-{number}"
                tried.add(text)
                try:
                    (result,) = await publish(node, node.broker.topic(ACCOUNT, "news"), text)
                except BatonError:
                    continue
                if isinstance(result, Accepted):
                    acknowledged.add(text)
            faults.random = None
            await kill(node)
            node = make_node(loop, tmp_path, shards=3, faults=faults, reopen_first_s=0.1, reopen_max_s=0.5)
            await node.start()
        await all_serving(node)
        await delivered(node)
        found = []
        for name in names:
            bodies = await drain(node, node.broker.queue(ACCOUNT, name))
            texts = [json.loads(body)["Message"] if body.startswith("{") else body for body in bodies]
            assert len(texts) == len(set(texts)), "a copy came twice"
            assert acknowledged <= set(texts) <= tried
            found.append(set(texts))
        assert all(one == found[0] for one in found), "some queues got a message that others did not"
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_a_group_survives_kills_and_refusals(tmp_path: Path, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        faults = Faults()
        settings: dict[str, Any] = {"shards": 3, "reopen_first_s": 0.1, "reopen_max_s": 0.5}
        node = make_node(loop, tmp_path, faults=faults, **settings)
        await node.start()
        topic = await make_topic(node, "news.fifo")
        names = [f"q{number}.fifo" for number in range(3)]
        for name in names:
            limit = {"Baton.MaximumMessages": "3"} if name == "q1.fifo" else {}
            await make_queue(node, name, limit)
            await subscribe(node, topic, name)
        sent: dict[str, list[str]] = {"g": [], "h": []}
        for round_ in range(6):
            faults.random, faults.chance = random, 0.05
            for number in range(8):
                group, text = random.choice("gh"), f"{round_}-{number}"
                topic = node.broker.topic(ACCOUNT, "news.fifo")
                for _ in range(200):
                    try:
                        (result,) = await publish(node, topic, text, group=group, dedup_id=text)
                    except BatonError:
                        await all_serving(node)
                        continue
                    assert isinstance(result, Accepted)
                    break
                sent[group].append(text)
            faults.random = None
            await kill(node)
            node = make_node(loop, tmp_path, faults=faults, **settings)
            await node.start()
        await all_serving(node)
        got: dict[str, dict[str, list[str]]] = {name: {"g": [], "h": []} for name in names}

        async def consume() -> bool:
            for name in names:
                queue = node.broker.queue(ACCOUNT, name)
                for delivery in await receive(node, queue):
                    got[name][delivery.group].append(delivery.body.decode())
                    await brokers.delete(node.broker, queue, [delivery.receipt])
            return all(groups == sent for groups in got.values())

        await until(consume)
        assert copies_waiting(node) == 0
        await node.stop()

    run_virtual(main)


def test_ids_of_publishes_are_of_the_topics_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        topic = await make_topic(node)
        (result,) = await publish(node, topic, "x")
        assert isinstance(result, Accepted)
        assert result.message_id == message_id(topic.shard, result.sequence)
        await node.stop()

    run_virtual(main)


def test_a_peek_at_a_topic_shows_the_copies_that_wait_and_why(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        topic = await make_topic(node, "news.fifo")
        await make_queue(node, "full.fifo", {"Baton.MaximumMessages": "1"})
        await subscribe(node, topic, "full.fifo")
        for text in ("in", "first", "second"):
            await publish(node, topic, text, group="g", dedup_id=text)
        page = await node.broker.peek(topic, 0, 10)
        assert [peeked.body for peeked in page.messages] == [b"first", b"second"]
        counters = await node.broker.counters(topic)
        situation = Situation(node.broker.now_ms(), topic.policy, counters, lambda number: "full.fifo")
        first, second = (why(peeked.view, situation) for peeked in page.messages)
        assert first.startswith("Refused by the subscribed queue full.fifo; next retry at")
        assert second.startswith("Behind an earlier message of its group")
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("dead_shards", [2, 3])
def test_a_refused_copy_tries_all_shards_of_the_dead_letter_queue(tmp_path: Path, dead_shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        topic = await make_topic(node)
        full = await make_queue(node, "full", {"Baton.MaximumMessages": "1"})
        await send(node, full, "in the way")
        limit = str(dead_shards)  # one message per shard
        dead = await wide.make(node, "dead", dead_shards, Baton_MaximumMessages=limit)
        policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead")})
        await subscribe(node, topic, "full", RedrivePolicy=policy)
        texts = [f"{at}" for at in range(dead_shards)]
        for text in texts:
            await publish(node, topic, text)
        await delivered(node)
        assert wide.counts(node, dead) == [1] * dead_shards
        assert sorted(await drain(node, dead)) == texts
        await node.stop()

    run_virtual(main)


def on_the_thread(body: bytes, paths: Paths) -> BodyValues:
    assert isinstance(body, ReadBody) and body.paths is paths, "the body was not read before"
    return body.values


def test_large_bodies_are_read_for_filters_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        topic = await make_topic(node)
        scope: Any = {"FilterPolicyScope": "MessageBody"}
        for store in ("north", "south"):
            await make_queue(node, store)
        await subscribe(node, topic, "north", FilterPolicy='{"store": ["north"]}', **scope)
        south = await subscribe(node, topic, "south", FilterPolicy='{"store": ["south"]}', **scope)
        large = json.dumps({"store": "north", "place": "moon", "lines": ["x"] * LARGE_BYTES})
        small = json.dumps({"store": "south"})
        queues = [node.broker.queue(ACCOUNT, name) for name in ("north", "south")]
        monkeypatch.setattr(publish_command, "body_values", on_the_thread)
        await publish(node, topic, large, small)
        monkeypatch.undo()
        await publish(node, topic, small)
        assert [await drain(node, queue) for queue in queues] == [[large], [small, small]]
        read = BodyReader.read

        async def read_then_change(reader: BodyReader, command: Send, paths: Paths) -> Send:
            """The filters name other paths by the time the body is read."""
            command = await read(reader, command, paths)
            await node.broker.set_subscription_attributes(south, {"FilterPolicy": '{"place": ["moon"]}'})
            return command

        monkeypatch.setattr(BodyReader, "read", read_then_change)
        await publish(node, topic, large)
        assert [await drain(node, queue) for queue in queues] == [[large], [large]]
        await node.stop()

    run_virtual(main)
