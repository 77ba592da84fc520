"""Dead letters: the tables equal a plain fold over the same log; bodies come from history, shapes from bodies."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from batonq.core.body_shape import body_shape
from batonq.core.payload import Content
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.reading.history import open_history
from batonq.pipeline.tables import bodies, dead_letter_messages, dead_letters, shapes
from batonq.pipeline.tables.lifecycle import lifecycle, with_source
from batonq.pipeline.tables.queues import queues
from tests.pipeline import folds
from tests.pipeline.frames import Row, assert_rows, events_frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ("source", "shard", "sequence")
FATES = {
    **dict.fromkeys(("waiting", "delayed", "in_flight", "dead"), "waiting"),
    **dict.fromkeys(("redriven", "moved", "owed"), "redriven"),
    **dict.fromkeys(("acked", "late_acked", "purged", "queue_deleted", "deleted"), "deleted"),
    "expired": "expired",
    "dead_lettered": "dead_lettered",
}


def with_bodies(directory: str) -> list[Row]:
    history = open_history(directory)
    return [
        event
        for shard in history.shards()
        for event in plain_events(history.frames(shard.shard, shard.first, shard.next), bodies=True)
    ]


def plain_shape(body: bytes, content: str) -> str:
    return body_shape(body, Content[content.upper()])


BODIES = [
    (b'{"order":1,"lines":[1,2.5],"x":null,"b":true,"inner":{"z":"s","a":[{"k":1},{"j":"x"}]}}', "json"),
    (b'{"z":1,"a":{"b":{"c":{"d":{"e":1}},"f":[[[[1]]]],"g":{}},"h":2}}', "json"),
    (b'[[1,"a"],["b"]]', "json"),
    (b'[{"a":null},{"a":1},null]', "json"),
    (b"[]", "json"),
    (b"{}", "json"),
    (b"12.5", "json"),
    (b"null", "json"),
    (b'"plain"', "json"),
    (b' {"as": "text"}', "text"),
    (b"{not json 17", "text"),
    (b"12", "text"),
    (b"order 17 of 3f2504e0-4f89-11d3-9a0c-0305e82c3301 at 12:30,5\n\tdeadbeef01 failed", "text"),
    ("größer als 5 €".encode(), "text"),
    (b"x" * 3000, "text"),
    (b'{"' + b"k" * 500 + b'":1}', "json"),
    (b"\x00\xff", "bytes"),
    (b"", "text"),
]


def test_bodies_of_one_kind_have_one_shape(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    frame = spark.createDataFrame([*BODIES, (None, None)], "body binary, content string")
    frame = frame.select(shapes.shape(f.col("body"), f.col("content")).alias("shape"))
    found = [row["shape"] for row in frame.collect()]
    assert found[-1] is None
    assert found[:-1] == [plain_shape(body, content) for body, content in BODIES]
    assert found[0] == (
        "object<b: boolean, inner: object<a: array<object<j: string, k: number>>, z: string>, lines: array<number>, "
        "order: number, x: null>"
    )
    assert found[12] == "order <n> of <id> at <n> <hex> failed"


# --- the fold ---------------------------------------------------------------------------------------


def plain_deaths(events: list[Row]) -> list[Row]:
    """From what was owed, and from returns for ever; lives and lines are those of the lifecycle's fold."""
    lives = {(row["shard"], row["sequence"]): row for row in folds.Fold(events).lifecycle()}
    by_id = {row["message_id"]: row for row in lives.values()}
    owed: dict[tuple[int, int], Row] = {}
    for_ever: dict[tuple[int, int], Row] = {}
    payloads: dict[str, tuple[bytes, str]] = {}
    for event in events:
        key = event["shard"], event["sequence"]
        if event["event"] == "owed":
            owed[key] = event
        if event["event"] == "returned" and event["visible_at"] is None:
            for_ever.setdefault(key, event)
        if event.get("body") is not None:
            payloads[event["message_id"]] = event["body"], event["content"]
    rows = []
    for key, event in owed.items():
        died = lives[key]
        if died["outcome"] == "dead_lettered" and died["next_id"] is not None:
            past = json.loads(event["lineage"])
            rows.append(
                {
                    **of_letter(by_id[died["next_id"]], payloads, by_id),
                    "died_id": died["message_id"],
                    "queue": died["queue"],
                    "queue_name": died["queue_name"],
                    "how": past["moved"],
                    "error_class": past.get("error_class"),
                    "error_text": past.get("reason"),
                    "attempts": event["receive_count"],
                    "first_failed_at": past["first_failure_ms"] * 1000 if "first_failure_ms" in past else None,
                    "died_at": event["time"],
                }
            )
    for key, event in for_ever.items():
        life = lives[key]
        rows.append(
            {
                **of_letter(life, payloads, by_id),
                "died_id": life["message_id"],
                "queue": life["queue"],
                "queue_name": life["queue_name"],
                "how": "in_place",
                "error_class": life["last_error_class"],
                "error_text": life["last_error_text"],
                "attempts": event["receive_count"],
                "first_failed_at": None,
                "died_at": event["time"],
            }
        )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for row in rows:
        row["date"] = (epoch + timedelta(microseconds=row["died_at"])).date()
    return rows


