"""`baton pipeline ingest`: loads history into the lake's tables `events` and `queues`, each event once.

A task reads a range of frames and writes it to Parquet files. The files of a batch and the position after it are added
to the table in one commit, so that a run that is killed anywhere has added a batch and its position, or neither.
"""

from __future__ import annotations

import argparse
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.jobs.problems import is_spark
from batonq.pipeline.lake.delta import Step
from batonq.pipeline.lake.ingested import position_name, positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from batonq.pipeline.events.names import Names
    from batonq.pipeline.lake.parquet_files import File
    from batonq.pipeline.lake.storage import Storage
    from batonq.pipeline.reading.history import Range
    from batonq.pipeline.spark.history_source import HistoryPartition, HistoryReader
    from batonq.pipeline.spark.offsets import Position

HELP = "load history into the lake's tables events and queues"
STARTS = 3  # attempts; Spark gives its Python process ten seconds, which may be too short on a busy machine
SLOW_START = "Python worker failed to connect back"
ONE_TASK_A_SHARD = str(1 << 40)
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{0,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="load the current history and exit (default)")
    mode.add_argument("--follow", action="store_true", help="continue until Ctrl-C")
    parser.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --follow: minimum seconds between two batches (default 10)",
    )
    parser.add_argument(
        "--cluster",
        default="",
        metavar="NAME",
        help="cluster name for the column source, if the lake has several clusters",
    )
    parser.add_argument("--bodies", action="store_true", help="also load bodies")
    parser.add_argument(
        "--frames", type=int, default=0, metavar="N", help="maximum number of frames per batch (default 100000)"
    )


