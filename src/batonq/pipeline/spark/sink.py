"""The sink: `df.write.format("baton")` and `writeStream`. A row is a message; Spark's retries do not duplicate it.

A task reports rows that were refused permanently, and the driver raises an error when all tasks are done: a failed task
would be repeated, and its rows refused again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from batonq.client.retry import Retries
from batonq.errors import InvalidInput, QueueDoesNotExist
from batonq.pipeline.spark import options as reading
from batonq.pipeline.spark.brief_errors import brief_errors
from batonq.pipeline.spark.options import CONNECTION, Option
from batonq.pipeline.spark.sink_rows import check_columns, rows
from batonq.pipeline.spark.sink_sending import Counts, Sender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from batonq.sync import Baton

PATIENCE_S = 300.0
CHECK_S = 10.0  # how long the driver retries, before anything is sent
REFUSED = ("fail", "drop")
OPTIONS = (
    *CONNECTION,
    Option("queue", "", "Name of the queue, unless a column `queue` contains one per row."),
    Option(
        "producer",
        "a new one per write; the query's id for a stream",
        "Name of the producer: a row is accepted once per producer, partition and position. Up to 80 "
        "characters without spaces.",
    ),
    Option("rate", "", "Maximum number of messages per second, for all concurrent tasks together."),
    Option("tasks", "", "Number of concurrent tasks, if `rate` is set: each gets its share of it."),
    Option("refused", "fail", "What happens if the queue refuses rows permanently: `fail` or `drop`."),
    Option(
        "patienceSeconds",
        f"{PATIENCE_S:g}",
        "How long a full or unavailable queue is retried before the task fails.",
    ),
)
_OF_STREAMS = ("checkpointlocation", "queryname")  # Spark's own options, which it passes on
_PRODUCER = re.compile(r"[!-~]{1,80}")
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names for the local properties of a task


@dataclass(slots=True, frozen=True)
class Settings:
    """The sink's options, checked."""

    access: reading.Access = field(repr=False)  # it contains the secret
    queue: str
    producer: str  # empty: by write or query
    rate: float  # per task; 0: unlimited
    refused: str
    patience_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        reading.check_known(options, OPTIONS, also=_OF_STREAMS)
        producer = options.get("producer", "")
        if producer and not _PRODUCER.fullmatch(producer):
            raise InvalidInput(f"producer must be 1 to 80 characters without spaces, not {producer!r}.")
        refused = options.get("refused", REFUSED[0])
        if refused not in REFUSED:
            raise InvalidInput(f"The option refused must be {' or '.join(REFUSED)}, not {refused!r}.")
        rate = reading.number(options, "rate", 0.0, least=0.001)
        if rate and "tasks" not in options:
            raise InvalidInput(
                "The option rate needs the option tasks: the rate is shared by the tasks that run at the same time."
            )
        tasks = reading.whole(options, "tasks", 1)
        patience_s = reading.seconds(options, "patienceSeconds", PATIENCE_S, most=86_400.0)
        return cls(reading.node(options), options.get("queue", ""), producer, rate / tasks, refused, patience_s)

    def baton(self, patience_s: float | None = None) -> Baton:
        from batonq.sync import Baton

        patience_s = self.patience_s if patience_s is None else patience_s
        retries = Retries(attempts=1_000_000, deadline=patience_s, first_connection=True)
        keys = self.access
        return Baton(keys.url, access_key=keys.access_key or None, secret_key=keys.secret_key or None, retries=retries)

    def check(self, schema: StructType, *, overwrite: bool) -> None:
        """Checks on the driver, before anything is sent."""
        if overwrite:
            raise InvalidInput("A queue cannot be overwritten. Use mode append.")
        check_columns(schema, queue=self.queue)
        if self.queue:
            with self.baton(min(CHECK_S, self.patience_s)) as baton:
                try:
                    baton.queue(self.queue).info()
                except QueueDoesNotExist:
                    raise QueueDoesNotExist(
                        f"Queue {self.queue} does not exist at {self.access.url}. Create it first."
                    ) from None

    def send(self, batches: Iterator[pa.RecordBatch], producer: str, batch: int = 0) -> Counts:
        """All rows of a task."""
        with self.baton() as baton:
            retries = Retries(attempts=1_000_000, deadline=self.patience_s)
            sender = Sender(baton, producer, queue=self.queue, batch=batch, rate=self.rate, retries=retries)
            for one in batches:
                for some in rows(one):
                    sender.send(some)
            return sender.counts

    def judge(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises InvalidInput if rows were refused and `refused` is `fail`."""
        total = Counts()
        for message in messages:
            if isinstance(message, Done):
                total.add(message.counts)
        if total.refused and self.refused == "fail":
            raise InvalidInput(
                f"{total.problem} (the other rows were sent; the option refused=drop ignores refused rows)"
            )


@dataclass(slots=True)
class Done(WriterCommitMessage):
    """The report of a task to the driver."""

    counts: Counts = field(default_factory=Counts)


@brief_errors
class BatchWriter(DataSourceArrowWriter):
    """Created once per write on the driver, and sent to its tasks: they share its producer."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = Settings.of(options)
        self._settings.check(schema, overwrite=overwrite)
        self._producer = self._settings.producer or f"spark-{os.urandom(8).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        return Done(self._settings.send(iterator, f"{self._producer}.{_task().partitionId()}"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._settings.judge(messages)


@brief_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """A repeated micro-batch, after a retry or a restart, has the same query id and batch id."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = Settings.of(options)
        self._settings.check(schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError(
                "Spark did not pass the query and batch ids to the task, without which a retry is not safe"
            )
        producer = f"{self._settings.producer or query}.{task.partitionId()}"
        return Done(self._settings.send(iterator, producer, int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._settings.judge(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a writer writes in a task"
    return task


def send(frame: DataFrame, options: Mapping[str, str]) -> Counts:
    """Send a frame like the sink, and return the counts of its rows, for the jobs. Every row has a producer."""
    if "producer" not in frame.columns:
        raise InvalidInput("The rows need a column producer.")
    settings = Settings.of(options)
    settings.check(frame.schema, overwrite=False)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        counts = settings.send(batches, "")
        numbers = [pa.array([number], pa.int64()) for number in (counts.sent, counts.duplicates, counts.refused)]
        reasons = pa.array([counts.reasons], pa.list_(pa.string()))
        yield pa.RecordBatch.from_arrays([*numbers, reasons], ["sent", "duplicates", "refused", "reasons"])

    total = Counts()
    for one in frame.mapInArrow(write, "sent long, duplicates long, refused long, reasons array<string>").collect():
        total.add(Counts(one.sent, one.duplicates, one.refused, list(one.reasons)))
    return total
