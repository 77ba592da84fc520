"""message_lifecycle: equal, row for row, to a plain fold over the same log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from batonq.pipeline.tables.lifecycle import TABLE, lifecycle
from tests.pipeline import busy, folds
from tests.pipeline.frames import assert_rows, events_frame, queues_frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = ("source", "shard", "sequence")


def check(spark: SparkSession, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table of these events, once it was seen to be the fold's."""
    made = lifecycle(events_frame(spark, events), queues_frame(spark, events))
    found = rows_of(made, TABLE)
    assert_rows(found, folds.lifecycle(events), KEY)
    return found


def test_a_busy_day(spark: SparkSession, busy_logs: str) -> None:
    rows = check(spark, folds.events_of(busy_logs))
    outcomes = {row["outcome"] for row in rows}
    assert outcomes >= {"acked", "expired", "dead_lettered", "redriven", "purged", "waiting"}
    assert max(row["line_deaths"] for row in rows) > 1
