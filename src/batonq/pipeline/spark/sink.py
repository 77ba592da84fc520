"""The sink: `df.write.format("baton")` and `writeStream`. A row is a message; Spark's retries make no second one.

What a task could not send for good it reports, and the driver raises it when all tasks are done: a task that failed for
it would be run again, and its rows refused again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from batonq.client.retrying import Retries
from batonq.errors import InvalidInput, QueueDoesNotExist
from batonq.pipeline.spark import options as reading
from batonq.pipeline.spark.options import CONNECTION, Option
from batonq.pipeline.spark.sink_rows import check_columns, rows
from batonq.pipeline.spark.sink_sending import Counts, Sender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from batonq.sync import Baton

PATIENCE_S = 300.0
CHECK_S = 10.0  # the patience of the driver, before anything is sent
REFUSED = ("fail", "drop")
OPTIONS = (
    *CONNECTION,
    Option("queue", "", "The queue, unless a column `queue` names one for each row."),
    Option(
        "producer",
        "a new one a write; the query's id for a stream",
        "Who sends: a row is taken once from the same producer, partition and place. Up to 80 letters without spaces.",
    ),
    Option("rate", "", "Messages a second, all tasks that run at a time together."),
    Option("tasks", "", "How many tasks run at a time, if there is a `rate`: each gets its share of it."),
    Option("refused", "fail", "What becomes of the write when the queue refuses rows for good: `fail` or `drop`."),
    Option(
        "patienceSeconds",
        f"{PATIENCE_S:g}",
        "How long a queue that is full or away is tried again before the task fails.",
    ),
)
_OF_STREAMS = ("checkpointlocation", "queryname")  # of Spark's own, which it hands on
_PRODUCER = re.compile(r"[!-~]{1,80}")
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names for the local properties of a task


@dataclass(slots=True, frozen=True)
class Settings:
    """The sink's options, checked."""

    access: reading.Access = field(repr=False)  # it has the secret
    queue: str
    producer: str  # empty: by write or query
    rate: float  # of one task; 0: as quick as it goes
    refused: str
    patience_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        reading.check_known(options, OPTIONS, also=_OF_STREAMS)
        producer = options.get("producer", "")
        if producer and not _PRODUCER.fullmatch(producer):
            raise InvalidInput(f"A producer is 1 to 80 letters without spaces, not {producer!r}.")
        refused = options.get("refused", REFUSED[0])
        if refused not in REFUSED:
            raise InvalidInput(f"The option refused is {' or '.join(REFUSED)}, not {refused!r}.")
        rate = reading.number(options, "rate", 0.0, least=0.001)
        if rate and "tasks" not in options:
            raise InvalidInput("A rate is shared by the tasks that run at a time: give the option tasks too.")
        tasks = reading.whole(options, "tasks", 1)
        patience_s = reading.seconds(options, "patienceSeconds", PATIENCE_S, most=86_400.0)
        return cls(reading.node(options), options.get("queue", ""), producer, rate / tasks, refused, patience_s)

    def baton(self, patience_s: float | None = None) -> Baton:
        from batonq.sync import Baton

        retries = Retries(attempts=1_000_000, deadline=self.patience_s if patience_s is None else patience_s)
        keys = self.access
        return Baton(keys.url, access_key=keys.access_key or None, secret_key=keys.secret_key or None, retries=retries)

    def check(self, schema: StructType, *, overwrite: bool) -> None:
        """Before anything is sent, on the driver."""
        if overwrite:
            raise InvalidInput("A queue cannot be overwritten: write with mode append.")
        check_columns(schema, queue=self.queue)
        if self.queue:
            with self.baton(min(CHECK_S, self.patience_s)) as baton:
                try:
                    baton.queue(self.queue).info()
                except QueueDoesNotExist:
                    raise QueueDoesNotExist(
                        f"There is no queue {self.queue} at {self.access.url}: create it first."
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
        """Raises InvalidInput when rows were refused, and that is to fail the write."""
        total = Counts()
        for message in messages:
            if isinstance(message, Done):
                total.add(message.counts)
        if total.refused and self.refused == "fail":
            raise InvalidInput(f"{total.problem} (the others were sent; option refused=drop goes on without them)")


@dataclass(slots=True)
class Done(WriterCommitMessage):
    """What a task tells the driver."""

    counts: Counts = field(default_factory=Counts)


class BatchWriter(DataSourceArrowWriter):
    """Made once a write, on the driver, and sent to its tasks: they share its producer."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = Settings.of(options)
        self._settings.check(schema, overwrite=overwrite)
        self._producer = self._settings.producer or f"spark-{os.urandom(8).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        return Done(self._settings.send(iterator, f"{self._producer}.{_task().partitionId()}"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._settings.judge(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch that is run again, by a retry or after a restart, has the same query id and batch id."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = Settings.of(options)
        self._settings.check(schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError("Spark did not tell the task its query and batch, without which a retry is not safe")
        producer = f"{self._settings.producer or query}.{task.partitionId()}"
        return Done(self._settings.send(iterator, producer, int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._settings.judge(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a writer writes in a task"
    return task


def send(frame: DataFrame, options: Mapping[str, str]) -> Counts:
    """Send a frame as the sink does, and say what became of its rows: for the jobs. Every row names its producer."""
    if "producer" not in frame.columns:
        raise InvalidInput("Rows that are sent so need a column producer.")
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
