"""A consumer in a process of its own, killed in the middle of its second batch: arguments URL DIRECTORY."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from batonq.pipeline.spark.session import start


def main() -> None:
    url, directory = sys.argv[1], Path(sys.argv[2])
    spark = start("messages", master="local[2]", settings={"spark.sql.shuffle.partitions": "1"})
    java: Any = spark.sparkContext._jvm
    pid = java.java.lang.ProcessHandle.current().pid()

    def work(batch: DataFrame, number: int) -> None:
        numbers = [row.text for row in batch.select("text").collect()]
        if number == 1:
            os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        (directory / "seen").write_text("\n".join(numbers))

    options = {"read": "messages", "queue": "killed", "maxMessagesPerBatch": "200"}
    stream = spark.readStream.format("baton").options(**options).load(url)
    writer = stream.writeStream.foreachBatch(work).option("checkpointLocation", str(directory / "checkpoint"))
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
