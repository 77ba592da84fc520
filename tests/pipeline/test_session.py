"""A session starts from the package alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from batonq.pipeline.spark.java import java_home, java_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_runs_sql_in_utc(spark: SparkSession) -> None:
    row = spark.sql("SELECT sum(id) AS total, current_timezone() AS zone FROM range(10)").first()
    assert row is not None and (row.total, row.zone) == (45, "UTC")


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