def of_letter(life: Row, payloads: dict[str, tuple[bytes, str]], lives: dict[str, Row]) -> Row:
    at = life
    while at["message_id"] not in payloads:
        at = lives[at["previous_id"]]
    body, content = payloads[at["message_id"]]
    same = ("source", "shard", "sequence", "message_id", "first_id", "tenant", "body_bytes", "sent_at", "ended_at")
    return {
        **{name: life[name] for name in (*same, "expires_at")},
        "dead_letter_queue": life["queue"],
        "dead_letter_queue_name": life["queue_name"],
        "content": content,
        "shape": plain_shape(body, content),
        "body": body.decode()[: shapes.SHOWN_MAX] + ("…" if len(body.decode()) > shapes.SHOWN_MAX else ""),
        "fate": FATES[life["outcome"]],
    }


def plain_groups(deaths: list[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in deaths:
        groups[tuple(row[name] for name in dead_letters.GROUP)].append(row)
    found = []
    for key, rows in groups.items():
        newest = sorted(rows, key=lambda row: (row["died_at"], row["message_id"]))
        shown = sorted(newest, key=lambda row: row["fate"] == "waiting")[::-1][: dead_letters.EXAMPLES_MAX]
        found.append(
            {
                **dict(zip(dead_letters.GROUP, key, strict=True)),
                "messages": len(rows),
                **{
                    fate: sum(row["fate"] == fate for row in rows)
                    for fate in ("waiting", "redriven", "deleted", "expired")
                },
                "first_seen": newest[0]["died_at"],
                "last_seen": newest[-1]["died_at"],
                "last_error_text": newest[-1]["error_text"],
                "examples": [row["message_id"] for row in shown],
                "example_bodies": [row["body"] for row in shown],
            }
        )
    return found


def made(spark: SparkSession, directory: str, events: list[Row]) -> DataFrame:
    """dead_letter_messages; that bodies come from the lake as from history is seen on the way."""
    frame = events_frame(spark, [{name: value for name, value in row.items() if name != "body"} for row in events])
    near = dead_letter_messages.of_moved(frame).localCheckpoint()
    lives = lifecycle(near, queues(near)).localCheckpoint()
    found = dead_letter_messages.dead_letter_messages(near, lives).localCheckpoint()
    whole = bodies.with_bodies(spark, {"url": directory}, found, near, lives).localCheckpoint()
    kept = with_source(spark.read.format("baton").options(url=directory, bodies="true").load())
    again = bodies.with_bodies(spark, {"url": "nowhere"}, found, kept, lives)
    compared = [frame.select(*KEY, "content", "body") for frame in (whole, again)]
    assert compared[0].exceptAll(compared[1]).isEmpty()
    return dead_letter_messages.with_shapes(whole).localCheckpoint()


def test_a_busy_day(spark: SparkSession, busy_logs: str) -> None:
    events = with_bodies(busy_logs)
    messages = made(spark, busy_logs, events)
    deaths = plain_deaths(events)
    assert_rows(rows_of(messages, dead_letter_messages.TABLE), deaths, KEY)
    assert {row["how"] for row in deaths} == {"dead_letter", "expiry", "in_place"}
    assert {row["fate"] for row in deaths} >= {"waiting", "redriven", "deleted"}
    assert {row["error_class"] for row in deaths} >= {"Timeout", "Poison"}
    groups = dead_letters.dead_letters(messages)
    assert_rows(rows_of(groups, dead_letters.TABLE), plain_groups(deaths), dead_letters.GROUP)
    both = dead_letters.with_groups(messages, groups)
    assert both.count() == len(deaths), "each death is in one group, also one without a class"
