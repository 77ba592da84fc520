"""Bad input to the history source: the user is told what it is, and a stream goes on when it is mended."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from batonq.core.catalog.machine import Catalog
from batonq.core.records import FORMAT_VERSION
from batonq.errors import BatonError, LogGap, Unavailable
from batonq.log.frames import parse
from batonq.pipeline.jobs.problems import sentence
from batonq.pipeline.reading import remote
from batonq.pipeline.reading.archive import Archive
from batonq.pipeline.spark.history_source import HistoryReader, HistoryStreamReader, schema
from batonq.pipeline.spark.offsets import Part
from tests.pipeline.history_support import Stream, archive, batch, expected
from tests.support.server import ACCOUNT, TestServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def kept(busy_logs: str, tmp_path: Path) -> Path:
    """An archive of the busy day that may be damaged."""
    archive(busy_logs, f"file://{tmp_path}/kept", frames_a_segment=200)
    return tmp_path / "kept"


def segments(kept: Path) -> list[Path]:
    return sorted(kept.glob("shard-0000/segment-*.log"))


@contextmanager
def cut_off(kept: Path) -> Iterator[str]:
    """The last segment's file, shortened."""
    path = segments(kept)[-1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    yield f"{path} has {len(whole) - 100} bytes, but its manifest says {len(whole)}"
    path.write_bytes(whole)


@contextmanager
def newer(kept: Path) -> Iterator[str]:
    """The last segment, written by a release to come."""
    path = segments(kept)[-1]
    manifest = kept / "shard-0000" / f"manifest-{path.name[8:28]}.json"
    before = path.read_bytes(), manifest.read_bytes()
    first = parse(before[0])
    head = first.header[:4] + (FORMAT_VERSION + 1).to_bytes(2, "little") + first.header[6:76]
    data = head + google_crc32c.value(head).to_bytes(4, "little") + before[0][80:]
    path.write_bytes(data)
    values = Archive.at(f"file://{kept}").manifest(0, first.number)
    manifest.write_bytes(replace(values, sha256=hashlib.sha256(data).hexdigest()).encode())
    yield f"frame {first.number} has format version {FORMAT_VERSION + 1}, this Baton reads up to {FORMAT_VERSION}"
    path.write_bytes(before[0])
    manifest.write_bytes(before[1])


@contextmanager
def newer_archive(kept: Path) -> Iterator[str]:
    """A manifest of an archive's layout to come."""
    path = sorted(kept.glob("shard-0000/manifest-*.json"))[-1]
    before = path.read_text()
    path.write_text(before.replace('"version": 1', '"version": 9'))
    yield f"{path} has version 9, but this release supports 1: use a newer release"
    path.write_text(before)


@contextmanager
def hole(kept: Path) -> Iterator[str]:
    """A segment in the middle is not there."""
    path = sorted(kept.glob("shard-0000/manifest-*.json"))[-2]
    path.rename(kept / "aside")
    first = int(path.name[9:29])
    yield f"Frames {first} to {first + 199} of shard 0 are not in the archive file://{kept}"
    (kept / "aside").rename(path)


@contextmanager
def no_front(kept: Path) -> Iterator[str]:
    """What comes next was dropped before it was read."""
    aside = kept / "aside"
    aside.mkdir()
    paths = sorted(kept.glob("shard-0000/manifest-*.json"))[:-1]
    for path in paths:
        path.rename(aside / path.name)
    yield "of shard 0"  # planned before, or not
    for path in paths:
        (aside / path.name).rename(path)
    aside.rmdir()


@contextmanager
def no_shard(kept: Path) -> Iterator[str]:
    (kept / "shard-0000").rename(kept / "aside")
    yield "hard 0"
    (kept / "aside").rename(kept / "shard-0000")


@contextmanager
def no_file(kept: Path) -> Iterator[str]:
    """A segment that its manifest names is not there."""
    path = segments(kept)[-1]
    path.rename(kept / "aside")
    yield f"{path} does not exist. Restore it from a copy"
    (kept / "aside").rename(path)


DAMAGES = (cut_off, no_file, newer, newer_archive, hole, no_front, no_shard)


def test_a_damaged_archive_is_named_and_a_stream_goes_on_when_it_is_mended(
    spark: SparkSession, busy_logs: str, kept: Path, tmp_path: Path
) -> None:
    assert len(segments(kept)) >= 3
    stream = Stream(spark, tmp_path / "checkpoint", url=f"file://{kept}", maxFramesPerBatch="1000")
    manifests = sorted(kept.glob("shard-*/manifest-*.json"))
    later = [path for path in manifests if not path.name.startswith("manifest-" + "0" * 19 + "1")]
    for path in later:
        path.rename(path.with_suffix(".later"))
    stream.run()  # the first segments only
    for path in later:
        path.with_suffix(".later").rename(path)
    for damage in DAMAGES:
        with damage(kept) as told, pytest.raises(Exception, match="batonq") as problem:
            stream.run()
        assert told in sentence(problem.value), damage.__name__
    stream.run()
    assert stream.rows().equals(expected(busy_logs))


def test_in_a_batch_too(spark: SparkSession, kept: Path) -> None:
    with cut_off(kept) as told, pytest.raises(Exception, match="batonq") as problem:
        batch(spark, f"file://{kept}").count()
    assert told in sentence(problem.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queues": "orders,ordres"}, "There is no queue 'ordres' in the history at {url}; the queues are brief, "),
        ({"shards": "0,5"}, "There is no shard 5 in {url}; the shards are 0, 1."),
        ({"events": "flown"}, "There is no event 'flown'"),
        ({"path": "/no/such/place"}, "There is no log in /no/such/place"),
        ({"read": "tea-leaves"}, "The option read must be one of history, messages, replay, not 'tea-leaves'."),
    ],
)
def test_options_that_cannot_be_met(spark: SparkSession, busy_logs: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception, match="batonq") as problem:
        batch(spark, options.pop("path", busy_logs), **options).count()
    assert sentence(problem.value).startswith(told.format(url=busy_logs))


