"""Spark's filters on queue, event and time, converted to Baton's, which are applied before any text is decoded.

A filter is taken over exactly, or left to Spark: filters on other columns, and filters that cannot be combined with
those already taken over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as spark

from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.schema import EVENTS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALWAYS = frozenset(("event", "time"))  # columns that are never null


def push(filters: Iterable[spark.Filter], wanted: Filter, *, names: bool) -> tuple[Filter, list[spark.Filter]]:
    """(`wanted` with the added filters, the filters that are left to Spark). Queue names need `names`."""
    left = []
    for one in filters:
        taken = _taken(one, wanted, names)
        if taken is None:
            left.append(one)
        else:
            wanted = taken
    return wanted, left


def _taken(one: spark.Filter, wanted: Filter, names: bool) -> Filter | None:
    column = ".".join(getattr(one, "attribute", ()))
    if isinstance(one, spark.IsNotNull):
        return wanted if column in _ALWAYS else None
    if column == "time":
        return _time(one, wanted)
    values = _values(one)
    if values is None:
        return None
    if column == "event":
        events = {value for value in values if value in EVENTS.values()}
        return replace(wanted, events=frozenset(events if wanted.events is None else events & wanted.events))
    if wanted.queues is None and (column == "queue" or (column == "queue_name" and names)):
        return replace(wanted, queues=frozenset(values))
    return None


def _values(one: spark.Filter) -> tuple[Any, ...] | None:
    """The values that the column may be equal to."""
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return None if one.value is None else (one.value,)
    if isinstance(one, spark.In):
        return tuple(value for value in one.value if value is not None)
    return None


def _time(one: spark.Filter, wanted: Filter) -> Filter | None:
    """Events have whole milliseconds: at or after t means at or after the next one, after
    t means after the last one.
    """
    value = getattr(one, "value", None)
    if not isinstance(value, datetime):
        return None
    time = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    at_or_after, after = -(-time // 1000), time // 1000 + 1
    if isinstance(one, spark.GreaterThanOrEqual):
        return _since(wanted, at_or_after)
    if isinstance(one, spark.GreaterThan):
        return _since(wanted, after)
    if isinstance(one, spark.LessThan):
        return _until(wanted, at_or_after)
    if isinstance(one, spark.LessThanOrEqual):
        return _until(wanted, after)
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return _until(_since(wanted, at_or_after), after)
    return None


def _since(wanted: Filter, time_ms: int) -> Filter:
    return replace(wanted, since_ms=time_ms if wanted.since_ms is None else max(wanted.since_ms, time_ms))


def _until(wanted: Filter, time_ms: int) -> Filter:
    return replace(wanted, until_ms=time_ms if wanted.until_ms is None else min(wanted.until_ms, time_ms))
