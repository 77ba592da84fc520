"""`baton pipeline ingest`: history into the lake's tables `events` and `queues`, each event once.

A stream reads history; each of its batches becomes one batch of the lake. Whatever stops it, it goes on from its
checkpoint: a batch that was under way is done again, and one that is in the lake already changes nothing.
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

HELP = "history into the lake's tables events and queues"
WAIT_S = 3600.0  # for a compaction that holds the table
LOOK_S = 0.5
STARTS = 3  # tries; Spark gives its Python process ten seconds, which a busy machine may need for something else
SLOW_START = "Python worker failed to connect back"
ONE_TASK_A_SHARD = str(1 << 40)
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{0,64}")
_PREFIX = re.compile(r"(?:(?P<cluster>[A-Za-z0-9_-]+)\.)?[0-9a-f]{8}-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="take what there is now, and end (default)")
    mode.add_argument("--follow", action="store_true", help="go on, until Ctrl-C")
    parser.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --follow: a batch at most so often (default 10)",
    )
    parser.add_argument(
        "--cluster",
        default="",
        metavar="NAME",
        help="say in the column source whose history it is, for a lake of several",
    )
    parser.add_argument("--bodies", action="store_true", help="take the bodies too")
    parser.add_argument(
        "--frames", type=int, default=0, metavar="N", help="most frames of history in one batch (default 100000)"
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="where it notes how far it is (default LAKE/_checkpoints/ingest)"
    )


def run(context: Context) -> Outcome:
    from batonq.pipeline.lake.locks import alone

    options = context.options
    if not _CLUSTER.fullmatch(options.cluster):
        raise InvalidInput(f"A cluster is named by letters, digits, '_' and '-', not {options.cluster!r}.")
    if options.frames < 0 or options.every < 0:
        raise InvalidInput("--frames and --every are numbers above 0.")
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
    return Outcome(0, summary, f"{ingest.rows:,} events came in, in {batches}. They are in {context.lake.path}.")


def _run_stream(ingest: Ingest) -> bool:
    """Until its end; True when it was asked to stop."""
    from pyspark.errors import StreamingQueryException

    _ = ingest.context.spark  # its start takes the signals for itself
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
    """The signals that came meanwhile, which only fill the list: one that raises would break in on a call of Java."""
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
    """One run. It has the names of queues, which come from the queues table and grow with it."""

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
            # A node knows no names of queues that are gone. A task that reads all of its shard is told them, or
            # batches before it were; and a node gives no more to two readers than to one.
            source["framesPerPartition"] = ONE_TASK_A_SHARD
        stream = self.context.spark.readStream.format("baton").options(**source).load()
        writing = stream.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        if options.follow:
            return writing.trigger(processingTime=f"{options.every} seconds").start()
        return writing.trigger(availableNow=True).start()

    def take(self, frame: DataFrame, number: int) -> None:
        """One batch. Events first: the queues that they tell of are read back from the lake, and not decoded twice."""
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
        if events.batch != batch and self.lake.has("queues"):  # compacted: among others whose queues are in already
            known = self.lake.read(spark, "queues")
            told = told.join(known, ["source", "shard", "logical_time", "queue"], "left_anti").select(told.columns)
        note = self.lake.write(told, "queues", batch=batch, wait_s=WAIT_S)
        if self.names is not None and note.rows:
            self.names |= self._names_in(self.lake.read_batch(spark, "queues", note))

    def with_names(self, frame: DataFrame) -> DataFrame:
        """The rows as the lake has them: names that a task was not told come from batches before."""
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
        """As many as there are queues."""
        chosen = queues.where(queues["source"] == self.cluster).where("name IS NOT NULL")
        return {
            row.queue: (row.tenant, row.name) for row in chosen.select("queue", "tenant", "name").distinct().collect()
        }


# --- whose batches ----------------------------------------------------------------------------


def batch_prefix(cluster: str, query: str) -> str:
    """What a checkpoint's batches are called before their number: never the same as another checkpoint's."""
    return (f"{cluster}." if cluster else "") + query[:8] + "-"


def query_id(checkpoint: Path) -> str:
    """The id that Spark gave the stream when the checkpoint was new; empty for one that is new."""
    path = checkpoint / "metadata"
    if not path.exists():
        return ""
    try:
        return str(json.loads(path.read_text())["id"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} cannot be read: is {checkpoint} a checkpoint?") from None


def check_writer(lake: Lake, checkpoint: Path, cluster: str) -> None:
    """Raises InvalidInput when this history was taken into the lake with another checkpoint: it would come in twice."""
    from batonq.pipeline.lake.notes import standing_for

    query = query_id(checkpoint)
    mine = batch_prefix(cluster, query) if query else ""
    for prefix in standing_for(lake.notes("events")).prefixes():
        found = _PREFIX.fullmatch(prefix)
        if found and (found["cluster"] or "") == cluster and prefix != mine:
            raise InvalidInput(
                f"The lake {lake.path} has events that were ingested with another checkpoint than {checkpoint}, and "
                "would get them twice. Give that one with --checkpoint, another lake, or --cluster NAME if this is "
                "another cluster's history."
            )
