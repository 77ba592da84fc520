"""`baton pipeline ingest`: loads history into the lake's tables `events` and `queues`, each event once.

A stream reads history; each of its batches becomes one batch of the lake. After an interruption it continues from its
checkpoint: the batch in progress is repeated, and a batch that is already in the lake changes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from batonq.pipeline.lake import Lake
    from batonq.pipeline.lake.notes import Note

HELP = "load history into the lake's tables events and queues"
WAIT_S = 3600.0  # to wait for a compaction that holds the table
LOOK_S = 0.5
STARTS = 3  # attempts; Spark gives its Python process ten seconds, which may be too short on a busy machine
SLOW_START = "Python worker failed to connect back"
ONE_TASK_A_SHARD = str(1 << 40)
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{0,64}")
_PREFIX = re.compile(r"(?:(?P<cluster>[A-Za-z0-9_-]+)\.)?[0-9a-f]{8}-")


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
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="directory of the checkpoint (default LAKE/_checkpoints/ingest)"
    )


def run(context: Context) -> Outcome:
    from batonq.pipeline.lake.locks import alone

    options = context.options
    if not _CLUSTER.fullmatch(options.cluster):
        raise InvalidInput(f"--cluster must consist of letters, digits, '_' and '-', not {options.cluster!r}.")
    if options.frames < 0 or options.every < 0:
        raise InvalidInput("--frames and --every must be greater than 0.")
    folder = "ingest" + (f"-{options.cluster}" if options.cluster else "")
    checkpoint = Path(options.checkpoint or context.lake.path / "_checkpoints" / folder).absolute()
    with alone(checkpoint.with_name(checkpoint.name + ".lock"), f"The checkpoint {checkpoint} is in use"):
        check_writer(context.lake, checkpoint, options.cluster)
        ingest = Ingest(context, checkpoint)
        interrupted = _run_stream(ingest)
    if interrupted and not options.follow:
        raise KeyboardInterrupt
    summary = {"batches": ingest.batches, "events": ingest.rows, "lake": str(context.lake.path)}
    batches = "1 batch" if ingest.batches == 1 else f"{ingest.batches:,} batches"
    return Outcome(0, summary, f"{ingest.rows:,} events were loaded into {context.lake.path}, in {batches}.")


def _run_stream(ingest: Ingest) -> bool:
    """Run until its end; True if it was interrupted."""
    from pyspark.errors import StreamingQueryException

    _ = ingest.context.spark  # starting Spark installs its own signal handlers
    with asked_to_stop() as asked:
        for left in reversed(range(STARTS)):
            query = ingest.start()
            try:
                while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # it takes parts of a second
                    if asked:
                        query.stop()
                return bool(asked)
            except StreamingQueryException as problem:
                if not left or SLOW_START not in str(problem):
                    raise
    raise AssertionError("the last try returns or raises")


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collects signals in a list: a handler that raises would interrupt a call of Java."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Ingest:
    """One run. It has the queue names, which are loaded from the queues table and grow with it."""

    def __init__(self, context: Context, checkpoint: Path) -> None:
        self.context = context
        self.lake = context.lake
        self.cluster: str = context.options.cluster
        self.checkpoint = checkpoint
        self.batches = self.rows = 0
        self.names: dict[int, tuple[str, str]] | None = None

    def start(self) -> StreamingQuery:
        options = self.context.options
        source = {**self.context.source_options, "bodies": str(options.bodies).lower()}
        if options.frames:
            source["maxFramesPerBatch"] = str(options.frames)
        if self.context.history.startswith(("http://", "https://")):
            # A node does not know the names of deleted queues. A task that reads all of its shard sees them, or earlier
            # batches did; and a node does not serve two readers faster than one.
            source["framesPerPartition"] = ONE_TASK_A_SHARD
        stream = self.context.spark.readStream.format("baton").options(**source).load()
        writing = stream.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        if options.follow:
            return writing.trigger(processingTime=f"{options.every} seconds").start()
        return writing.trigger(availableNow=True).start()

    def take(self, frame: DataFrame, number: int) -> None:
        """Load one batch. Events first: their queues are then read back from the lake, and not decoded twice."""
        batch = f"{batch_prefix(self.cluster, query_id(self.checkpoint))}{number:06}"
        note = self.write_events(self.with_names(frame), batch)
        self.write_queues(note, batch)
        self.batches += 1
        self.rows += note.rows if note.batch == batch else 0
        self.context.progress("events", self.rows)

    def write_events(self, frame: DataFrame, batch: str) -> Note:
        return self.lake.write(frame, "events", batch=batch, by=("date",), wait_s=WAIT_S)

    def write_queues(self, events: Note, batch: str) -> None:
        from batonq.pipeline.tables.queues import queues

        spark = self.context.spark
        told = queues(self.lake.read_batch(spark, "events", events))
        # compacted together with others whose queues are already loaded
        if events.batch != batch and self.lake.has("queues"):
            known = self.lake.read(spark, "queues")
            told = told.join(known, ["source", "shard", "logical_time", "queue"], "left_anti").select(told.columns)
        note = self.lake.write(told, "queues", batch=batch, wait_s=WAIT_S)
        if self.names is not None and note.rows:
            self.names |= self._names_in(self.lake.read_batch(spark, "queues", note))

    def with_names(self, frame: DataFrame) -> DataFrame:
        """The rows in the lake's format: names that a task did not see are taken from earlier batches."""
        import pyarrow as pa
        from pyspark.sql import functions as f

        from batonq.pipeline.spark.local import frame_of

        if self.names is None:
            spark = self.context.spark
            self.names = self._names_in(self.lake.read(spark, "queues")) if self.lake.has("queues") else {}
        columns = frame.columns
        if self.names:
            known = [(queue, tenant, name) for queue, (tenant, name) in self.names.items()]
            schema = pa.schema([("queue", pa.int64()), ("known_tenant", pa.string()), ("known_name", pa.string())])
            names = frame_of(frame.sparkSession, known, schema)
            frame = frame.join(f.broadcast(names), "queue", "left").withColumns(
                {
                    "queue_name": f.coalesce("queue_name", "known_name"),
                    "tenant": f.coalesce("tenant", "known_tenant"),
                }
            )
        return frame.select(*columns, f.lit(self.cluster).alias("source"), f.to_date("time").alias("date"))

    def _names_in(self, queues: DataFrame) -> dict[int, tuple[str, str]]:
        """Number of names: as many as there are queues."""
        chosen = queues.where(queues["source"] == self.cluster).where("name IS NOT NULL")
        return {
            row.queue: (row.tenant, row.name) for row in chosen.select("queue", "tenant", "name").distinct().collect()
        }


