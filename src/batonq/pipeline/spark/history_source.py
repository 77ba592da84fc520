"""format("baton") with read=history: the events of logs, as a batch and as a stream.

Each task reads a range of a shard's frames. The driver plans the ranges, and passes the queue names from before each
range. A planned range is read completely or fails, so a stream's offsets describe exactly what was read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from batonq.errors import InvalidInput, LogGap, NotFound
from batonq.log.frames import Frame
from batonq.pipeline.events.names import Names, told_by
from batonq.pipeline.events.schema import columns
from batonq.pipeline.reading.history import History, Range
from batonq.pipeline.spark import history_options, offsets
from batonq.pipeline.spark.brief_errors import brief_errors
from batonq.pipeline.spark.history_options import HistoryOptions
from batonq.pipeline.spark.offsets import Part, Position
from batonq.pipeline.spark.pushdown import push
from batonq.pipeline.tables.schema import spark_type

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

NAMES_SHOWN = 10  # in an error message


def schema(given: Mapping[str, str]) -> StructType:
    """The schema of the events table, with bodies if requested. Invalid options are refused here, before anything is
    read.
    """
    options = history_options.parse(given)
    options.open()
    whole = _schema(bodies=options.bodies)
    return whole if options.columns is None else StructType([whole[name] for name in options.columns])


def _schema(*, bodies: bool) -> StructType:
    return StructType([StructField(column.name, spark_type(column.kind)) for column in columns(bodies=bodies)])


class HistoryPartition(InputPartition):
    """The input of one task; small, because it is sent over the network. `names` may be without those of queues that
    were deleted since; those that were told from the frame `names_from` on can then be read there.
    """

    def __init__(self, part: Part, names: Names, names_from: int) -> None:
        super().__init__(part)
        self.part = part
        self.names = names
        self.names_from = names_from


@brief_errors
class _Source:
    """The common part of batches and streams. It is sent to the tasks, without the history that the driver opened."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self.options = history_options.parse(given)
        self.columns = _checked(schema, self.options)
        self._asked = {queue for queue in self.options.wanted.queues or () if isinstance(queue, str)}
        self._history: History | None = None
        self._lost: set[Part] = set()  # skipped frames that were reported

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

    def initial(self, ranges: list[Range]) -> Position:
        """Where reading starts: at the option `start`, or at the first frame with events of `since`, if that is
        later.
        """
        position = offsets.initial(ranges, self.options.start)
        if (since_ms := self.options.wanted.since_ms) is None:
            return position
        return {shard: max(frame, self.history.find_time(shard, since_ms)) for shard, frame in position.items()}

    def plan(self, parts: Iterable[Part], ranges: Iterable[Range]) -> list[HistoryPartition]:
        firsts = {span.shard: span for span in ranges}
        kept = [self._retained(part, firsts[part.shard]) if part.shard in firsts else part for part in parts]
        begins = {part.shard: part.start for part in kept}
        found = offsets.split(
            [part for part in kept if part.start < part.stop], self.history.marks, self.options.frames_a_part
        )
        return [HistoryPartition(part, self._names(part), self._names_from(part, begins[part.shard])) for part in found]

    def _retained(self, part: Part, span: Range) -> Part:
        """Raises LogGap if frames of a part were deleted, unless they may be skipped."""
        if self.options.fail_on_data_loss:
            offsets.check_retained(span, part.start, self.options.url)
        kept, lost = offsets.retained(part, span.first)
        if lost.start < lost.stop and lost not in self._lost:
            self._lost.add(lost)
            log.warning(offsets.loss(lost, self.options.url, span.first))
        return kept

    def _names(self, part: Part) -> Names:
        if not self.options.names or part.start == 1:
            return {}
        return self.history.names(part.shard, part.start)

    def _names_from(self, part: Part, begin: int) -> int:
        """Where a task may look for more names: in the frames of its batch that other tasks read."""
        return begin if self.options.names and not self.history.knows_deleted_queues else part.start

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from batonq.pipeline.events.decode import Decoder

        if not isinstance(partition, HistoryPartition):
            return  # Spark's own partition for an empty batch
        options, part = self.options, partition.part
        decoder = Decoder(
            bodies=options.bodies,
            wanted=options.wanted,
            names=dict(partition.names),
            dictionaries=False,
            columns=self.columns,
            more_names=partial(_told_between, options, part.shard, partition.names_from, part.start),
        )
        yield from decoder.batches(_frames(options.open(), part, options))


