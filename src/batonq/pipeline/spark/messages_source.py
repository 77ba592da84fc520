"""format("baton") with read=messages: a queue as a stream. Spark is a consumer: it receives messages and acks them.

The stream reader is in a Python process of Spark's driver while the query runs, with the leases. Tasks get their
messages with their partition, so they need no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist
from batonq.pipeline.spark import options as reading
from batonq.pipeline.spark.brief_errors import brief_errors
from batonq.pipeline.spark.lag import MESSAGES
from batonq.pipeline.spark.messages_leases import Leases
from batonq.pipeline.spark.messages_table import COLUMNS, of_messages, spark_schema
from batonq.pipeline.spark.options import CONNECTION, Option

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from batonq.client.models import MessageFields
    from batonq.sync import Baton, Queue

SCHEMA = spark_schema()
MESSAGES_A_BATCH = 10_000
BYTES_A_BATCH = 64 << 20
MESSAGES_A_PARTITION = 2_500
VISIBILITY_S = 60.0
WAIT_S = 1.0
OPTIONS = (
    *CONNECTION,
    Option("queue", "", "Name of the queue."),
    Option("maxMessagesPerBatch", str(MESSAGES_A_BATCH), "Maximum number of messages per micro-batch."),
    Option(
        "maxBytesPerBatch",
        str(BYTES_A_BATCH),
        "Maximum total size of the bodies per micro-batch; no more are received beyond it.",
    ),
    Option("messagesPerPartition", str(MESSAGES_A_PARTITION), "Number of messages per task."),
    Option("visibilitySeconds", f"{VISIBILITY_S:g}", "Visibility timeout. A heartbeat extends it for longer batches."),
    Option("waitSeconds", f"{WAIT_S:g}", "How long to wait for a first message, at most 20. Stopping takes as long."),
    Option("consumer", "spark", "Name of the consumer, shown as the holder of messages."),
)


class MessagesPartition(InputPartition):
    """The messages of a task, as an Arrow stream."""

    def __init__(self, data: bytes) -> None:
        super().__init__(None)
        self.data = data


@brief_errors
class MessagesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are numbers of received messages: {"messages": n}."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        reading.check_known(options, OPTIONS)
        self._access = reading.node(options)
        self._name = reading.needed(options, "queue")
        self._most = reading.whole(options, "maxMessagesPerBatch", MESSAGES_A_BATCH)
        self._bytes_max = reading.whole(options, "maxBytesPerBatch", BYTES_A_BATCH)
        self._in_partition = reading.whole(options, "messagesPerPartition", MESSAGES_A_PARTITION)
        self._visibility_s = reading.seconds(options, "visibilitySeconds", VISIBILITY_S, least=1.0, most=43_200.0)
        self._wait_s = reading.seconds(options, "waitSeconds", WAIT_S, most=20.0)
        self._consumer = options.get("consumer", "spark")
        self._columns = chosen_columns(schema)
        self._baton: Baton | None = None
        self._opened: tuple[Queue, Leases] | None = None
        self._there: int | None = None  # messages when Trigger.AvailableNow started, until its first batch
        self._target: int | None = None  # the position at which it ends
        self._position = 0  # the end of the newest batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_baton": None, "_opened": None}

    def _open(self) -> tuple[Queue, Leases]:
        """On the driver, when the query starts: tasks have a reader too, but no leases."""
        if self._opened is None:
            from batonq.sync import Baton

            url, access_key, secret_key = self._access
            baton = Baton(url, access_key=access_key or None, secret_key=secret_key or None)
            queue = baton.queue(self._name)
            try:
                queue.info()
            except BatonError as problem:
                baton.close()
                if isinstance(problem, QueueDoesNotExist):
                    raise QueueDoesNotExist(f"Queue {self._name} does not exist at {url}. Create it first.") from None
                raise
            leases = Leases(
                queue,
                visibility_s=self._visibility_s,
                wait_s=self._wait_s,
                bytes_max=self._bytes_max,
                consumer=self._consumer,
            )
            self._baton, self._opened = baton, (queue, leases)
        return self._opened

    def initialOffset(self) -> dict[str, int]:
        self._open()
        return {MESSAGES: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        queue, _ = self._open()
        self._there = queue.stats().visible

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        _, leases = self._open()
        position = start[MESSAGES]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
        if self._there is not None:
            self._target, self._there = position + self._there, None
        if self._target is not None:
            most = min(most, self._target - position)
        self._position = leases.take(position, most)
        return {MESSAGES: self._position}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """With the messages that wait in the queue, so that the query's progress shows its lag."""
        queue, _ = self._open()
        try:
            return {MESSAGES: self._position + queue.stats().visible}
        except BatonError:  # the query itself does not need it
            return None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        _, leases = self._open()
        messages = leases.messages(start[MESSAGES], end[MESSAGES])
        return [MessagesPartition(_stream(of_messages(part))) for part in spread(messages, self._in_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if not isinstance(partition, MessagesPartition):
            return  # Spark's own partition for an empty batch
        for batch in pa.ipc.open_stream(partition.data):
            yield batch.select(self._columns)

    def commit(self, end: dict[str, int]) -> None:
        _, leases = self._open()
        leases.settle(end[MESSAGES])

    def stop(self) -> None:
        if self._opened is not None and self._baton is not None:
            self._opened[1].stop()
            self._baton.close()


def spread(messages: list[MessageFields], most: int) -> list[list[MessageFields]]:
    """Parts of about this many messages, in order; those of one group stay together, to keep their order."""
    count = -(-len(messages) // most)
    parts: list[list[MessageFields]] = [[] for _ in range(count)]
    for at, message in enumerate(messages):
        parts[crc32(message.group.encode()) % count if message.group else at // most].append(message)
    return [part for part in parts if part]


def chosen_columns(schema: StructType) -> list[str]:
    """The columns of a user-defined schema."""
    known = {field.name: field.dataType for field in SCHEMA}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise InvalidInput(
                f"There is no column {field.name} of type {field.dataType.simpleString()}; the columns are "
                f"{', '.join(column.name for column in COLUMNS)}."
            )
    return schema.fieldNames()


def _stream(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
