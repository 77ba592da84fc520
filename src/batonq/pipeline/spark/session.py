"""A Spark session from the installed package alone: finds Java, and sets what the pipeline relies on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonq.object_storage import write_durably
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
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
}
LOGGING = """# Spark's messages, from ERROR on. Spark's own default prints warnings at every start.
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
# without a level of its own, this one sets the root's level to WARN, and says so
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
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
    added = [*quick, *_logging(chosen.get(JAVA_OPTIONS, ""))]
    if added:
        chosen[JAVA_OPTIONS] = " ".join([*added, chosen.get(JAVA_OPTIONS, "")]).strip()
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _local_address(master):
        session = builder.getOrCreate()
    if quick:
        java: Any = session.sparkContext._jvm.java.lang  # type: ignore[union-attr]
        classes.note(quick, java.ProcessHandle.current().pid(), java.System.getProperty("java.class.path"))
    session.sparkContext.environment.update(_for_workers(os.environ))
    register(session)
    return session


@contextmanager
def _local_address(master: str) -> Iterator[None]:
    """An address for a Java that is started here. Without one Spark warns about the machine's name."""
    mine = master.startswith("local") and "SPARK_LOCAL_IP" not in os.environ
    if mine:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        if mine:
            del os.environ["SPARK_LOCAL_IP"]


def _logging(given: str) -> list[str]:
    """The Java option for the configuration of Spark's log, unless the user has one."""
    theirs = os.environ.get("SPARK_CONF_DIR")
    if "log4j" in given or (theirs and Path(theirs, "log4j2.properties").exists()):
        return []
    path = cache_directory() / "log4j2.properties"
    try:
        if not path.exists() or path.read_text() != LOGGING:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(str(path), LOGGING.encode())
    except OSError:
        return []
    return [] if " " in str(path) else [f"-Dlog4j2.configurationFile={path.as_uri()}"]  # Spark expects separate options


def _java_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def _for_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment for Python on a worker: it reads history and writes to queues with the driver's keys."""
    return {name: value for name, value in environment.items() if name.startswith(("AWS_", "BATON_"))}
