"""The sink in Spark, against a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from batonq.pipeline.jobs.problems import sentence
from batonq.sync import Baton
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def baton(server: TestServer) -> Iterator[Baton]:
    with Baton(server.url) as client:
        yield client


def save(frame: DataFrame, server: TestServer, **options: str) -> None:
    frame.write.format("baton").mode("append").options(**options).save(server.url)


def test_every_row_is_a_message_with_all_its_fields(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    queue = baton.create_queue("fields")
    baton.create_queue("fields-other")
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    rows = spark.sql(
        f"""SELECT named_struct('order', 7, 'at', timestamp'2026-01-02 03:04:05') AS body, 'g' AS `group`,
        'k' AS dedup_key, 9 AS priority, 60 AS ttl_seconds, map('kind', 'web') AS attributes, '{trace}' AS trace,
        queue FROM VALUES (CAST(NULL AS string)), ('fields-other') AS q(queue)"""
    )
    save(rows, server, queue="fields")
    for name in ("fields", "fields-other"):
        (message,) = baton.queue(name).receive(10, wait=0)
        assert message.body == {"order": 7, "at": "2026-01-02T03:04:05Z"}
        assert (message.group, message.dedup_key, message.priority) == ("g", "k", 9)
        assert message.attributes == {"kind": "web"} and message.traceparent == trace
    assert queue.stats().sent == 1


def test_many_rows_arrive_once_each(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    queue = baton.create_queue("many")
    save(spark.range(0, 5000, numPartitions=3).selectExpr("CAST(id AS string) AS value"), server, queue="many")
    found = [message.body for _ in range(5) for message in queue.receive(1000, wait=0)]
    assert sorted(map(int, found)) == list(range(5000))


def test_a_producer_that_is_named_writes_its_rows_once(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    queue = baton.create_queue("named")
    rows = spark.range(0, 100, numPartitions=2).selectExpr("id AS body")
    for _ in range(2):
        save(rows, server, queue="named", producer="once")
    save(rows, server, queue="named")
    assert (queue.stats().sent, queue.stats().duplicates) == (200, 100)


def test_refused_rows_are_told_by_their_number_and_reason(
    spark: SparkSession, server: TestServer, baton: Baton
) -> None:
    queue = baton.create_queue("odd", max_message_bytes=1024)
    rows = spark.range(0, 10, numPartitions=2).selectExpr("repeat('x', CAST(id % 3 AS int) * 1000) AS body")
    with pytest.raises(Exception, match="3 of 10 rows were refused") as told:
        save(rows, server, queue="odd")
    assert sentence(told.value).startswith("3 of 10 rows were refused: The message has 2000 bytes")
    assert "Traceback" not in str(told.value) and len(str(told.value).splitlines()) < 5
    assert queue.stats().sent == 7
    save(rows, server, queue="odd", refused="drop")
    assert queue.stats().sent == 14


@pytest.mark.parametrize(
    ("options", "columns", "reason"),
    [
        ({"queue": "absent"}, "id AS body", "Queue absent does not exist at http://127.0.0.1"),
        ({"queue": "odd"}, "id", "A table of messages needs exactly one column body (or value); this one has id."),
        ({}, "id AS body", "The queue is missing."),
        ({"queue": "odd", "topic": "odd"}, "id AS body", "There is no option 'topic'; the options are url"),
        ({"queue": "odd", "producer": "two words"}, "id AS body", "producer must be 1 to 80 characters"),
        ({}, "id AS body, 'absent' AS queue", "Queue absent does not exist at http://127.0.0.1"),
    ],
)
def test_what_cannot_be_written_is_told_before_or_at_once(
    spark: SparkSession, server: TestServer, baton: Baton, options: dict[str, str], columns: str, reason: str
) -> None:
    baton.create_queue("odd", max_message_bytes=1024)
    with pytest.raises(Exception, match=r"batonq\.errors") as told:
        save(spark.range(0, 3, numPartitions=1).selectExpr(*columns.split(", ")), server, **options)
    assert sentence(told.value).startswith(reason) and "Traceback" not in str(told.value)


def test_a_queue_is_not_overwritten(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    baton.create_queue("odd", max_message_bytes=1024)
    with pytest.raises(Exception, match="mode append"):
        spark.range(1).selectExpr("id AS body").write.format("baton").mode("overwrite").option("queue", "odd").save(
            server.url
        )
