"""Histories for the Spark source: the same frames at every kind of address, and rows that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batonq.log.frames import Frame
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.plain import events
from batonq.pipeline.events.schema import arrow_schema
from batonq.pipeline.reading.archive import Archive, describe
from batonq.pipeline.reading.history import open_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOW = "Python worker failed to connect back"  # Spark gives its Python ten seconds to start, on any machine
STARTS_MAX = 5
BY_PLACE = [("shard", "ascending"), ("frame", "ascending"), ("row", "ascending")]


def archive(directory: str, url: str, frames_a_segment: int = 60) -> None:
    """All of a data directory's logs, the unsealed end too, in segments of that many frames."""
    archive, history = Archive.at(url), open_history(directory)
    for span in history.shards():
        frames = list(history.frames(span.shard, span.first))
        for at in range(0, len(frames), frames_a_segment):
            some = frames[at : at + frames_a_segment]
            archive.write(describe(stored(some), span.shard, some[0].cluster, some[0].number, directory), stored(some))


def stored(frames: list[Frame]) -> bytes:
    return b"".join(part for frame in frames for part in (frame.header, frame.rows, frame.variable))


def expected(url: str, *, bodies: bool = False, wanted: Filter | None = None, **keys: str) -> pa.Table:
    """The rows by the plain loop, in the order of shards and frames."""
    history = open_history(url, **keys)
    rows: list[dict[str, Any]] = []
    for span in history.shards():
        rows += events(history.frames(span.shard, span.first), bodies=bodies, wanted=wanted)
    return pa.Table.from_pylist(rows, arrow_schema(bodies=bodies, dictionaries=False))


def ordered(table: pa.Table, *, bodies: bool = False) -> pa.Table:
    return table.cast(arrow_schema(bodies=bodies, dictionaries=False)).sort_by(BY_PLACE)


def batch(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("baton").options(**options).load(url)


class Stream:
    """A stream of history that is run to the end of what there is, again and again, with one checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str) -> None:
        self.spark, self.checkpoint, self.options = spark, str(checkpoint), options
        self.batches: dict[int, pa.Table] = {}
        self.progress: list[Any] = []  # of the last run

    def run(self, **options: str) -> int:
        """Raises what the stream failed with; returns how many batches there were."""
        before = len(self.batches)
        for attempt in range(1, STARTS_MAX + 1):
            try:
                self._run(options)
                break
            except Exception as problem:
                if attempt == STARTS_MAX or SLOW not in str(problem):
                    raise
        return len(self.batches) - before

    def _run(self, options: Mapping[str, str]) -> None:
        frame = self.spark.readStream.format("baton").options(**{**self.options, **options}).load()
        query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            self.progress = query.recentProgress
        finally:
            query.stop()

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.toArrow()  # a batch that is run again takes its own place

    def rows(self) -> pa.Table:
        return ordered(pa.concat_tables(self.batches.values()))


@contextmanager
def environment(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Spark's Python processes see these: they get the environment of when the source was registered."""
    from batonq.pipeline.spark.source import register

    known = spark.sparkContext.environment
    before = dict(known)
    known.update(values)
    register(spark)
    yield
    known.clear()
    known.update(before)
    register(spark)
