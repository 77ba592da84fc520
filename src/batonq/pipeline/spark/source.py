"""format("baton"): one data source. The option `read` selects what is read; writes go to a queue.

Spark creates this object in every process that plans or reads, so it contains only the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from batonq.errors import InvalidInput
from batonq.pipeline.spark.brief_errors import brief_errors

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


@brief_errors
class BatonSource(DataSource):
    """read: history (events; default), messages (receives from a queue) or replay (retained messages, without
    receiving).
    """

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
        raise InvalidInput(
            "read=messages needs a stream: use spark.readStream, or read=replay to look at messages without "
            "receiving them."
        )

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
            raise InvalidInput(f"The option read must be one of {', '.join(READS)}, not {read!r}.")
        return read


def register(session: SparkSession) -> None:
    """Register format("baton") in a session."""
    session.dataSource.register(BatonSource)
