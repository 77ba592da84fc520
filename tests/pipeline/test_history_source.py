"""format("baton"), read=history: the same rows as the plain loop, wherever history lies, as a batch and as a stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batonq.errors import InvalidInput
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.names import Names
from batonq.pipeline.events.plain import events
from batonq.pipeline.reading.history import open_history
from batonq.pipeline.spark import history_source
from batonq.pipeline.spark.history_options import HistoryOptions
from batonq.pipeline.spark.history_source import HistoryPartition, HistoryReader, HistoryStreamReader
from batonq.pipeline.spark.history_source import schema as history_schema
from batonq.pipeline.spark.lag import history_lag
from batonq.pipeline.spark.offsets import Part
from tests.cluster.processes import wait_until
from tests.pipeline.history_support import Stream, archive, batch, environment, expected, ordered
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def archived(busy_logs: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"file://{tmp_path_factory.mktemp('archived')}"
    archive(busy_logs, url)
    return url


@pytest.fixture(scope="module")
def node(busy_logs: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server that went on from the busy day's logs."""
    directory = tmp_path_factory.mktemp("served") / "data"
    shutil.copytree(busy_logs, directory)
    with TestServer(str(directory), shards=2) as server:
        yield server


def test_a_batch_with_bodies(spark: SparkSession, busy_logs: str) -> None:
    found = batch(spark, busy_logs, bodies="true").toArrow()
    assert ordered(found, bodies=True).equals(expected(busy_logs, bodies=True))


def test_a_batch_in_many_parts(spark: SparkSession, busy_logs: str) -> None:
    """Each part knows the names that were told before it."""
    frame = batch(spark, busy_logs, framesPerPartition="40")
    assert frame.rdd.getNumPartitions() > 4
    assert ordered(frame.toArrow()).equals(expected(busy_logs))


def test_a_batch_from_an_archive(spark: SparkSession, busy_logs: str, archived: str) -> None:
    found = batch(spark, archived, framesPerPartition="50").toArrow()
    assert ordered(found).equals(expected(busy_logs))


def test_from_an_archive_in_an_object_store(
    spark: SparkSession, busy_logs: str, s3: str, in_s3: None, tmp_path: Path
) -> None:
    archive(busy_logs, "s3://history/busy")
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
    with environment(spark, {**keys, "AWS_ENDPOINT_URL_S3": s3}):
        assert ordered(batch(spark, "s3://history/busy").toArrow()).equals(expected(busy_logs))
        stream = Stream(spark, tmp_path, url="s3://history/busy", maxFramesPerBatch="400")
        assert stream.run() > 1
        assert stream.rows().equals(expected(busy_logs))


def test_a_batch_from_a_node(spark: SparkSession, node: TestServer) -> None:
    found = ordered(batch(spark, node.url, framesPerPartition="200").toArrow())
    assert found.equals(_until(expected(node.url), found))


