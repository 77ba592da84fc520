"""A Spark session that works from the installed package alone: Java found, settings that the pipeline relies on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from batonq.pipeline.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# On one machine a shuffle of a few partitions is quicker than Spark's 200; a cluster keeps Spark's own choice.
LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def cache_directory() -> Path:
    """Where what is made once for this user and machine lies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batonq"


def start(
    name: str = "baton", *, master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process. `settings` (Spark's own names) win over ours."""
    os.environ["JAVA_HOME"] = java_home(cache_directory())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    chosen = {**SETTINGS, **(LOCAL_SETTINGS if master.startswith("local") else {}), **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    from batonq.pipeline.spark.source import register

    register(session)
    return session
