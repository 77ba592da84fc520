"""A session starts from the package alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from batonq.pipeline.spark import session
from batonq.pipeline.spark.java import java_home, java_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_runs_sql_in_utc(spark: SparkSession) -> None:
    row = spark.sql("SELECT sum(id) AS total, current_timezone() AS zone FROM range(10)").first()
    assert row is not None and (row.total, row.zone) == (45, "UTC")


def test_a_damaged_page_of_a_parquet_file_is_an_error_that_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """Although the file system's own checksum is not there, and nothing is compressed."""
    folder = tmp_path / "table"
    spark.range(0, 2000, numPartitions=1).write.option("compression", "none").parquet(str(folder))
    (path,) = folder.glob("*.parquet")
    for checksum in folder.glob(".*.crc"):
        checksum.unlink()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=path.name) as told:
        spark.read.parquet(str(folder)).selectExpr("sum(id)").collect()
    assert "verification failed" in str(told.value) or "CRC" in str(told.value)


def test_sparks_log_is_the_users_own_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    path = tmp_path / "cache" / "batonq" / "log4j2.properties"
    assert session._logging("-Xss4m") == [f"-Dlog4j2.configurationFile=file://{path}"]
    assert path.read_text() == session.LOGGING
    assert session._logging("-Dlog4j2.configurationFile=mine.properties") == []
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._logging("") != []
    (tmp_path / "log4j2.properties").write_text("")
    assert session._logging("") == []


def test_without_a_system_java_the_wheel_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = Path(java_home(tmp_path))
    assert home.is_relative_to(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    assert java_version(home) >= 17
    command: list[str | Path] = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_importing_the_pipeline_does_not_import_spark() -> None:
    program = "import batonq.pipeline.spark.session, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
