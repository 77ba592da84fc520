"""A queue as a stream of Spark, and its history as a replay, against a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from batonq.client.models import Outgoing
from batonq.pipeline.jobs.problems import sentence
from batonq.pipeline.spark.lag import messages_lag
from batonq.pipeline.spark.messages_replay import as_history
from batonq.pipeline.spark.messages_table import EVENT_COLUMNS
from batonq.sync import Baton
from tests.pipeline.consumers import consume
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def baton(server: TestServer) -> Iterator[Baton]:
    with Baton(server.url) as client:
        yield client


def test_a_consumer_drains_a_queue_and_everything_is_acknowledged(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    queue = baton.create_queue("drained")
    queue.send_many([{"number": number} for number in range(500)])
    seen: list[tuple[int, list[int]]] = []

    def work(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("get_json_object(text, '$.number') AS number", "content", "queue").collect()
        assert {(row.content, row.queue) for row in rows} <= {("json", "drained")}
        seen.append((number, [int(row.number) for row in rows]))

    query = consume(spark, server, "drained", tmp_path, work)
    query.awaitTermination()
    assert [messages_lag(progress) for progress in query.recentProgress] == [300, 100, 0]
    assert [len(numbers) for _, numbers in seen] == [200, 200, 100]
    assert sorted(number for _, numbers in seen for number in numbers) == list(range(500))
    stats = queue.stats()
    assert (stats.deleted, stats.visible, stats.in_flight) == (500, 0, 0)

    queue.send_many(["again"] * 3)
    consume(spark, server, "drained", tmp_path, lambda batch, number: seen.append((number, []))).awaitTermination()
    assert seen[-1][0] == 3 and queue.stats().deleted == 503


def test_a_batch_that_raises_leaves_its_messages_to_come_again(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    queue = baton.create_queue("failing")
    queue.send_many(list(range(300)))
    seen: list[int] = []

    def fails(batch: DataFrame, number: int) -> None:
        if number:
            raise ValueError("cannot work on this")
        seen.extend(int(row.text) for row in batch.select("text").collect())

    query = consume(spark, server, "failing", tmp_path, fails)
    with pytest.raises(Exception, match="cannot work on this"):
        query.awaitTermination()
    stats = queue.stats()
    assert (stats.deleted, stats.in_flight) == (200, 100)
    server.advance(61)
    assert queue.stats().visible == 100

    counts: list[int] = []

    def works(batch: DataFrame, number: int) -> None:
        rows = batch.select("text", "receive_count").collect()
        seen.extend(int(row.text) for row in rows)
        counts.extend(row.receive_count for row in rows)

    consume(spark, server, "failing", tmp_path, works).awaitTermination()
    assert sorted(seen) == list(range(300))
    assert set(counts) == {2} and queue.stats().deleted == 300


def test_a_batch_longer_than_its_leases_keeps_them(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    queue = baton.create_queue("long")
    queue.send_many(["a", "b"])

    def work(batch: DataFrame, number: int) -> None:
        """Two heartbeats long, which is longer than the lease is by the server's clock."""
        for _ in range(2):
            before = extensions()
            for _ in range(1200):
                if extensions() > before:
                    break
                time.sleep(0.05)
            server.advance(5)

    def extensions() -> int:
        return server.rest.calls["changeVisibilityBatch"]

    before = extensions()
    with server.clock.held():  # time passes for the leases as `work` says, and not while Spark is busy
        consume(spark, server, "long", tmp_path, work, visibilitySeconds="9").awaitTermination()
    assert extensions() >= before + 2
    stats = queue.stats()
    assert (stats.deleted, stats.expired_leases, stats.received) == (2, 0, 2)


def test_a_missing_queue_and_a_batch_are_told(spark: SparkSession, server: TestServer, tmp_path: Path) -> None:
    query = consume(spark, server, "absent", tmp_path, lambda batch, number: None)
    with pytest.raises(Exception, match="Queue absent does not exist") as told:
        query.awaitTermination()
    assert sentence(told.value).startswith("Queue absent does not exist at http://127.0.0.1")
    with pytest.raises(Exception, match="read=messages needs a stream"):
        spark.read.format("baton").options(read="messages", queue="absent").load(server.url).count()


# --- replay ---------------------------------------------------------------------------------------


def test_a_replay_shows_what_was_sent_and_takes_nothing(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    baton.create_queue("replayed-dead")
    queue = baton.create_queue("replayed", max_receives=1, dead_letter_queue="replayed-dead")
    sent = [
        Outgoing({"number": 1}, group="g", priority=203, attributes={"kind": "web"}, dedup_key="k"),
        Outgoing("text"),
        Outgoing(b"\xff"),
    ]
    results = queue.send_many(sent)
    for message in queue.receive(3, wait=0):
        message.nack(dead_letter=True)
    baton.create_queue("replayed-other").send("not this one")
    source = spark.read.format("baton").options(read="replay", queue="replayed")
    rows = {row.message_id: row for row in source.load(server.url).collect()}
    assert list(rows) == [result.id for result in results]  # type: ignore[union-attr]
    first, second, third = rows.values()
    assert (first.text, first.content, first.body) == ('{"number":1}', "json", b'{"number":1}')
    assert (first.group, first.priority, first.attributes, first.dedup_key) == ("g", 203, {"kind": "web"}, "k")
    assert (second.text, second.content, second.queue) == ("text", "text", "replayed")
    assert (third.text, third.content, third.body) == (None, "bytes", b"\xff")
    assert source.load(server.url).where("priority > 202 AND queue = 'replayed'").count() == 1

    counts: list[int] = []
    for more in (0, 2):
        queue.send_many(["more"] * more)
        stream = spark.readStream.format("baton").options(read="replay", queue="replayed").load(server.url)
        writer = stream.writeStream.foreachBatch(lambda batch, number: counts.append(batch.count()))
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()
    assert sum(counts) == 5 and counts[-1] == 2
    stats = queue.stats()
    assert (stats.visible, stats.received) == (2, 3)


def test_a_replay_of_what_is_not_there(spark: SparkSession, server: TestServer) -> None:
    for queue in ("absent", "9999"):
        with pytest.raises(Exception, match=r"There is no queue '?(absent|9999)'? in the history"):
            spark.read.format("baton").options(read="replay", queue=queue).load(server.url).count()


def test_a_replay_has_options_of_its_own() -> None:
    given = {"url": "u", "queue": "q", "since": "2026-01-01", "read": "replay"}
    assert as_history(given) == {
        "url": "u",
        "since": "2026-01-01",
        "queues": "q",
        "events": "sent",
        "columns": ",".join(EVENT_COLUMNS),
    }
    for wrong, reason in (({"bodies": "true"}, "There is no option 'bodies'"), ({"queue": "a,b"}, "one queue")):
        with pytest.raises(Exception, match=reason):
            as_history({**given, **wrong})
