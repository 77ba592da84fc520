"""Servers with a history."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline import busy
from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer
from tests.support.spark import CODE, FEW_ROWS, NO_CODE, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {"segment_bytes": 64 * 1024, "history_hours": 0.0, "history_bytes": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("history")), shards=2) as running:
        yield running


@pytest.fixture
def rest(server: TestServer) -> Iterator[Rest]:
    made = Rest(server, ACCOUNT)
    yield made
    made.close()


def small(directory: Any, **settings: Any) -> TestServer:
    """One that forgets at once what no message needs, in small segments."""
    return TestServer(str(directory), **{**SMALL, **settings})


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A server that speaks S3, with a bucket. It is a process: delta-rs holds Python's lock while it waits for it."""
    import boto3

    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "programs" / "s3_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    endpoint = server.stdout.readline().strip()

    client: Any = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket="history")
    client.close()
    yield endpoint
    server.stdin.close()
    server.stdout.close()
    server.wait()


@pytest.fixture
def in_s3(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of the test run: a start costs more than most tests."""
    from batonq.pipeline.spark.session import start

    prepare(tmp_path_factory.mktemp("first"))
    session = start("tests", master="local[2]", settings=FEW_ROWS)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The same, for many rows."""
    for name, value in CODE.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in NO_CODE.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session")
def busy_logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data directory of a broker's eventful day, for reading only."""
    directory = str(tmp_path_factory.mktemp("busy"))
    busy.make(directory)
    return directory
