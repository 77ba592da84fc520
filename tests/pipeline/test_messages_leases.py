"""What a streaming query holds and when it acknowledges: plain Python, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from batonq.client.models import MessageFields
from batonq.errors import BatonError, InvalidInput, LeaseLost, Unavailable
from batonq.pipeline.spark.messages_leases import Leases
from batonq.pipeline.spark.messages_source import (
    SCHEMA,
    MessagesPartition,
    MessagesStreamReader,
    chosen_columns,
    spread,
)
from batonq.pipeline.spark.messages_table import arrow_schema, of_messages
from batonq.sync import Baton
from tests.support.server import TestServer


def message(number: int, **more: Any) -> MessageFields:
    return MessageFields(id=f"m{number}", receipt=f"r{number}", body=f"body {number}", **more)


class Source:
    """Stands for a queue with so many messages."""

    def __init__(self, count: int, *, at_once: int = 1000) -> None:
        self.waiting = [message(number) for number in range(count)]
        self.at_once = at_once
        self.asked: list[tuple[int, float]] = []
        self.acked: list[str] = []
        self.extended: list[str] = []
        self.lost: set[str] = set()
        self.away = False

    def receive(
        self, max_messages: int, wait: float, *, visibility: float | None, consumer: str
    ) -> Sequence[MessageFields]:
        self.asked.append((max_messages, wait))
        count = min(max_messages, self.at_once)
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def extend_many(self, extensions: Sequence[tuple[str, float]]) -> list[float | BatonError]:
        if self.away:
            raise Unavailable("away")
        self.extended += [receipt for receipt, _ in extensions]
        return [LeaseLost() if receipt in self.lost else 1.0 for receipt, _ in extensions]

    def ack_many(self, receipts: Sequence[str]) -> list[BatonError | None]:
        if self.away:
            raise Unavailable("away")
        self.acked += receipts
        return [None] * len(receipts)


def held(source: Source, **more: Any) -> Leases:
    return Leases(source, **{"visibility_s": 3600.0, "wait_s": 1.0, "bytes_max": 1 << 20, **more})


def test_a_batch_is_acknowledged_when_the_next_one_is_asked_for() -> None:
    source = Source(5)
    leases = held(source)
    assert leases.take(0, 3) == 3
    assert [one.id for one in leases.messages(0, 3)] == ["m0", "m1", "m2"]
    assert not source.acked
    assert leases.take(3, 3) == 5
    assert source.acked == ["r0", "r1", "r2"]
    assert leases.take(5, 3) == 5
    assert source.acked == ["r0", "r1", "r2", "r3", "r4"]
    leases.stop()


def test_commit_acknowledges_what_lies_before_it_and_once() -> None:
    source = Source(5)
    leases = held(source)
    leases.take(0, 5)
    leases.settle(4)  # in the middle of a batch: it is not committed
    assert not source.acked
    leases.settle(5)
    leases.settle(5)
    assert leases.take(5, 5) == 5
    assert source.acked == [f"r{number}" for number in range(5)]
    leases.stop()


def test_a_batch_that_was_not_committed_is_not_taken_twice() -> None:
    source = Source(5)
    leases = held(source)
    assert leases.take(0, 3) == leases.take(0, 3) == 3
    assert len(leases.messages(0, 3)) == 3 and len(source.waiting) == 2
    leases.stop()


def test_several_receives_fill_a_batch_and_only_the_first_waits() -> None:
    source = Source(50, at_once=10)
    leases = held(source)
    assert leases.take(0, 25) == 25
    assert source.asked == [(25, 1.0), (15, 0.0), (5, 0.0)]
    assert held(Source(0)).take(7, 10) == 7
    leases.stop()


def test_large_bodies_and_a_trickle_end_a_batch() -> None:
    leases = held(Source(50, at_once=10), bytes_max=100)
    assert leases.take(0, 50) == 20  # "body 0" and so on: 6 bytes each, 60 of the first request
    leases.stop()
    times = iter(range(100))
    leases = held(Source(50, at_once=1), clock=lambda: float(next(times)))
    assert 0 < leases.take(0, 50) < 5
    leases.stop()


def test_what_another_process_took_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(3)
    leases = held(source)
    with caplog.at_level(logging.WARNING):
        assert leases.messages(10, 17) == []
    assert "REPEATED BATCH WITHOUT ITS MESSAGES: the batch of 7 messages is repeated" in caplog.text
    assert "The batch has its old id and no rows." in caplog.text
    assert leases.take(17, 10) == 20
    assert [one.id for one in leases.messages(17, 20)] == ["m0", "m1", "m2"]
    leases.stop()


def test_a_lost_lease_is_not_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(3)
    source.lost = {"r1"}
    leases = held(source)
    leases.take(0, 3)
    with caplog.at_level(logging.WARNING):
        leases.extend()
        leases.extend()
    assert source.extended == ["r0", "r1", "r2", "r0", "r2"]
    assert "1 leases of the running batch ended early" in caplog.text
    leases.settle(3)
    assert source.acked == ["r0", "r2"]
    assert (leases.acked, leases.lost) == (2, 1)
    leases.stop()


def test_a_node_that_is_away_loses_no_acknowledgement() -> None:
    source = Source(2)
    leases = held(source)
    leases.take(0, 2)
    source.away = True
    with pytest.raises(Unavailable):
        leases.take(2, 2)
    source.away = False
    leases.extend()
    assert source.extended == ["r0", "r1"]  # still held
    assert leases.take(2, 2) == 2
    assert source.acked == ["r0", "r1"]
    leases.stop()


# --- rows and parts -------------------------------------------------------------------------------


def test_a_row_has_all_of_a_message() -> None:
    batch = of_messages(
        [
            message(
                1,
                group="g",
                priority=5,
                sequence=9,
                sent_at_ms=1_000,
                receive_count=2,
                attributes={"a": "x", "n": 1.5, "b": b"\x01"},
                traceparent="00-1",
                tracestate="v=1",
                dedup_key="k",
                queue="q",
            ),
            MessageFields(id="m2", receipt="r2", body={"a": [1]}),
            MessageFields(id="m3", receipt="r3", body=b"\xff"),
        ]
    )
    first, second, third = batch.to_pylist()
    assert first["sent_at"].timestamp() == 1.0
    del first["sent_at"]
    assert first == {
        "message_id": "m1",
        "body": b"body 1",
        "text": "body 1",
        "content": "text",
        "group": "g",
        "priority": 5,
        "sequence": 9,
        "receive_count": 2,
        "attributes": [("a", "x"), ("n", "1.5"), ("b", "AQ==")],
        "trace": "00-1 v=1",
        "dedup_key": "k",
        "queue": "q",
    }
    assert (second["text"], second["content"]) == ('{"a":[1]}', "json")
    assert (third["body"], third["text"], third["content"]) == (b"\xff", None, "bytes")
    assert batch.schema == arrow_schema() and batch.schema.names == SCHEMA.fieldNames()


def test_a_group_stays_together() -> None:
    messages = [message(number, group=f"g{number % 3}" if number % 2 else None) for number in range(100)]
    parts = spread(messages, 30)
    assert sorted(one.id for part in parts for one in part) == sorted(one.id for one in messages)
    for group in ("g0", "g1", "g2"):
        (home,) = [part for part in parts if any(one.group == group for one in part)]
        ids = [int(one.id[1:]) for one in home if one.group == group]
        assert ids == sorted(ids)
    assert spread([], 10) == []


def test_columns_of_a_schema_of_ones_own() -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    assert chosen_columns(StructType([StructField("text", StringType())])) == ["text"]
    with pytest.raises(InvalidInput, match="There is no column text of type bigint"):
        chosen_columns(StructType([StructField("text", LongType())]))


# --- the reader against a server ------------------------------------------------------------------


def reader(server: TestServer, **options: str) -> MessagesStreamReader:
    given = {"url": server.url, "queue": "taken", "waitSeconds": "0", **options}
    return MessagesStreamReader(given, SCHEMA)


def test_the_reader_takes_gives_out_and_acknowledges(server: TestServer) -> None:
    with Baton(server.url) as baton:
        queue = baton.create_queue("taken")
        queue.send_many([f"message {number}" for number in range(25)])
        one = reader(server, messagesPerPartition="10")
        assert one.initialOffset() == {"messages": 0}
        one.prepareForTriggerAvailableNow()
        queue.send("later than the trigger")
        end = one.latestOffset({"messages": 0}, ReadMaxRows(20))
        assert end == {"messages": 20} and one.reportLatestOffset() == {"messages": 26}
        parts = one.partitions({"messages": 0}, end)
        assert len(parts) == 2
        rows = [row for part in parts for batch in one.read(part) for row in batch.to_pylist()]
        assert [row["text"] for row in rows] == [f"message {number}" for number in range(20)]
        assert {row["queue"] for row in rows} == {"taken"}
        end = one.latestOffset(end, ReadMaxRows(20))
        assert end == {"messages": 25}
        assert queue.stats().deleted == 20
        assert one.latestOffset(end, ReadMaxRows(20)) == end
        one.commit(end)
        stats = queue.stats()
        assert (stats.deleted, stats.visible, stats.in_flight) == (25, 1, 0)
        one.stop()


def test_a_heartbeat_keeps_leases_beyond_their_time(server: TestServer) -> None:
    with Baton(server.url) as baton:
        queue = baton.create_queue("kept")
        queue.send("one")
        leases = Leases(queue, visibility_s=30.0, wait_s=0.0, bytes_max=1000)
        leases.take(0, 10)
        for _ in range(4):
            server.advance(20)
            leases.extend()
        assert queue.stats().in_flight == 1
        leases.settle(1)
        assert (queue.stats().deleted, leases.lost) == (1, 0)
        leases.stop()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue": ""}, "The option queue is missing"),
        ({"url": ""}, "The option url is missing"),
        ({"url": "/var/lib/baton"}, "This needs a node"),
        ({"maxMessagesPerBatch": "none"}, "The option maxMessagesPerBatch must be an integer from 1, not 'none'"),
        ({"waitSeconds": "21"}, "The option waitSeconds must be a number of seconds from 0.0 to 20.0, not '21'"),
        ({"maxMessages": "9"}, "There is no option 'maxMessages'; the options are url, accessKey"),
        ({"accessKey": "a"}, "accessKey and secretKey must be set together"),
    ],
)
def test_options_that_are_wrong(server: TestServer, options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        reader(server, **options)


def test_a_missing_queue_is_named(server: TestServer) -> None:
    with pytest.raises(BatonError, match="Queue absent does not exist at http://127"):
        reader(server, queue="absent").initialOffset()


def test_a_partition_of_sparks_own_has_no_rows(server: TestServer) -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(reader(server).read(InputPartition(None))) == []
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, arrow_schema()).close()
    assert list(reader(server).read(MessagesPartition(empty.getvalue().to_pybytes()))) == []
