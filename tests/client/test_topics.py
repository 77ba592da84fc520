"""Topics by both clients: published, subscribed, matched, changed and deleted; over HTTP and in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batonq.client import Outgoing
from batonq.errors import BatonError, InvalidInput, NotFound, SubscriptionExists, TopicDoesNotExist, TopicExists
from tests.client.support import run
from tests.client.test_queue import Place
from tests.support.server import TestServer


@pytest.fixture(params=["server", "memory"])
def place(request: pytest.FixtureRequest, form: str, server: TestServer, account: str) -> Place:
    return Place(form, request.param, server, account)


async def bodies(queue: Any) -> list[Any]:
    return [message.body for message in await queue.receive(100, wait=0)]


def test_a_message_is_published_to_the_queues_whose_filter_matches(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders")
            everything, north = await baton.create_queue("all"), await baton.create_queue("north")
            await topic.subscribe("all")
            made = await topic.subscribe("north", filter={"shop": ["north"]})
            assert (made.queue, made.filter_policy, made.raw_delivery) == ("north", {"shop": ["north"]}, True)
            sent = await topic.publish({"n": 1}, attributes={"shop": "north", "total": 12.5})
            assert sent.id and not sent.duplicate
            results = await topic.publish_many([Outgoing({"n": 2}, attributes={"shop": "south"}), {"n": 3}])
            assert not any(isinstance(result, BatonError) for result in results)
            [message] = await north.receive(10, wait=0)
            assert message.body == {"n": 1}
            assert message.attributes == {"shop": "north", "total": 12.5}
            assert sorted(body["n"] for body in await bodies(everything)) == [1, 2, 3]

    run(scenario())


def test_the_envelope_shows_the_subject(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("alerts")
            queue = await baton.create_queue("wrapped")
            await topic.subscribe("wrapped", raw=False)
            await topic.publish("x", subject="Disk full")
            await topic.publish("y", subject="CPU", batch=False)
            await topic.publish_many([Outgoing("z", subject="Memory"), "w"])
            envelopes = [json.loads(body) for body in await bodies(queue)]
            assert {envelope["Message"]: envelope.get("Subject") for envelope in envelopes} == {
                "x": "Disk full",
                "y": "CPU",
                "z": "Memory",
                "w": None,
            }
            with pytest.raises(InvalidInput, match="subject"):
                await topic.publish("x", subject="a\tb")

    run(scenario())


def test_a_queue_knows_its_topics(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic, queue = await baton.create_topic("alerts"), await baton.create_queue("pager")
            assert ((await queue.info()).subscriptions, (await queue.info()).subscribed_topics) == (0, [])
            await topic.subscribe("pager")
            assert ((await queue.info()).subscriptions, (await queue.info()).subscribed_topics) == (1, ["alerts"])

    run(scenario())


def test_subscriptions_are_found_changed_and_removed(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders")
            for name in ("a", "b", "dead"):
                await baton.create_queue(name)
            first = await topic.subscribe("a", raw=False, dead_letter_queue="dead")
            await topic.subscribe("b", filter={"order": {"total": [1]}}, scope="MessageBody")
            assert await topic.subscribe("a", raw=False, dead_letter_queue="dead") == first
            with pytest.raises(SubscriptionExists, match="a different raw"):
                await topic.subscribe("a")
            found = [one async for one in topic.subscriptions()]
            assert [(one.queue, one.raw_delivery, one.dead_letter_queue) for one in found] == [
                ("a", False, "dead"),
                ("b", True, ""),
            ]
            assert found[1].filter_policy_scope == "MessageBody"
            assert await topic.subscription(first.subscription_id) == first
            changed = await topic.update_subscription(
                first.subscription_id, filter={"shop": ["x"]}, raw=True, dead_letter_queue=None
            )
            assert (changed.filter_policy, changed.raw_delivery, changed.dead_letter_queue) == (
                {"shop": ["x"]},
                True,
                "",
            )
            assert (await topic.update_subscription(first.subscription_id, filter=None)).filter_policy is None
            await topic.unsubscribe(first.subscription_id)
            with pytest.raises(NotFound):
                await topic.unsubscribe(first.subscription_id)
            assert [one.queue async for one in topic.subscriptions()] == ["b"]

    run(scenario())


def test_copies_that_wait_are_counted_and_shown(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders")
            await baton.create_queue("small", max_messages=1)
            await topic.subscribe("small")
            assert (await topic.info()).waiting_copies == 0 and await topic.waiting() == []
            for number in range(3):
                await topic.publish(number)
            info = await topic.info()
            assert info.waiting_copies == 2 and info.oldest_waiting_seconds >= 0
            first, second = await topic.waiting()
            assert (first.body, second.body) == (1, 2) and "small" in first.why
            assert [one.body for one in await topic.waiting(after=first.sequence, limit=1)] == [2]

    run(scenario())


def test_match_says_who_would_get_a_message(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders")
            for name, policy in (("a", {"shop": ["north"]}), ("b", None)):
                await baton.create_queue(name)
                await topic.subscribe(name, filter=policy)
            found = await topic.match({"n": 1}, {"shop": "south"})
            assert [(one.queue, one.matches, one.reason) for one in found] == [
                ("b", True, ""),
                ("a", False, "The attribute shop does not match."),
            ]

    run(scenario())


def test_topics_are_created_listed_changed_and_deleted(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders", retention=600, tags={"team": "shop"}, display_name="Orders")
            assert baton.topic("orders").name == topic.name == "orders"
            await baton.create_topic("orders", retention=600)
            with pytest.raises(TopicExists):
                await baton.create_topic("orders", exist_ok=False)
            with pytest.raises(TopicExists, match="a different retention"):
                await baton.create_topic("orders", retention=601)
            await baton.create_topic("events", fifo=True, content_based_deduplication=True)
            assert [(one.name, one.fifo, one.retention_seconds) async for one in baton.topics()] == [
                ("events", True, 345_600),
                ("orders", False, 600),
            ]
            assert [one.name async for one in baton.topics("ev")] == ["events"]
            changed = await topic.update(retention=None, tags={})
            assert (changed.retention_seconds, changed.tags, changed.display_name) == (345_600, {}, "Orders")
            assert await topic.info() == changed
            await topic.delete()
            with pytest.raises(TopicDoesNotExist, match="orders"):
                await topic.publish("x")
            with pytest.raises(TopicDoesNotExist):
                await topic.info()

    run(scenario())


def test_a_fifo_topic_keeps_the_order_of_each_group(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders", fifo=True)
            queue = await baton.create_queue("orders", fifo=True)
            await topic.subscribe("orders")
            await topic.publish_many(
                [Outgoing(number, group=f"g{number % 2}", dedup_key=str(number)) for number in range(10)]
            )
            assert (await topic.publish(0, group="g0", dedup_key="0")).duplicate
            found = await bodies(queue)
            assert [body for body in found if body % 2] == [1, 3, 5, 7, 9]
            assert [body for body in found if not body % 2] == [0, 2, 4, 6, 8]

    run(scenario())


def test_wrong_filters_and_times_get_an_error_that_says_where(place: Place) -> None:
    async def scenario() -> None:
        async with place.open() as baton:
            topic = await baton.create_topic("orders")
            await baton.create_queue("a")
            with pytest.raises(InvalidInput, match=r"at shop\[0\].numeric: a numeric match must be a list"):
                await topic.subscribe("a", filter={"shop": [{"numeric": 5}]})
            [result] = await topic.publish_many([Outgoing("x", delay=5)])
            assert isinstance(result, InvalidInput) and "cannot have its own delay" in result.message

    run(scenario())