def test_a_shard_of_a_node_in_many_parts(node: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of queues that were deleted since are read from the batch's own frames, once per process of the tasks."""
    node.advance(120)
    wait_until(
        lambda: "spare-6" not in {one.name for one in node.broker.history.queues(1)}, "it forgets a deleted queue"
    )
    options = {"url": node.url, "framesPerPartition": "60"}
    reader = HistoryReader(options, history_schema(options))
    parts = reader.partitions()
    assert len(parts) > 6
    again: list[int] = []

    def counted(given: HistoryOptions, shard: int, start: int, stop: int) -> Names:
        before = dict(history_source._told)
        found = told_between(given, shard, start, stop)
        again.append(stop - before.get((node.url, shard, start), (start, {}))[0])
        return found

    told_between = history_source._told_between
    monkeypatch.setattr(history_source, "_told_between", counted)
    monkeypatch.setattr(history_source, "_told", {})
    found = ordered(pa.Table.from_batches([one for part in parts for one in reader.read(part)]))
    assert found.equals(_until(expected(node.url), found))
    frames = sum(span.next - span.first for span in reader.ranges())
    assert 0 < sum(again) < frames


def test_a_stream_from_a_node(spark: SparkSession, node: TestServer, tmp_path: Path) -> None:
    """In the middle of its log a node knows the names of queues that there still are."""
    stream = Stream(spark, tmp_path, url=node.url, maxFramesPerBatch="400")
    assert stream.run() > 1
    found = stream.rows()
    rows = _until(expected(node.url), found)
    closed = {queue for queue in _queues(rows) if "spare" in queue}
    assert closed
    assert _without(found, closed).equals(_without(rows, closed))


def _until(table: pa.Table, found: pa.Table) -> pa.Table:
    """As far as was found: a node goes on, leases of the day run out."""
    ends = found.group_by("shard").aggregate([("frame", "max")]).to_pylist()
    parts = [
        pc.and_(pc.equal(table["shard"], end["shard"]), pc.less_equal(table["frame"], end["frame_max"])) for end in ends
    ]
    assert len(parts) == 2
    return table.filter(pc.or_(*parts))


def _queues(table: pa.Table) -> set[str]:
    return {name for name in table["queue_name"].to_pylist() if name}


def _without(table: pa.Table, names: set[str]) -> pa.Table:
    at = table.schema.get_field_index("queue_name")
    kept = pc.if_else(pc.is_in(table["queue_name"], pa.array(sorted(names))), pa.scalar(None, pa.string()), table[at])
    return table.set_column(at, "queue_name", kept).drop_columns("tenant")


@pytest.mark.parametrize("kind", ["directory", "archive"])
def test_a_stream_in_batches(spark: SparkSession, busy_logs: str, archived: str, tmp_path: Path, kind: str) -> None:
    url = {"directory": busy_logs, "archive": archived}[kind]
    stream = Stream(spark, tmp_path, url=url, maxFramesPerBatch="250", framesPerPartition="100")
    frames = sum(span.next - span.first for span in open_history(busy_logs).shards())
    assert stream.run() == -(-frames // 250) > 1
    lags = [sum(shard.frames for shard in history_lag(progress)) for progress in stream.progress]
    assert lags[: len(stream.batches)] == [max(frames - 250 * batch, 0) for batch in range(1, len(stream.batches) + 1)]
    assert stream.run() == 0
    assert stream.rows().equals(expected(busy_logs))


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Over runs, with more history each time; a stream that begins at the end sees only what is new."""
    with TestServer(str(tmp_path / "data"), shards=2) as server:
        from batonq.sync import Baton

        whole = Stream(spark, tmp_path / "whole", url=server.url)
        new = Stream(spark, tmp_path / "new", url=server.url, start="latest")
        with Baton(server.url) as baton:
            queue = baton.create_queue("orders")
            queue.send_many(["one", "two"])
            whole.run()
            new.run()
            assert new.rows().num_rows == 0
            seen = sum(table.num_rows for table in whole.batches.values())
            later = baton.create_queue("later")
            later.send("three")
            queue.send("four")
        whole.run()
        new.run()
        rows = expected(server.url)
        assert whole.rows().equals(rows)
        assert new.rows().num_rows == rows.num_rows - seen
        names = {row["queue_name"] for row in new.rows().to_pylist() if row["event"] == "sent"}
        assert names == {"orders", "later"}


CONDITIONS = [
    "queue_name IN ('mail', 'ledger', 'none') AND event = 'sent'",
    "event IN ('leased', 'returned') AND time >= timestamp'{middle}' AND receive_count > 1",
    "time > timestamp'{middle}' AND queue_name LIKE 'or%' AND queue > 1",
    "queue_name IS NULL OR time = timestamp'{middle}'",
    "event = 'no such event'",
]


def test_filters_give_the_same_rows_with_and_without_push_down(spark: SparkSession, busy_logs: str) -> None:
    """One frame serves all queries without; with push-down there must be one for each."""
    times = sorted(expected(busy_logs)["time"].to_pylist())
    middle = times[len(times) // 2].strftime("%Y-%m-%d %H:%M:%S.%fZ")
    plain = batch(spark, busy_logs)
    counts: dict[str, set[tuple[int, int]]] = {}
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        for given in CONDITIONS:
            for frame in (plain, batch(spark, busy_logs, pushDown="true")):
                chosen = frame.where(given.format(middle=middle))
                row = chosen.selectExpr("count(1)", "coalesce(sum(hash(frame, row)), 0)").first()
                assert row is not None
                counts.setdefault(given, set()).add(tuple(row))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert all(len(found) == 1 for found in counts.values()), counts
    assert [given for given, found in counts.items() if min(found)[0] == 0] == CONDITIONS[-1:]
    assert plain.count() == len(times)


def test_a_session_that_knows_nothing_of_push_down(spark: SparkSession, busy_logs: str) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    try:
        spark.conf.set(setting, "false")
        assert batch(spark, busy_logs).where("event = 'epoch'").count() == 4
    finally:
        spark.conf.set(setting, "true")


def test_filters_as_options_serve_streams_too(spark: SparkSession, busy_logs: str, tmp_path: Path) -> None:
    times = sorted(expected(busy_logs)["time"].to_pylist())
    since, until = times[len(times) // 4], times[len(times) // 2]
    options = {"queues": "orders,ledger", "events": "sent,deleted", "since": f"{since}", "until": f"{until}"}
    wanted = Filter(
        frozenset(("orders", "ledger")),
        frozenset(("sent", "deleted")),
        int(since.timestamp() * 1000),
        int(until.timestamp() * 1000),
    )
    rows = expected(busy_logs, wanted=wanted)
    assert rows.num_rows > 50
    assert ordered(batch(spark, busy_logs, **options).toArrow()).equals(rows)
    stream = Stream(spark, tmp_path, url=busy_logs, maxFramesPerBatch="200", **options)
    stream.run()
    assert stream.rows().equals(rows)


def test_a_batch_and_a_stream_begin_and_end_at_a_time(busy_logs: str, archived: str) -> None:
    """Frames before and after are not read; the rows are those that a filter on all of history gives."""
    times = sorted(expected(busy_logs)["time"].to_pylist())
    since, until = times[len(times) // 3], times[2 * len(times) // 3]
    wanted = Filter(since_ms=int(since.timestamp() * 1000), until_ms=int(until.timestamp() * 1000))
    rows = expected(busy_logs, wanted=wanted)
    frames = {shard: rows.filter(pc.equal(rows["shard"], shard))["frame"].to_pylist() for shard in (0, 1)}
    for url in (busy_logs, archived):
        options = {"url": url, "since": f"{since}", "until": f"{until}"}
        reader = HistoryReader(options, history_schema(options))
        parts = reader.partitions()
        found = pa.Table.from_batches([one for part in parts for one in reader.read(part)])
        assert ordered(found).equals(rows)
        for shard in (0, 1):
            mine = [part.part for part in parts if isinstance(part, HistoryPartition) and part.part.shard == shard]
            assert min(part.start for part in mine) == frames[shard][0]
            assert max(part.stop for part in mine) - 2 <= frames[shard][-1]
        stream = HistoryStreamReader(options, history_schema(options))
        assert stream.initialOffset() == {str(shard): frames[shard][0] for shard in (0, 1)}
        last = HistoryStreamReader({**options, "start": "latest"}, history_schema(options))
        assert last.initialOffset() == last.reportLatestOffset()


def test_a_batch_between_two_positions(busy_logs: str) -> None:
    options = {"url": busy_logs, "start": '{"0": 20}', "end": '{"0": 25, "1": 1}'}
    reader = HistoryReader(options, history_schema(options))
    (part,) = reader.partitions()
    assert part.value == Part(0, 20, 25)
    with pytest.raises(InvalidInput, match="start=latest is for streams"):
        HistoryReader({"url": busy_logs, "start": "latest"}, history_schema(options)).partitions()
    with pytest.raises(InvalidInput, match="The option end is for batches"):
        HistoryStreamReader(options, history_schema(options))


def test_one_shard_and_no_names(spark: SparkSession, busy_logs: str) -> None:
    found = ordered(batch(spark, busy_logs, shards="1", names="false", framesPerPartition="60").toArrow())
    history = open_history(busy_logs)
    rows = list(events(history.frames(1, 1)))
    assert found["logical_time"].to_pylist() == [row["logical_time"] for row in rows]
    assert found["queue_name"].null_count > found.num_rows // 2


def test_a_schema_of_ones_own_chooses_columns(spark: SparkSession, busy_logs: str) -> None:
    frame = spark.read.format("baton").schema("event string, frame long").load(busy_logs)
    assert frame.columns == ["event", "frame"]
    row = frame.where("event = 'sent'").selectExpr("count(1)", "max(frame) > 10").first()
    assert row is not None
    assert tuple(row) == (expected(busy_logs, wanted=Filter(events=frozenset(("sent",)))).num_rows, True)
    chosen = batch(spark, busy_logs, columns="body,frame")
    assert chosen.columns == ["body", "frame"]
    rows = expected(busy_logs, bodies=True)
    total = pc.sum(pc.binary_length(rows["body"])).as_py()
    assert chosen.selectExpr("sum(length(body))").first() == (total,)
