"""The tables of messages, minutes and usage: equal, row for row and value for value, to a plain fold of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batonq.pipeline.tables import lifecycle, minutes, usage
from tests.pipeline import folds
from tests.pipeline.frames import assert_rows, events_frame, queues_frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
KEY = ("source", "shard", "sequence")


def check(spark: SparkSession, log: Rows) -> Rows:
    """The three tables of these events, once they were seen to be the fold's; returns message_lifecycle."""
    events, queues, fold = events_frame(spark, log), queues_frame(spark, log), folds.Fold(log)
    messages = lifecycle.lifecycle(events, queues).localCheckpoint()
    found = rows_of(messages, lifecycle.TABLE)
    assert_rows(found, list(fold.lifecycle()), KEY)
    by_minute = rows_of(minutes.queue_minute(events, messages, queues), minutes.TABLE)
    assert_rows(by_minute, list(fold.minutes()), ("source", "queue", "shard", "minute"))
    used = rows_of(usage.tenant_usage(messages, events, queues), usage.TABLE)
    assert_rows(used, list(fold.usage()), ("source", "queue", "date"))
    return found


def test_a_busy_day(spark: SparkSession, busy_logs: str) -> None:
    rows = check(spark, folds.events_of(busy_logs))
    outcomes = {row["outcome"] for row in rows}
    assert outcomes >= {"acked", "expired", "dead_lettered", "redriven", "purged", "waiting"}
    assert max(row["line_deaths"] for row in rows) > 1
