"""One server for all tests with real clients; each test has an account of its own, so none sees another's queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import boto3
import pytest
import uvloop
from botocore.config import Config

from tests.api.raw import Scenario
from tests.support.server import TestServer

ANSWER_S = 120
_accounts = count(100_000_000_001)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on each event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(scenario: Scenario) -> None:
        async def limited() -> None:
            await asyncio.wait_for(scenario(), 120)

        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(limited())

    return runner


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("server"))) as running:
        yield running


@pytest.fixture(autouse=True)
def held_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """For leases and delays time passes only when a test says so; a module in which it must pass sets TIME_PASSES."""
    if "server" not in request.fixturenames or request.function.__globals__.get("TIME_PASSES", False):
        yield
        return
    server: TestServer = request.getfixturevalue("server")
    with server.clock.held():
        yield


@pytest.fixture
def account() -> str:
    """In the development profile an access key of twelve digits is an account."""
    return str(next(_accounts))


def client(service: str, url: str, access_key: str, secret: str = "secret", **more: Any) -> Any:
    # No retries: a test that needs a second try to pass is a test that failed.
    config = Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_S, connect_timeout=ANSWER_S)
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=config,
        **more,
    )


@pytest.fixture
def sqs(server: TestServer, account: str) -> Iterator[Any]:
    made = client("sqs", server.url, account)
    yield made
    made.close()


@pytest.fixture
def queue(sqs: Any) -> str:
    """The URL of a standard queue."""
    return str(sqs.create_queue(QueueName="queue")["QueueUrl"])


@pytest.fixture
def fifo(sqs: Any) -> str:
    """The URL of a FIFO queue with deduplication by content."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return str(sqs.create_queue(QueueName="queue.fifo", Attributes=attributes)["QueueUrl"])
