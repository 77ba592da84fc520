"""A consumer in the session of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def consume(
    spark: SparkSession,
    server: TestServer,
    queue: str,
    checkpoint: Path,
    work: Callable[[DataFrame, int], None],
    **more: str,
) -> StreamingQuery:
    """Works on what there is now, 200 messages a batch."""
    options = {"read": "messages", "queue": queue, "waitSeconds": "0.2", "maxMessagesPerBatch": "200", **more}
    stream = spark.readStream.format("baton").options(**options).load(server.url)
    return (
        stream.writeStream.foreachBatch(work)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
