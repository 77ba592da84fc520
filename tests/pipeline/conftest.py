"""Servers with a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline import busy
from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer
from tests.support.spark import CODE, NO_CODE, prepare

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
    """A server that speaks S3, with a bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    import boto3

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
    server.stop()


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
    settings = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false", **NO_CODE}
    session = start("tests", master="local[2]", settings=settings)
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
