"""Positions and parts of history, options and filters: plain functions, without a session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from batonq.errors import InvalidInput, LogGap, NotFound
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.reading.history import Range
from batonq.pipeline.spark import history_options, offsets
from batonq.pipeline.spark.offsets import Part
from batonq.pipeline.spark.pushdown import push

RANGES = [Range(0, 1, 101), Range(1, 40, 60), Range(7, 5, 5)]


def no_marks(shard: int, start: int, stop: int) -> list[int]:
    return []


# --- positions


def test_a_stream_begins_where_it_is_told() -> None:
    assert offsets.initial(RANGES, "earliest") == {0: 1, 1: 40, 7: 5}
    assert offsets.initial(RANGES, "latest") == {0: 101, 1: 60, 7: 5}
    assert offsets.initial(RANGES, '{"1": 50}') == {0: 1, 1: 50, 7: 5}
    assert offsets.encode({10: 3, 2: 4}) == {"2": 4, "10": 3}


@pytest.mark.parametrize("start", ["first", "[1]", "7", '{"0": 0}', '{"x": 1}', '{"0": null}', '{"-1": 4}'])
def test_a_start_that_is_none(start: str) -> None:
    with pytest.raises(InvalidInput, match=r"earliest|offset of history"):
        offsets.initial(RANGES, start)


def test_a_batch_ends_where_it_is_told() -> None:
    assert offsets.final(RANGES, "latest") == {0: 101, 1: 60, 7: 5}
    assert offsets.final(RANGES, '{"0": 50, "1": 900, "9": 3}') == {0: 50, 1: 60, 7: 5}
    for wrong in ("earliest", "[1]", '{"0": 0}'):
        with pytest.raises(InvalidInput, match=r"end must be latest|offset of history"):
            offsets.final(RANGES, wrong)


def test_a_batch_takes_its_share_of_every_shard() -> None:
    start = {0: 1, 1: 40, 7: 5}
    assert offsets.latest(start, RANGES, None, "here") == {0: 101, 1: 60, 7: 5}
    assert offsets.latest(start, RANGES, 50, "here") == {0: 31, 1: 60, 7: 5}  # what one leaves, the other gets
    assert offsets.latest(start, RANGES, 1, "here") in ({0: 2, 1: 40, 7: 5}, {0: 1, 1: 41, 7: 5})


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 50), st.integers(0, 90)), min_size=1),
    st.integers(1, 60),
)
def test_batches_come_to_the_end_and_leave_nothing_out(spans: dict[int, tuple[int, int]], limit: int) -> None:
    ranges = [Range(shard, first, first + count) for shard, (first, count) in spans.items()]
    position = offsets.initial(ranges, "earliest")
    read: dict[int, list[int]] = {shard: [] for shard in spans}
    while (end := offsets.latest(position, ranges, limit, "here")) != position:
        parts = offsets.between(position, end)
        assert 0 < sum(part.stop - part.start for part in parts) <= limit
        for part in offsets.split(parts, no_marks, 7):
            assert part.stop - part.start <= 7
            read[part.shard] += range(part.start, part.stop)
        position = end
    assert read == {span.shard: list(range(span.first, span.next)) for span in ranges}


def test_a_shard_that_comes_later_begins_in_a_step_of_its_own() -> None:
    """Its first frame may change before the batch is read again, so it must be in an offset."""
    end = offsets.latest({0: 101}, RANGES, 10, "here")
    assert end == {0: 101, 1: 40, 7: 5}
    assert offsets.between({0: 101}, end) == []
    assert offsets.between(end, offsets.latest(end, RANGES, 10, "here")) == [Part(1, 40, 50)]


def test_what_was_dropped_before_it_was_read_is_a_gap() -> None:
    with pytest.raises(LogGap, match="Frames 30 to 39 of shard 1 are no longer in file:///here"):
        offsets.latest({0: 1, 1: 30}, RANGES, None, "file:///here")


def test_what_was_dropped_may_be_passed_over() -> None:
    """The offset moves on to the first retained frame, also when the limit leaves nothing to read of the shard."""
    assert offsets.latest({0: 1, 1: 30}, RANGES, None, "here", lossy=True) == {0: 101, 1: 60, 7: 5}
    assert offsets.latest({0: 101, 1: 30}, RANGES[:2], 5, "here", lossy=True) == {0: 101, 1: 45}
    assert offsets.retained(Part(1, 30, 45), 40) == (Part(1, 40, 45), Part(1, 30, 40))
    assert offsets.retained(Part(1, 30, 35), 40) == (Part(1, 35, 35), Part(1, 30, 35))
    assert offsets.retained(Part(1, 50, 60), 40) == (Part(1, 50, 60), Part(1, 50, 50))
    assert offsets.loss(Part(1, 30, 40), "here", 40) == (
        "Data loss: 10 frames of shard 1 (30 to 39) were deleted from here before being read, and are skipped, because "
        "failOnDataLoss is false. Reading continues at frame 40."
    )


def test_shards_that_are_not_there() -> None:
    with pytest.raises(NotFound, match="Shard 3, with frame 9 as the next one, is no longer in here"):
        offsets.latest({3: 9}, RANGES, None, "here")
    with pytest.raises(NotFound, match="no shard 3 in here; the shards are 0, 1, 7"):
        offsets.chosen(RANGES, frozenset((1, 3)), "here")
    assert offsets.chosen(reversed(RANGES), frozenset((1, 0)), "here") == RANGES[:2]


def test_a_position_past_the_end_waits_for_it() -> None:
    """An archive is behind the node that was read before."""
    assert offsets.latest({0: 500}, RANGES[:1], 10, "here") == {0: 500}


# --- parts


def test_parts_are_cut_at_marks_and_small_ones_put_together() -> None:
    def marks(shard: int, start: int, stop: int) -> list[int]:
        return [mark for mark in (200, 900, 1_500, 4_000, 4_100) if start < mark < stop]

    assert offsets.split([Part(3, 1, 5_000)], marks, None) == [
        Part(3, 1, 1_500),
        Part(3, 1_500, 4_000),
        Part(3, 4_000, 5_000),
    ]
    assert offsets.split([Part(3, 1, 5_000)], marks, 10**9) == [Part(3, 1, 5_000)]
    assert offsets.split([Part(3, 3_900, 4_500)], marks, 400) == [Part(3, 3_900, 4_300), Part(3, 4_300, 4_500)]


# --- options


def test_options_as_they_are_given() -> None:
    options = history_options.parse(
        {
            "path": "/data",
            "bodies": "TRUE",
            "QUEUES": "orders, 7",
            "events": "sent",
            "since": "2026-01-01T01:00:00+01:00",
            "until": "2026-01-02",
            "shards": "0,1",
            "maxframesperbatch": "5",
            "columns": "event, frame,event",
        }
    )
    assert options.url == "/data" and options.bodies and options.names
    assert options.columns == ("event", "frame")
    assert options.shards == frozenset((0, 1)) and options.frames_a_batch == 5 and options.frames_a_part is None
    day_ms = 24 * 3_600_000
    since_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert options.wanted == Filter(frozenset(("orders", 7)), frozenset(("sent",)), since_ms, since_ms + day_ms)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option url is missing"),
        ({"url": "/data", "queue": "orders"}, "There is no option 'queue'; the options are read, url"),
        ({"url": "/data", "bodies": "yes"}, "bodies must be true or false, not 'yes'"),
        ({"url": "/data", "events": "sent,flown"}, "There is no event 'flown'; the events are"),
        ({"url": "/data", "since": "yesterday"}, "since must be a time such as"),
        ({"url": "/data", "shards": "0,one"}, "shards must be numbers separated by commas, not 'one'"),
        ({"url": "/data", "maxFramesPerBatch": "0"}, "maxFramesPerBatch must be an integer from 1"),
        ({"url": "/data", "framesPerPartition": "few"}, "framesPerPartition must be an integer from 1"),
        ({"url": "/data", "names": "false", "queues": "orders"}, "names cannot be used with names=false"),
        ({"url": "/data", "columns": "event,fame"}, "columns must be columns of the events table, .* not 'event,fame'"),
        ({"url": "/data", "failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
        ({"url": "/data", "accessKey": "AK"}, "accessKey and secretKey must be set together"),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        history_options.parse(given)


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(history_options.parse({"url": "x", "accessKey": "AK", "secretKey": "hush"}))


# --- filters that are pushed down


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def pushed(*filters: spark.Filter, wanted: Filter | None = None, names: bool = True) -> tuple[Filter, int]:
    found, left = push(filters, wanted or Filter(), names=names)
    return found, len(left)


def test_queues_and_events_are_taken() -> None:
    assert pushed(spark.EqualTo(("queue_name",), "orders")) == (Filter(queues=frozenset(("orders",))), 0)
    assert pushed(spark.In(("queue",), (3, 4))) == (Filter(queues=frozenset((3, 4))), 0)
    both = (spark.In(("event",), ("sent", "leased", "no such")), spark.EqualTo(("event",), "leased"))
    assert pushed(*both) == (Filter(events=frozenset(("leased",))), 0)
    assert pushed(spark.EqualTo(("event",), "no such")) == (Filter(events=frozenset()), 0)


@pytest.mark.parametrize(
    ("filter", "since", "until"),
    [
        (spark.GreaterThanOrEqual, 1_001, None),
        (spark.GreaterThan, 1_001, None),
        (spark.LessThan, None, 1_001),
        (spark.LessThanOrEqual, None, 1_001),
        (spark.EqualTo, 1_001, 1_001),  # no event has a part of a millisecond
    ],
)
def test_times_between_two_milliseconds(filter: Any, since: int | None, until: int | None) -> None:
    assert pushed(filter(("time",), at("1970-01-01T00:00:01.000500"))) == (Filter(since_ms=since, until_ms=until), 0)


@pytest.mark.parametrize(
    ("filter", "since", "until"),
    [
        (spark.GreaterThanOrEqual, 1_000, None),
        (spark.GreaterThan, 1_001, None),
        (spark.LessThan, None, 1_000),
        (spark.LessThanOrEqual, None, 1_001),
        (spark.EqualTo, 1_000, 1_001),
    ],
)
def test_times_on_a_millisecond(filter: Any, since: int | None, until: int | None) -> None:
    zone = timezone(timedelta(hours=2))
    time = at("1970-01-01T00:00:01").astimezone(zone)
    assert pushed(filter(("time",), time)) == (Filter(since_ms=since, until_ms=until), 0)


def test_the_narrower_time_counts() -> None:
    filters = (
        spark.GreaterThan(("time",), at("1970-01-01T00:00:02")),
        spark.GreaterThan(("time",), at("1970-01-01T00:00:01")),
        spark.LessThan(("time",), at("1970-01-01T00:00:09")),
    )
    assert pushed(*filters, wanted=Filter(until_ms=5_000)) == (Filter(since_ms=2_001, until_ms=5_000), 0)


def test_what_is_left_to_spark() -> None:
    left = (
        spark.EqualTo(("sequence",), 4),
        spark.StringStartsWith(("queue_name",), "or"),
        spark.Not(spark.EqualTo(("event",), "sent")),
        spark.IsNotNull(("queue_name",)),
        spark.GreaterThan(("queue",), 4),
        spark.IsNull(("queue",)),
    )
    assert pushed(*left) == (Filter(), len(left))
    assert pushed(spark.IsNotNull(("time",)), spark.IsNotNull(("event",))) == (Filter(), 0)
    assert pushed(spark.EqualTo(("queue_name",), "orders"), names=False) == (Filter(), 1)
    chosen = Filter(queues=frozenset(("mail",)))
    assert pushed(spark.EqualTo(("queue_name",), "orders"), wanted=chosen) == (chosen, 1)