def run(context: Context) -> Outcome:
    options = context.options
    if not _CLUSTER.fullmatch(options.cluster):
        raise InvalidInput(f"--cluster must consist of letters, digits, '_' and '-', not {options.cluster!r}.")
    if options.frames < 0 or options.every < 0:
        raise InvalidInput("--frames and --every must be greater than 0.")
    _ = context.spark  # starting Spark installs its own signal handlers
    ingest = Ingest(context)
    with asked_to_stop() as asked:
        ingest.run(asked)
    if asked.is_set() and not options.follow:
        raise KeyboardInterrupt
    summary = {"batches": ingest.batches, "events": ingest.rows, "lake": context.lake.path}
    batches = "1 batch" if ingest.batches == 1 else f"{ingest.batches:,} batches"
    return Outcome(0, summary, f"{ingest.rows:,} events were loaded into {context.lake.path}, in {batches}.")


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """Set by a signal: a handler that raises would interrupt a call of Java."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: asked.set())
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Ingest:
    """One run. It has the queue names, which are loaded from the queues table and grow with it."""

    def __init__(self, context: Context) -> None:
        from batonq.pipeline.spark import history_source

        options = context.options
        given = {**context.source_options, "bodies": str(options.bodies).lower()}
        if options.frames:
            given["maxFramesPerBatch"] = str(options.frames)
        if context.history.startswith(("http://", "https://")):
            # A node does not know the names of deleted queues. A task that reads all of its shard sees them, or earlier
            # batches did; and a node does not serve two readers faster than one.
            given["framesPerPartition"] = ONE_TASK_A_SHARD
        self.context = context
        self.lake = context.lake
        self.cluster: str = options.cluster
        self.schema = history_source.schema(given)
        self.source = history_source.HistoryReader(given, self.schema)
        self.batches = self.rows = 0
        self.names: Names = {}

    def run(self, asked: threading.Event) -> None:
        """Load what history has now, and with --follow what comes, until asked to stop."""
        from pyspark.sql.types import DateType, StringType, StructType

        from batonq.pipeline.tables.queues import TABLE as QUEUES
        from batonq.pipeline.tables.schema import TABLE as EVENTS
        from batonq.pipeline.tables.schema import spark_schema

        schema = StructType(list(self.schema)).add("source", StringType()).add("date", DateType())
        self.lake.prepare("events", schema.jsonValue(), EVENTS.by)
        self.lake.prepare("queues", spark_schema(QUEUES).jsonValue(), QUEUES.by)
        self.catch_up_queues()
        self.names = self._names_in(self.lake.read(self.context.spark, "queues"))
        target = None if self.context.options.follow else self.source.ranges()
        while not asked.is_set():
            loaded = self.load_next(self.source.ranges() if target is None else target)
            if target is None:
                asked.wait(self.context.options.every)
            elif not loaded:
                return

    def load_next(self, ranges: list[Range]) -> bool:
        """Load the next batch; False if there is none."""
        from batonq.pipeline.spark import offsets

        before = self.positions("events")
        start = offsets.initial(ranges, "earliest") | before
        end = offsets.latest(start, ranges, self.source.options.frames_a_batch, self.source.options.url)
        if start == end and start == before:
            return False
        files, told = self.written(self.source.plan(offsets.between(start, end), ranges))
        events = self.lake.add("events", files, self.step(before, end))
        # read back from the new files, and not decoded twice
        new = self.lake.read_files(self.context.spark, "events", events, files if told else [])
        self.write_queues(new, end, any_rows=bool(told))
        self.batches += bool(files)
        self.rows += sum(file.rows for file in files)
        self.context.progress("events", self.rows)
        return True

    def written(self, parts: Sequence[HistoryPartition]) -> tuple[list[File], int]:
        """Files with the events of these parts, written by one task each, and the number of events about queues."""
        if not parts:
            return [], 0
        table = self.lake.storage("events")
        task = partial(write_events, source=self.source, names=self.names, cluster=self.cluster, table=table)
        for left in reversed(range(STARTS)):
            try:
                done = self.context.spark.sparkContext.parallelize(parts, len(parts)).map(task).collect()
                return [file for files, _ in done for file in files], sum(told for _, told in done)
            except Exception as problem:
                if not left or not is_spark(problem) or SLOW_START not in str(problem):
                    raise
        raise AssertionError("the last try returns or raises")

    # --- queues ---------------------------------------------------------------------------------

    def catch_up_queues(self) -> None:
        """Load the queues of events whose run was killed in between."""
        end = self.positions("events")
        if self._ahead(end, self.positions("queues")):
            found = self.lake.read(self.context.spark, "events")
            self.write_queues(found.where(found["source"] == self.cluster), end, any_rows=True)

    def write_queues(self, events: DataFrame, end: Position, *, any_rows: bool) -> None:
        """Load the queues of these events, and move the position of `queues` to `end` where that is ahead. It is not if
        `events` was deleted, or restored from a copy.
        """
        from pyspark.sql import functions as f

        from batonq.pipeline.tables.queues import queues

        before = self.positions("queues")
        ahead = self._ahead(end, before)
        if not ahead:
            return
        step = self.step(before, ahead)
        if not any_rows:
            self.lake.add("queues", [], step)
            return
        new = f.lit(False)
        for shard, frame in ahead.items():
            new |= (f.col("shard") == shard) & (f.col("frame") >= before.get(shard, 0)) & (f.col("frame") < frame)
        files = self.lake.write(queues(events.where(new)), "queues", step=step)
        told = self.lake.read_files(self.context.spark, "queues", self.lake.snapshot("queues"), files)
        self.names |= self._names_in(told)

    @staticmethod
    def _ahead(end: Position, before: Position) -> Position:
        return {shard: frame for shard, frame in end.items() if frame > before.get(shard, 0)}

    def _names_in(self, queues: DataFrame) -> Names:
        """Number of names: as many as there are queues."""
        from batonq.pipeline.events.names import QueueNames

        chosen = queues.where(queues["source"] == self.cluster).where("name IS NOT NULL")
        rows = chosen.select("queue", "tenant", "name").distinct().collect()
        return {row.queue: QueueNames(row.tenant, row.name) for row in rows}

    # --- positions ------------------------------------------------------------------------------

    def positions(self, table: str) -> Position:
        """The next frame of each shard, as the table has it."""
        return positions(self.lake.snapshot(table), self.cluster)

    def step(self, before: Position, end: Position) -> Step:
        moved = [shard for shard in end if before.get(shard) != end[shard]]
        shards = self.name("shards")
        after = {self.name(shard): end[shard] for shard in moved} | {shards: max((*before, *end), default=-1) + 1}
        expected = {self.name(shard): before.get(shard) for shard in moved}
        return Step(expected | {shards: max(before) + 1 if before else None}, after)

    def name(self, shard: int | str) -> str:
        return position_name(self.cluster, shard)


def write_events(
    part: HistoryPartition, *, source: HistoryReader, names: Names, cluster: str, table: Storage
) -> tuple[list[File], int]:
    """A task: the events of one part in Parquet files, and how many of them are about queues. Names that the part does
    not contain are taken from earlier batches.
    """
    from batonq.pipeline.lake import parquet_files
    from batonq.pipeline.tables.schema import TABLE as EVENTS

    part.names = names | part.names
    told: list[int] = []
    files = list(parquet_files.write(_shaped(source.read(part), cluster, told), table, EVENTS.by))
    return files, sum(told)


def _shaped(batches: Iterable[pa.RecordBatch], cluster: str, told: list[int]) -> Iterator[pa.RecordBatch]:
    """The rows in the lake's format. Appends the numbers of events about queues to `told`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from batonq.pipeline.tables.queues import TELLING

    telling = pa.array(TELLING)
    for batch in batches:
        told.append(pc.sum(pc.is_in(batch.column("event"), telling)).as_py())
        batch = batch.append_column("source", pa.repeat(pa.scalar(cluster), batch.num_rows))
        yield batch.append_column("date", batch.column("time").cast(pa.date32()))
