"""format("baton"): one data source. Its option `read` says what is read; what is written goes to a queue.

Spark makes this object again in every process that plans or reads, so it holds nothing but the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from batonq.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

READS = ("history", "messages", "replay")


class BatonSource(DataSource):
    """read: history (events; default), messages (a queue's, taken) or replay (a queue's retained ones, not taken)."""

    @classmethod
    def name(cls) -> str:
        return "baton"

    def schema(self) -> StructType:
        if self._read() == "history":
            from batonq.pipeline.spark import history_source

            return history_source.schema(self.options)
        from batonq.pipeline.spark import messages_source

        return messages_source.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        read = self._read()
        if read == "history":
            from batonq.pipeline.spark.history_source import batch_reader

            return batch_reader(self.options, schema)
        if read == "replay":
            from batonq.pipeline.spark.messages_replay import ReplayReader

            return ReplayReader(self.options, schema)
        raise InvalidInput("Messages are taken by a stream: use spark.readStream, or read=replay to look at them only.")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        read = self._read()
        if read == "history":
            from batonq.pipeline.spark.history_source import HistoryStreamReader

            return HistoryStreamReader(self.options, schema)
        if read == "replay":
            from batonq.pipeline.spark.messages_replay import ReplayStreamReader

            return ReplayStreamReader(self.options, schema)
        from batonq.pipeline.spark.messages_source import MessagesStreamReader

        return MessagesStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from batonq.pipeline.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from batonq.pipeline.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)

    def _read(self) -> str:
        read = self.options.get("read", READS[0])
        if read not in READS:
            raise InvalidInput(f"The option read is one of {', '.join(READS)}, not {read!r}.")
        return read


def register(session: SparkSession) -> None:
    """Make format("baton") known to a session."""
    session.dataSource.register(BatonSource)