def test_a_stream_asks_for_a_queue_that_there_is_not(spark: SparkSession, busy_logs: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="batonq") as problem:
        Stream(spark, tmp_path / "checkpoint", url=busy_logs, queues="ordres").run()
    assert sentence(problem.value).startswith("There is no queue 'ordres'")


def test_a_wrong_key(spark: SparkSession, tmp_path: Path) -> None:
    """Once the right one is given, the stream goes on."""
    with TestServer(str(tmp_path / "data"), secure=True) as server:

        async def make() -> None:
            await server.node.catalog.change(Catalog.put_key, "BTNSPARK", "right", ACCOUNT)

        server.run(make)
        right = {"accessKey": "BTNSPARK", "secretKey": "right"}
        stream = Stream(spark, tmp_path / "checkpoint", url=server.url)
        with pytest.raises(Exception, match="batonq") as problem:
            stream.run(**{**right, "secretKey": "wrong"})
        assert f"{server.url}/v1/history" in sentence(problem.value)
        assert "signature" in sentence(problem.value) and "wrong" not in sentence(problem.value)
        stream.run(**right)
        assert stream.rows().num_rows > 0


# --- without a session


def reader(url: str, **options: str) -> HistoryReader:
    given = {"url": url, **options}
    return HistoryReader(given, schema(given))


def test_a_node_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRIES", 1)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1 cannot be reached: "):
        reader("http://127.0.0.1:1").partitions()


def test_frames_that_were_planned_and_are_gone(busy_logs: str, tmp_path: Path) -> None:
    """A log whose end is not known to be committed any more, as after a crash of its machine."""
    data = tmp_path / "data"
    shutil.copytree(busy_logs, data)
    planned = reader(str(data))
    parts = planned.partitions()
    for note in data.rglob("committed*"):
        note.unlink()
    with pytest.raises(LogGap, match=f"of shard 0 are no longer in {data}, although they were during planning"):
        list(planned.read(parts[0]))


