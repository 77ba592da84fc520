"""Rows to messages, without Spark and without a server; and what a sender does when a queue refuses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from batonq.client.models import Outgoing, Sent
from batonq.client.retry import Retries
from batonq.errors import BatonError, InvalidInput, OverLimit, QueueDoesNotExist, Unavailable
from batonq.pipeline.spark.sink import Settings
from batonq.pipeline.spark.sink_rows import COLUMNS, Row, check_columns, rows
from batonq.pipeline.spark.sink_sending import BATCH_MAX, ROW_BITS, Counts, Sender, numbered


def bodies(values: list[Any], kind: pa.DataType | None = None) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["body"])
    return [row.message.body for part in rows(batch) for row in part if isinstance(row.message, Outgoing)]


@pytest.mark.parametrize(
    ("given", "kind", "becomes"),
    [
        ("text", pa.string(), "text"),
        (b"\x00\xff", pa.binary(), b"\x00\xff"),
        (7, pa.int64(), 7),
        (True, pa.bool_(), True),
        ({"a": 1, "b": None}, None, {"a": 1, "b": None}),
        ({"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}, None, {"at": "2026-01-02T03:04:05Z"}),
        ({"day": date(2026, 1, 2)}, None, {"day": "2026-01-02"}),
        ({"raw": b"\x01\x02"}, None, {"raw": "AQI="}),
        ([("k", b"\x01")], pa.map_(pa.string(), pa.binary()), {"k": "AQ=="}),
        ([], pa.map_(pa.string(), pa.int64()), {}),
        ([{"a": [1, None]}], None, [{"a": [1, None]}]),
        ({"x": float("nan")}, None, {"x": "nan"}),
        (Decimal("12.50"), pa.decimal128(10, 2), 12.5),
        (Decimal("12.00"), pa.decimal128(10, 2), 12),
        (Decimal("0.1234567890123456789"), pa.decimal128(38, 19), "0.1234567890123456789"),
    ],
)
def test_a_body_is_text_bytes_or_json(given: Any, kind: pa.DataType | None, becomes: Any) -> None:
    assert bodies([given], kind) == [becomes]


def test_all_that_a_message_has() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "value": b'{"a": 1}',
                "content": "json",
                "queue": "q",
                "group": "g",
                "dedup_key": "k",
                "priority": 3,
                "delay_seconds": Decimal("1.5"),
                "ttl_seconds": 60,
                "max_receives": 2,
                "attributes": [("kind", "web"), ("none", None)],
                "trace": "00-" + "1" * 32 + "-" + "2" * 16 + "-01 vendor=1",
                "producer": "me",
            }
        ],
        pa.schema(
            [
                ("value", pa.binary()),
                *((name, pa.string()) for name in ("content", "queue", "group", "dedup_key", "trace", "producer")),
                *((name, pa.int32()) for name in ("priority", "ttl_seconds", "max_receives")),
                ("delay_seconds", pa.decimal128(5, 2)),
                ("attributes", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    ((row,),) = rows(batch)
    assert row == Row(
        "q",
        "me",
        Outgoing(
            {"a": 1}, "k", "g", 1.5, 60.0, 3, {"kind": "web"}, 2, "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "vendor=1"
        ),
    )


@pytest.mark.parametrize(
    ("body", "content", "reason"),
    [
        (None, "text", "no body"),
        ("{", "json", "is not valid json"),
        ("123456789012345678901234567890", "json", "cannot be sent"),
        ("x", "xml", "text, json or bytes"),
    ],
)
def test_a_row_that_is_no_message_says_why(body: str | None, content: str, reason: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [body, "fine"], "content": [content, "text"]})
    ((bad, good),) = rows(batch)
    assert isinstance(bad.message, InvalidInput) and reason in bad.message.message
    assert good.message == Outgoing("fine")


def test_a_batch_of_large_bodies_is_taken_in_parts() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["x" * (1 << 20)] * 100})
    parts = [len(part) for part in rows(batch)]
    assert sum(parts) == 100
    assert max(parts) <= 32


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


TEXT = StringType()


@pytest.mark.parametrize(
    ("columns", "queue", "reason"),
    [
        ({"id": LongType()}, "q", "one column body"),
        ({"body": TEXT, "value": TEXT}, "q", "one column body"),
        ({"body": TEXT}, "", "The queue is missing"),
        ({"body": TEXT, "colour": TEXT}, "q", "The column colour is not a field"),
        ({"body": TEXT, "priority": DoubleType()}, "q", "The column priority is double"),
        ({"body": TEXT, "attributes": ArrayType(TEXT)}, "q", "The column attributes is array<string>"),
    ],
)
def test_a_table_that_cannot_be_messages(columns: dict[str, DataType], queue: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check_columns(schema(**columns), queue=queue)


def test_a_table_that_can() -> None:
    check_columns(schema(value=schema(a=LongType()), queue=TEXT, delay_seconds=DecimalType(5, 2)), queue="")
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_rise_with_batches_and_never_meet() -> None:
    last = (1 << ROW_BITS) - 1
    assert numbered("p", 0, 0) == ("p", 1, last + 1)
    assert numbered("p", 0, last) == ("p", last + 1, 1)
    assert numbered("p", 0, last + 1) == ("p.1", 1, last + 1)
    assert numbered("p", 1, 0)[1] == numbered("p", 0, last)[1] + 1
    assert numbered("p", BATCH_MAX, last)[1] < 1 << 53
    with pytest.raises(InvalidInput, match="new checkpoint"):
        numbered("p", BATCH_MAX + 1, 0)


class Server:
    """Stands for a Baton with one queue: takes each number once, and refuses as it is told."""

    url = "http://stub"

    def __init__(self, *refusals: tuple[int, BatonError]) -> None:
        self.taken: list[tuple[str, int, Any]] = []
        self.requests: list[int] = []
        self._refusals = list(refusals)  # of the next requests: the place of the first refused one, and why

    def queue(self, name: str) -> Server:
        if name == "gone":
            raise QueueDoesNotExist
        return self

    def send_many(self, messages: Sequence[Outgoing], producer: tuple[str, int]) -> list[Sent | BatonError]:
        self.requests.append(len(messages))
        stop, problem = self._refusals.pop(0) if self._refusals else (len(messages), None)
        results: list[Sent | BatonError] = []
        last = max((number for name, number, _ in self.taken if name == producer[0]), default=0)
        for at, message in enumerate(messages):
            if at >= stop and problem is not None:
                results.append(problem)
            elif producer[1] + at <= last:
                results.append(Sent("", 0, duplicate=True))
            else:
                self.taken.append((producer[0], producer[1] + at, message.body))
                results.append(Sent("id", 1))
        return results


def sender(server: Server, **more: Any) -> Sender:
    return Sender(server, "p", queue="q", **more)  # type: ignore[arg-type]


def some(*values: Any) -> list[Row]:
    return [Row("", "", Outgoing(value)) for value in values]


def test_what_is_refused_for_now_is_sent_again_with_its_number() -> None:
    server = Server((2, OverLimit("full")), (0, OverLimit("full")))
    pauses: list[float] = []
    one = sender(server, sleep=pauses.append)
    one.send(some(*"abcd"))
    assert server.taken == [("p", 1, "a"), ("p", 2, "b"), ("p", 3, "c"), ("p", 4, "d")]
    assert server.requests == [4, 2, 2] and len(pauses) == 2
    assert one.counts == Counts(sent=4)


def test_patience_ends() -> None:
    server = Server(*[(0, OverLimit("The queue is full."))] * 10)
    with pytest.raises(OverLimit, match="The queue is full"):
        sender(server, sleep=lambda _: None, retries=Retries(attempts=3)).send(some("a"))
    assert server.requests == [1, 1, 1]


def test_the_same_rows_again_are_duplicates_though_they_come_in_other_batches() -> None:
    server = Server()
    sender(server).send(some(*range(5)))
    again = sender(server)
    again.send(some(0, 1))
    again.send(some(2, 3, 4, 5))
    assert again.counts == Counts(sent=1, duplicates=5)
    assert [body for _, _, body in server.taken] == [0, 1, 2, 3, 4, 5]


def test_refused_rows_are_counted_and_their_first_reasons_kept() -> None:
    server = Server((1, InvalidInput("too odd")))
    one = sender(server)
    one.send([*some("a", "b"), Row("", "", InvalidInput("null"))])
    one.send([Row("", "", Outgoing("c"))])
    assert (one.counts.sent, one.counts.refused) == (2, 2)
    assert one.counts.problem == "2 of 4 rows were refused: null / too odd"


def test_a_missing_queue_is_named() -> None:
    with pytest.raises(QueueDoesNotExist, match="Queue gone does not exist at http://stub"):
        sender(Server()).send([Row("gone", "", Outgoing("a"))])
    nowhere = Sender(Server(), "p")  # type: ignore[arg-type]
    nowhere.send(some("a"))
    assert nowhere.counts.refused == 1 and "column queue is null" in nowhere.counts.problem


def test_a_rate_holds() -> None:
    now = [100.0]
    times: list[tuple[float, int]] = []

    class Timed(Server):
        def send_many(self, messages: Sequence[Outgoing], producer: tuple[str, int]) -> list[Sent | BatonError]:
            times.append((now[0], len(messages)))
            return super().send_many(messages, producer)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    sender(Timed(), rate=50.0, clock=lambda: now[0], sleep=sleep).send(some(*range(200)))
    assert times == [(100.0, 50), (101.0, 50), (102.0, 50), (103.0, 50)]


# --- options --------------------------------------------------------------------------------------


def test_a_rate_is_shared_by_the_tasks() -> None:
    given = {"url": "http://127.0.0.1:1", "queue": "q", "rate": "100"}
    assert Settings.of({**given, "tasks": "4"}).rate == 25.0
    with pytest.raises(InvalidInput, match="needs the option tasks"):
        Settings.of(given)


def test_a_secret_is_not_shown_and_a_node_that_is_not_there_is_named() -> None:
    given = {"url": "http://127.0.0.1:1", "queue": "q", "accessKey": "a", "secretKey": "hidden", "patienceSeconds": "0"}
    settings = Settings.of(given)
    assert "hidden" not in repr(settings)
    with pytest.raises(Unavailable, match="Cannot connect to 127"):
        settings.check(schema(body=TEXT), overwrite=False)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"refused": "maybe"}, "refused must be fail or drop"),
        ({"rate": "quick"}, "The option rate must be a number"),
        ({"url": "s3://bucket"}, "This needs a node"),
    ],
)
def test_options_that_are_wrong(wrong: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Settings.of({"url": "http://127.0.0.1:1", "queue": "q", **wrong})
