"""A Spark session from the installed package alone: finds Java, and sets what the pipeline relies on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonq.pipeline.spark import classes
from batonq.pipeline.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.icu.caseMappings.enabled": "false",  # hexadecimal ids do not need full Unicode collation
    # of the code that Spark generates; an audit needs over 200, Spark's default is 100
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
HEAP_MB = (1024, 4096)  # minimum and maximum on one machine; in between a quarter of its memory


def local_settings() -> dict[str, str]:
    """Settings for one machine. A few shuffle partitions are faster there than Spark's 200, and its heap of one
    gigabyte is too small for millions of messages. Every task that groups or sorts takes a page of memory, 64 MB with
    such a heap: more than most need, but large tasks are slow with much smaller ones. A cluster keeps Spark's own
    settings.
    """
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return {
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.buffer.pageSize": "16m",
        "spark.driver.memory": f"{min(max(memory_mb // 4, HEAP_MB[0]), HEAP_MB[1])}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def cache_directory() -> Path:
    """The cache directory of this user and machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batonq"


def start(
    name: str = "baton", *, master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process. `settings` (with Spark's names) override the defaults."""
    home = java_home(cache_directory())
    os.environ["JAVA_HOME"] = home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    import pyspark
    from pyspark.sql import SparkSession

    from batonq.pipeline.spark.source import register

    chosen = {**SETTINGS, **(local_settings() if master.startswith("local") else {}), **(settings or {})}
    quick = [] if _java_runs() else classes.options(home, Path(pyspark.__file__).parent, cache_directory())
    if quick:
        chosen[JAVA_OPTIONS] = " ".join([*quick, chosen.get(JAVA_OPTIONS, "")]).strip()
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if quick:
        java: Any = session.sparkContext._jvm.java.lang  # type: ignore[union-attr]
        classes.note(quick, java.ProcessHandle.current().pid(), java.System.getProperty("java.class.path"))
    session.sparkContext.environment.update(_for_workers(os.environ))
    register(session)
    return session


def _java_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def _for_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment for Python on a worker: it reads history and writes to queues with the driver's keys."""
    return {name: value for name, value in environment.items() if name.startswith(("AWS_", "BATON_"))}