# --- whose batches ----------------------------------------------------------------------------


def batch_prefix(cluster: str, query: str) -> str:
    """The prefix of a checkpoint's batch names: different for every checkpoint."""
    return (f"{cluster}." if cluster else "") + query[:8] + "-"


def query_id(checkpoint: Path) -> str:
    """The id that Spark gave the stream when the checkpoint was created; empty for a new one."""
    path = checkpoint / "metadata"
    if not path.exists():
        return ""
    try:
        return str(json.loads(path.read_text())["id"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} cannot be read. Is {checkpoint} a checkpoint?") from None


def check_writer(lake: Lake, checkpoint: Path, cluster: str) -> None:
    """Raises InvalidInput if this history was loaded with another checkpoint, because it would be loaded twice."""
    from batonq.pipeline.lake.notes import standing_for

    query = query_id(checkpoint)
    mine = batch_prefix(cluster, query) if query else ""
    for prefix in standing_for(lake.notes("events")).prefixes():
        found = _PREFIX.fullmatch(prefix)
        if found and (found["cluster"] or "") == cluster and prefix != mine:
            raise InvalidInput(
                f"The lake {lake.path} has events that were loaded with another checkpoint than {checkpoint}; "
                "they would be loaded twice. Use that checkpoint with --checkpoint, use another lake, or set "
                "--cluster NAME if this is the history of another cluster."
            )
