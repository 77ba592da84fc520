"""The jobs give the same tables on a standalone Spark cluster, a master and two workers, as in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from batonq.pipeline.lake import Lake
from batonq.pipeline.reading.archive import Archive
from batonq.pipeline.reading.archiver import archive_shard
from tests.pipeline import busy
from tests.pipeline.cluster_driver import run_jobs
from tests.support.server import TestServer
from tests.support.spark import JAVA_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
READY_S = 600
DRIVER_S = 1_200
STOP_S = 60
# By origin: what is run, and the tables that this makes. After ingest it is the lake that is read, wherever it is from.
JOBS = {"node": ("ingest", "lifecycle", "audit"), "archive": ("ingest",)}
TABLES = {"node": ("events", "queues", "message_lifecycle", "violations"), "archive": ("events", "queues")}
ON_LOOPBACK = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
}


class Cluster(NamedTuple):
    master: str
    work: list[Path]  # the directories of the workers, where each executor that it started has one


class Origin(NamedTuple):
    """Where history is read from."""

    name: str
    url: str


@contextmanager
def _process(log: Path, words: list[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "batonq.pipeline.spark.standalone", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | ON_LOOPBACK, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _said(log: Path, text: str) -> str:
    """The line of a log that has this text, once it is there."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if text in line:
                return line
        time.sleep(0.1)
    raise AssertionError(f"{log.name} did not say {text!r}:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, of one core each."""
    directory = tmp_path_factory.mktemp("cluster")
    own = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        master = directory / "master.log"
        stack.enter_context(_process(master, ["master", *own, "--port", "0"]))
        url = _said(master, "Starting Spark master at").rpartition(" ")[2]
        work = [directory / f"worker-{number}" for number in range(2)]
        for one in work:
            words = ["worker", *own, "--cores", "1", "--memory", "1g", "--work-dir", str(one), url]
            stack.enter_context(_process(one.with_suffix(".log"), words))
        for one in work:
            _said(one.with_suffix(".log"), "Successfully registered with master")
        yield Cluster(url, work)


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Origin]]:
    """One history, served by a running node, and its sealed segments in an archive."""
    directory = tmp_path_factory.mktemp("origin")
    data = str(directory / "data")
    busy.make(data, rounds=3, segment_bytes=64 * 1024)
    archive = f"file://{directory}/archive"
    for shard in range(2):
        archive_shard(data, shard, Archive.at(archive))
    with TestServer(data, shards=2, segment_bytes=64 * 1024) as server:
        yield [Origin("node", server.url), Origin("archive", archive)]


def _jobs(lakes: Path, origins: list[Origin]) -> list[list[str]]:
    return [
        [job, "--lake", str(lakes / origin.name), "--history", origin.url]
        for origin in origins
        for job in JOBS[origin.name]
    ]


def _drive(master: str, jobs: list[list[str]], log: Path) -> dict[str, Any]:
    """Run jobs in a driver process; it and its JVM are gone when this returns."""
    command = [sys.executable, "-m", "tests.pipeline.cluster_driver", master, json.dumps(jobs)]
    with log.open("wb") as errors:
        driver = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | ON_LOOPBACK,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        said, _ = driver.communicate(timeout=DRIVER_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the driver did not end:\n{log.read_text()[-5000:]}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert driver.returncode == 0, log.read_text()[-5000:]
    done: dict[str, Any] = json.loads(said.splitlines()[-1])
    return done


def _rows(spark: SparkSession, lake: Path, table: str) -> DataFrame:
    """A table as rows that can be compared: a map has no order of its own."""
    from pyspark.sql.functions import col, to_json

    frame = Lake(str(lake)).read(spark, table)
    maps = [field.name for field in frame.schema if field.dataType.typeName() == "map"]
    return frame.withColumns({name: to_json(col(f"`{name}`")) for name in maps})


def test_a_cluster_that_loses_its_executors_gives_the_same_tables(
    cluster: Cluster, origins: list[Origin], spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.testing import assertDataFrameEqual

    done = _drive(cluster.master, _jobs(tmp_path / "cluster", origins), tmp_path / "driver.log")
    assert [outcome["code"] for outcome in done["outcomes"]] == [0] * len(done["outcomes"])
    assert done["killed"], "no executor was killed during the audit"
    assert all(list(work.glob("app-*/*")) for work in cluster.work), "both workers ran an executor"
    run_jobs(spark, _jobs(tmp_path / "local", origins))
    for origin in origins:
        for table in TABLES[origin.name]:
            by_cluster = _rows(spark, tmp_path / "cluster" / origin.name, table)
            in_process = _rows(spark, tmp_path / "local" / origin.name, table)
            assertDataFrameEqual(by_cluster, in_process)
        assert Lake(str(tmp_path / "cluster" / origin.name)).rows("events") > 100