@brief_errors
class HistoryReader(_Source, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        if self.options.start == "latest":
            raise InvalidInput("start=latest is for streams: a batch that starts at the end reads nothing.")
        ranges = self.ranges()
        self.check_queues(ranges)
        return list(self.plan(offsets.between(self.initial(ranges), self._final(ranges)), ranges))

    def _final(self, ranges: list[Range]) -> Position:
        """The option `end`, or the frame after the first one with an event of `until` or later, if that is earlier."""
        position = offsets.final(ranges, self.options.end)
        if (until_ms := self.options.wanted.until_ms) is None:
            return position
        return {shard: min(frame, self.history.find_time(shard, until_ms) + 1) for shard, frame in position.items()}


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


@brief_errors
class HistoryStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one in a separate process while the stream runs; `read` runs elsewhere, on a copy."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        if self.options.end != "latest":
            raise InvalidInput("The option end is for batches: a stream has no end.")
        self._target: list[Range] | None = None  # the end when Trigger.AvailableNow started
        self._looked = False

    def initialOffset(self) -> dict[str, int]:
        return offsets.encode(self.initial(self.ranges()))

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
        lossy = not self.options.fail_on_data_loss
        return offsets.encode(offsets.latest(offsets.decode(start), ranges, most, self.options.url, lossy=lossy))

    def reportLatestOffset(self) -> dict[str, int]:
        return offsets.encode({span.shard: span.next for span in self.ranges()})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return list(self.plan(offsets.between(offsets.decode(start), offsets.decode(end)), self.ranges()))


# In a task's process, which runs one task after the other: the names told from a frame up to another one.
_told: dict[tuple[str, int, int], tuple[int, Names]] = {}


def _told_between(options: HistoryOptions, shard: int, start: int, stop: int) -> Names:
    """The names in the frames `start` to `stop`. Later calls continue where an earlier one stopped."""
    key = (options.url, shard, start)
    at, names = _told.get(key, (start, {}))
    if at < stop:
        names = dict(names)
        try:
            for frame in options.open().frames(shard, at, stop):
                names |= told_by(frame)
        except LogGap:
            pass  # deleted since planning: whoever reads these frames reports it
        _told.clear()
        _told[key] = stop, names
    return names


def _frames(history: History, part: Part, options: HistoryOptions) -> Iterator[Frame]:
    """The frames of a part. Raises LogGap if any of them was deleted since planning. With failOnDataLoss=false the
    deleted front of a part is skipped.
    """
    number = part.start
    while number < part.stop:
        try:
            for frame in history.frames(part.shard, number, part.stop):
                yield frame
                number = frame.number + 1
            break
        except LogGap:
            first = next((span.first for span in history.shards() if span.shard == part.shard), 0)
            if options.fail_on_data_loss or first <= number:
                raise
            kept, lost = offsets.retained(part._replace(start=number), first)
            log.warning(offsets.loss(lost, options.url, first))
            number = kept.start
    if number < part.stop:
        raise LogGap(
            f"Frames {number} to {part.stop - 1} of shard {part.shard} are no longer in {options.url}, although they "
            "were during planning."
        )


def _checked(given: StructType, options: HistoryOptions) -> list[str]:
    """The columns of a user-defined schema."""
    known = {field.name: field.dataType for field in _schema(bodies=options.bodies)}
    for field in given:
        if field.name not in known:
            raise InvalidInput(
                f"The events table has no column {field.name!r}. The column body needs the option bodies."
            )
        if field.dataType != known[field.name]:
            kind = known[field.name].simpleString()
            raise InvalidInput(f"The column {field.name} is {kind}, not {field.dataType.simpleString()}.")
    return given.fieldNames()
