"""A driver in a process of its own, with four tries a task: arguments URL DIRECTORY.

First a write whose tasks fail half-way on their first try. Then a streaming write that kills its driver after the sink
has all rows and before Spark has noted it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from batonq.pipeline.spark.session import start
from batonq.pipeline.spark.sink import BatchWriter, Done, StreamWriter
from batonq.pipeline.spark.source import BatonSource
from tests.support.doubles import double


def halfway(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    for number, batch in enumerate(batches):
        if number == 2 and task.attemptNumber() == 0:
            raise ValueError("the first try of every task fails")
        yield batch


@double()
class Failing(BatchWriter):
    """What comes from upstream breaks off, after some of it was sent."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        return super().write(halfway(iterator))


@double()
class Killing(StreamWriter):
    """Kills the drivers, Python's and Java's, in the place of the commit."""

    def __init__(self, options: Any, schema: StructType, overwrite: bool) -> None:
        super().__init__({name: value for name, value in options.items() if name != "kill"}, schema, overwrite)
        self._pids = [int(pid) for pid in options["kill"].split(",")]

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 (Spark's name)
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)


@double()
class Unlucky(BatonSource):
    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def writer(self, schema: StructType, overwrite: bool) -> Failing:
        return Failing(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Killing:
        return Killing(self.options, schema, overwrite)


def main() -> None:
    url, directory = sys.argv[1], Path(sys.argv[2])
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500", "spark.sql.shuffle.partitions": "1"}
    spark = start("sink", master="local[2,4]", settings=settings)
    spark.dataSource.register(Unlucky)
    rows = spark.range(0, 4000, numPartitions=2).selectExpr("CAST(id AS string) AS body")
    rows.write.format("unlucky").mode("append").option("queue", "retried").save(url)
    java: Any = spark.sparkContext._jvm
    stream = spark.readStream.schema("body string, priority int").json(str(directory / "in"))
    query = (
        stream.writeStream.format("unlucky")
        .option("url", url)
        .option("queue", "streamed")
        .option("kill", f"{java.java.lang.ProcessHandle.current().pid()},{os.getpid()}")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
