"""format("baton") with read=replay: the messages of a queue in the history, by position. Nothing is received.

It reads history with bodies; the events that begin a message become rows. A message that was moved here, as a dead
letter or by a redrive, is shown in the queue to which it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from batonq.errors import InvalidInput, NotFound
from batonq.pipeline.reading.history import Range
from batonq.pipeline.spark import history_options, history_source
from batonq.pipeline.spark.history_source import HistoryReader, HistoryStreamReader, _Source
from batonq.pipeline.spark.messages_source import chosen_columns
from batonq.pipeline.spark.messages_table import EVENT_COLUMNS, of_events
from batonq.pipeline.spark.options import Option, check_known, needed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_FIXED = ("queues", "events", "bodies", "columns", "names", "read", "pushDown")
OPTIONS = (
    Option("queue", "", "Name or number of the queue."),
    *(option for option in history_options.OPTIONS if option.name not in _FIXED),
)


def as_history(options: Mapping[str, str]) -> dict[str, str]:
    """The options of read=history for a replay."""
    check_known(options, OPTIONS)
    queue = needed(options, "queue")
    if "," in queue:
        raise InvalidInput(f"A replay reads one queue, not {queue}.")
    rest = {name: value for name, value in options.items() if name.lower() not in ("queue", "read")}
    return {**rest, "queues": queue, "events": "sent", "columns": ",".join(EVENT_COLUMNS)}


class _Replay(_Source):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = as_history(given)
        super().__init__(options, history_source.schema(options))
        self.chosen = chosen_columns(schema)

    def check_queues(self, ranges: Iterable[Range]) -> None:
        """Raises NotFound for an unknown number, and InvalidInput if several accounts have this name."""
        ranges = list(ranges)
        super().check_queues(ranges)
        (queue,) = self.options.wanted.queues or ("",)
        told = {number: name for span in ranges for number, name in self.history.names(span.shard, span.next).items()}
        if isinstance(queue, int) and queue not in told:
            raise NotFound(f"There is no queue {queue} in the history at {self.options.url}.")
        homes = {name.tenant: number for number, name in told.items() if name.name == queue}
        if len(homes) > 1:
            shown = ", ".join(f"{number} of {tenant}" for tenant, number in sorted(homes.items()))
            raise InvalidInput(f"Several accounts have a queue {queue}. Use its number ({shown}).")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            found = of_events(batch)
            if found.num_rows:
                yield found.select(self.chosen)


class ReplayReader(_Replay, HistoryReader):
    """Filters are left to Spark: they are on columns of another table."""


class ReplayStreamReader(_Replay, HistoryStreamReader):
    """Positions are those of history: {"<shard>": next frame}."""
