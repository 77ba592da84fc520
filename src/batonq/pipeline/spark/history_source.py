"""format("baton") with read=history: the events of logs, as a batch and as a stream.

Each task reads a range of a shard's frames. The driver plans the ranges, and passes the queue names from before each
range. A planned range is read completely or fails, so a stream's offsets describe exactly what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from batonq.errors import InvalidInput, LogGap, NotFound
from batonq.log.frames import Frame
from batonq.pipeline.events.names import Names
from batonq.pipeline.events.schema import columns
from batonq.pipeline.reading.history import History, Range
from batonq.pipeline.spark import history_options, offsets
from batonq.pipeline.spark.history_options import HistoryOptions
from batonq.pipeline.spark.offsets import Part
from batonq.pipeline.spark.pushdown import push
from batonq.pipeline.tables.schema import spark_type

if TYPE_CHECKING:
    import pyarrow as pa

NAMES_SHOWN = 10  # in an error message


def schema(given: Mapping[str, str]) -> StructType:
    """The schema of the events table, with bodies if requested. Invalid options are refused here, before anything is
    read.
    """
    options = history_options.parse(given)
    options.open()
    return _schema(bodies=options.bodies)


def _schema(*, bodies: bool) -> StructType:
    return StructType([StructField(column.name, spark_type(column.kind)) for column in columns(bodies=bodies)])


class HistoryPartition(InputPartition):
    """The input of one task; small, because it is sent over the network."""

    def __init__(self, part: Part, names: Names) -> None:
        super().__init__(part)
        self.part = part
        self.names = names


class _Source:
    """The common part of batches and streams. It is sent to the tasks, without the history that the driver opened."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self.options = history_options.parse(given)
        self.columns = _checked(schema, self.options)
        self._asked = {queue for queue in self.options.wanted.queues or () if isinstance(queue, str)}
        self._history: History | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_history": None}

    @property
    def history(self) -> History:
        if self._history is None:
            self._history = self.options.open()
        return self._history

    def ranges(self) -> list[Range]:
        return offsets.chosen(self.history.shards(), self.options.shards, self.options.url)

    def check_queues(self, ranges: Iterable[Range]) -> None:
        """Raises NotFound for a queue in the options that is not in the history."""
        if not self._asked:
            return
        told = {name.name for span in ranges for name in self.history.names(span.shard, span.next).values()}
        if missing := sorted(self._asked - told):
            shown = ", ".join(sorted(told)[:NAMES_SHOWN]) + (", …" if len(told) > NAMES_SHOWN else "")
            raise NotFound(
                f"There is no queue {missing[0]!r} in the history at {self.options.url}; the queues are "
                f"{shown or 'none'}."
            )

    def plan(self, parts: Iterable[Part]) -> list[HistoryPartition]:
        found = offsets.split(parts, self.history.marks, self.options.frames_a_part)
        return [HistoryPartition(part, self._names(part)) for part in found]

    def _names(self, part: Part) -> Names:
        if not self.options.names or part.start == 1:
            return {}
        return self.history.names(part.shard, part.start)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from batonq.pipeline.events.decode import Decoder

        if not isinstance(partition, HistoryPartition):
            return  # Spark's own partition for an empty batch
        options, part = self.options, partition.part
        decoder = Decoder(bodies=options.bodies, wanted=options.wanted, names=dict(partition.names), dictionaries=False)
        frames = options.open().frames(part.shard, part.start, part.stop)
        for batch in decoder.batches(_whole(frames, part, options.url)):
            yield batch if self.columns is None else batch.select(self.columns)


class HistoryReader(_Source, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        ranges = self.ranges()
        self.check_queues(ranges)
        return list(self.plan(Part(span.shard, span.first, span.next) for span in ranges if span.first < span.next))


class PushedHistoryReader(HistoryReader):
    """Takes over filters of a query if possible, but only on request: Spark (4.3) plans a data frame's source once for
    all its queries, so all of them would get the rows of the last filter.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        wanted, left = push(filters, self.options.wanted, names=self.options.names)
        self.options = replace(self.options, wanted=wanted)
        return left


def batch_reader(given: Mapping[str, str], schema: StructType) -> HistoryReader:
    pushed = history_options.parse(given).push_down
    return PushedHistoryReader(given, schema) if pushed else HistoryReader(given, schema)


class HistoryStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one in a separate process while the stream runs; `read` runs elsewhere, on a copy."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        self._target: list[Range] | None = None  # the end when Trigger.AvailableNow started
        self._looked = False

    def initialOffset(self) -> dict[str, int]:
        return offsets.encode(offsets.initial(self.ranges(), self.options.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self.options.frames_a_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.ranges()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        ranges = self.ranges() if self._target is None else self._target
        if not self._looked:
            self.check_queues(ranges)
            self._looked = True
        most = None if isinstance(limit, ReadAllAvailable) else self.options.frames_a_batch
        return offsets.encode(offsets.latest(offsets.decode(start), ranges, most, self.options.url))

    def reportLatestOffset(self) -> dict[str, int]:
        return offsets.encode({span.shard: span.next for span in self.ranges()})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return list(self.plan(offsets.between(offsets.decode(start), offsets.decode(end))))


def _whole(frames: Iterator[Frame], part: Part, source: str) -> Iterator[Frame]:
    """The frames; raises LogGap if the last of them are missing, although they existed during planning."""
    number = part.start
    for frame in frames:
        yield frame
        number = frame.number + 1
    if number < part.stop:
        raise LogGap(
            f"Frames {number} to {part.stop - 1} of shard {part.shard} are no longer in {source}, although they "
            "were during planning."
        )


def _checked(given: StructType, options: HistoryOptions) -> list[str] | None:
    """The columns of a user-defined schema; None: all."""
    known = {field.name: field.dataType for field in _schema(bodies=options.bodies)}
    for field in given:
        if field.name not in known:
            raise InvalidInput(
                f"The events table has no column {field.name!r}. The column body needs the option bodies."
            )
        if field.dataType != known[field.name]:
            kind = known[field.name].simpleString()
            raise InvalidInput(f"The column {field.name} is {kind}, not {field.dataType.simpleString()}.")
    names = given.fieldNames()
    return None if names == list(known) else names
