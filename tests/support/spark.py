"""Spark in tests: a Java that starts soon, and settings for small data."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

# A test is over before Java's second compiler has earned what it costs. Spark's launcher reads the variable.
JAVA_VARIABLE, JAVA_OPTIONS = "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# With few rows the code that Spark makes for a query takes longer to compile than it saves. The tutorials run with it,
# and so does the audit of a million events.
CODE = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Every task that groups or sorts takes a page of memory, of 64 MB with our heap.
FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.buffer.pageSize": "4m",
    **NO_CODE,
}
FIRST_S = 600
_FIRST = """
from batonq.pipeline.spark.session import start
from pyspark.sql.functions import expr
session = start("first", master="local[1]")
session.range(9).selectExpr("id", "id % 2 AS day").write.partitionBy("day").parquet("table")
session.read.parquet("table").groupBy("day").count().join(session.range(2), expr("day = id"), "left").collect()
session.stop()
"""


def prepare(directory: Path) -> None:
    """For all that is started from here: Java's options, and its class-data archive, which one suite makes for all."""
    from batonq.pipeline.spark.session import cache_directory

    os.environ.setdefault(JAVA_VARIABLE, JAVA_OPTIONS)
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits for the archive that the first one makes
        if _is_wanted(cache):
            # Java writes it after Python has ended, and only then closes its end of the pipe.
            command = [sys.executable, "-c", _FIRST]
            first = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=FIRST_S)
            assert first.returncode == 0, first.stderr
            _is_wanted(cache)  # takes it
    finally:
        os.close(lock)


def _is_wanted(cache: Path) -> bool:
    from batonq.pipeline.spark import classes
    from batonq.pipeline.spark.java import java_home
    from batonq.pipeline.spark.standalone import spark_home

    return classes.written(classes.options(java_home(cache), spark_home(), cache)) is not None