def test_a_front_that_was_dropped_after_planning(kept: Path) -> None:
    planned = HistoryStreamReader({"url": f"file://{kept}"}, StructType())
    parts = planned.partitions({"0": 1}, {"0": 300})
    assert [part.value for part in parts] == [Part(0, 1, 300)]
    with no_front(kept), pytest.raises(LogGap, match="Frame 1 of shard 0 is not in"):
        list(planned.read(parts[0]))


def numbers(source: HistoryReader | HistoryStreamReader, parts: Sequence[InputPartition]) -> list[int]:
    return sorted({number for part in parts for batch in source.read(part) for number in batch["frame"].to_pylist()})


def test_a_dropped_front_is_an_error_that_says_what_to_do(kept: Path) -> None:
    stream = HistoryStreamReader({"url": f"file://{kept}"}, StructType())
    reader = HistoryReader({"url": f"file://{kept}", "shards": "0", "start": '{"0": 7}'}, StructType())
    with no_front(kept):
        (first,) = [span.first for span in stream.ranges() if span.shard == 0]
        told = rf"Frames 7 to {first - 1} of shard 0 are no longer in .* archive, .* new lake; .* failOnDataLoss=false"
        for plan in (
            lambda: stream.latestOffset({"0": 7}, ReadAllAvailable()),
            lambda: stream.partitions({"0": 7}, {"0": first + 5}),
            reader.partitions,
        ):
            with pytest.raises(LogGap, match=told):
                plan()


def test_a_dropped_front_may_be_passed_over_with_one_warning(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"url": f"file://{kept}", "shards": "0", "failOnDataLoss": "false"}
    every = StructType([StructField("frame", LongType())])
    stream = HistoryStreamReader({**options, "maxFramesPerBatch": "20"}, every)
    batch = HistoryReader({**options, "start": '{"0": 7}'}, every)
    with no_front(kept), caplog.at_level(logging.WARNING):
        (span,) = stream.ranges()
        end = stream.latestOffset({"0": 7}, ReadMaxFiles(20))
        assert end == {"0": span.first + 20}
        for _ in range(2):
            parts = stream.partitions({"0": 7}, end)
        assert numbers(stream, parts) == list(range(span.first, span.first + 20))
        count = span.first - 7
        told = f"Data loss: {count:,} frames of shard 0 (7 to {span.first - 1}) were deleted from file://{kept} before"
        assert [told in record.getMessage() for record in caplog.records] == [True]
        assert stream.partitions({"0": 7}, {"0": 9}) == []  # planned before, and all of it is gone
        assert numbers(batch, batch.partitions()) == list(range(span.first, span.next))


def test_a_front_dropped_under_a_running_task_may_be_passed_over(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    every = StructType([StructField("frame", LongType())])
    options = {"url": f"file://{kept}", "failOnDataLoss": "false", "framesPerPartition": "100000"}
    planned = HistoryStreamReader(options, every)
    (stop,) = [span.next for span in planned.ranges() if span.shard == 0]
    parts = [*planned.partitions({"0": 1}, {"0": 100}), *planned.partitions({"0": 100}, {"0": stop})]
    with no_front(kept), caplog.at_level(logging.WARNING):
        first = planned.ranges()[0].first
        assert numbers(planned, parts[:1]) == []
        assert numbers(planned, parts[1:]) == list(range(first, stop))
    assert [record.getMessage().partition(" were")[0] for record in caplog.records] == [
        "Data loss: 99 frames of shard 0 (1 to 99)",
        f"Data loss: {first - 100:,} frames of shard 0 (100 to {first - 1})",
    ]
    with hole(kept), pytest.raises(LogGap, match="are not in the archive"):  # no front: never passed over
        numbers(planned, parts[1:])


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (StructField("event", IntegerType()), "The column event is string, not int"),
        (StructField("body", BinaryType()), "has no column 'body'. The column body needs"),
    ],
)
def test_a_schema_that_the_events_table_has_not(busy_logs: str, column: StructField, told: str) -> None:
    with pytest.raises(BatonError, match=told):
        HistoryReader({"url": busy_logs}, StructType([column]))
