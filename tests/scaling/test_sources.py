"""Where readings come from: the client's stats, and the attributes of any SQS endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonq.client import Baton
from batonq.errors import QueueDoesNotExist, Unavailable
from batonq.scaling import Autoscale, Lag, Reading, group_readings, sqs_readings, stats_readings
from batonq.scaling.sources import from_attributes
from tests.api.conftest import client
from tests.support.server import ACCOUNT, TestServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("sources"))) as running:
        yield running


def by_stats(url: str, *queues: str) -> Reading:
    async def main() -> Reading:
        async with Baton(url, retries=0) as baton:
            return await stats_readings(baton, queues)()

    return asyncio.run(main())


def test_a_reading_of_a_reader_group_is_its_lag(server: TestServer) -> None:
    async def main() -> Reading:
        async with Baton(server.url, retries=0) as baton:
            queue = await baton.create_queue("read", retain=3600)
            await queue.send_many(range(7))
            await queue.reader("audit").create()
            return await group_readings(baton, ["read"], "audit")()

    found = asyncio.run(main())
    assert (found.lag, found.shards, found.depth) == (7, 1, 7)
    policy = Autoscale.parse("1:10,lag=2").policy
    assert policy == Lag(2)


@pytest.mark.parametrize(("paused", "visible"), [("none", 3), ("sends", 3), ("delivery", 0), ("both", 0)])
def test_messages_that_a_pause_holds_back_need_no_workers(server: TestServer, paused: str, visible: int) -> None:
    sqs: Any = client("sqs", server.url, ACCOUNT)
    name = f"held-{paused}"
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Baton.Paused": paused})
    for found in (by_stats(server.url, name), by_attributes(sqs, [url])):
        assert found.visible == visible and (found.oldest_age_s is None) == (not visible)


def by_attributes(sqs: Any, urls: list[str]) -> Reading:
    async def main() -> Reading:
        return await sqs_readings(sqs, urls)()

    return asyncio.run(main())


def test_both_sources_say_the_same(server: TestServer) -> None:
    sqs: Any = client("sqs", server.url, ACCOUNT)
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("first", "second")]
    for url in urls:
        for number in range(4):
            sqs.send_message(QueueUrl=url, MessageBody=str(number), DelaySeconds=60 if number == 0 else 0)
    (message,) = sqs.receive_message(QueueUrl=urls[0])["Messages"]
    sqs.delete_message(QueueUrl=urls[0], ReceiptHandle=message["ReceiptHandle"])
    sqs.receive_message(QueueUrl=urls[1])
    found = by_stats(server.url, "first", "second")
    assert (found.visible, found.in_flight, found.delayed, found.sent, found.deleted) == (4, 1, 2, 8, 1)
    assert found.oldest_age_s is not None
    attributes = by_attributes(sqs, urls)
    assert (attributes.visible, attributes.in_flight, attributes.delayed) == (4, 1, 2)
    assert attributes.oldest_age_s is not None
    assert (attributes.sent, attributes.deleted) == (8, 1)
    sqs.close()


def test_a_queue_that_is_not_there_yet_is_empty(server: TestServer) -> None:
    sqs: Any = client("sqs", server.url, ACCOUNT)
    url = sqs.create_queue(QueueName="there")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.close()
    assert by_stats(server.url, "there", "not-yet").visible == 1
    with pytest.raises(QueueDoesNotExist):
        by_stats(server.url, "not-yet", "nor-this")


def test_an_outage_is_no_empty_queue(tmp_path: Path) -> None:
    with TestServer(str(tmp_path)) as gone:
        url = gone.url
    with pytest.raises(Unavailable):
        by_stats(url, "first", "second")


def test_an_endpoint_that_does_not_know_our_attributes_is_asked_for_its_own() -> None:
    asked: list[list[str]] = []

    class Refused(Exception):
        response = {"Error": {"Code": "InvalidAttributeName"}}

    class Other:
        """As much of a boto3 client as is used."""

        def get_queue_attributes(self, QueueUrl: str, AttributeNames: list[str]) -> Any:  # noqa: N803 - as boto3 has it
            asked.append(list(AttributeNames))
            if any(name.startswith("Baton.") for name in AttributeNames):
                raise Refused
            return {"Attributes": {"ApproximateNumberOfMessages": "7"}}

    async def main() -> list[Reading]:
        readings = sqs_readings(Other(), ["one", "two"])
        return [await readings(), await readings()]

    assert asyncio.run(main()) == [Reading(visible=14)] * 2
    assert asked[1:] == [["All"]] * 4, "it is asked for ours once"


def test_the_attributes_of_sqs_itself() -> None:
    """Without those that Baton adds: what they would say is not known."""
    found = from_attributes({"ApproximateNumberOfMessages": "7", "ApproximateNumberOfMessagesNotVisible": "2"})
    assert found == Reading(visible=7, in_flight=2)
    assert (found.oldest_age_s, found.sent) == (None, None)
