"""Small helpers of the tests with real clients."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from botocore.exceptions import ClientError

from tests.support.server import TestServer

WAIT_S = 120


@contextmanager
def refused(code: str, message: str | None = None, status: int = 400) -> Iterator[None]:
    """The block ends with this error of the service; `message` is the whole text, or its end after three dots."""
    with pytest.raises(ClientError) as caught:
        yield
    response = caught.value.response
    assert response["Error"]["Code"] == code, response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == status
    if message is not None:
        said = response["Error"]["Message"]
        assert said.endswith(message[3:]) if message.startswith("...") else said == message


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def http_request(
    server: TestServer, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())
    finally:
        connection.close()


def json_request(
    server: TestServer, operation: str, value: Any, path: str = "/", headers: dict[str, str] | None = None
) -> Answer:
    """A request in AWS JSON, without a client that would check it; `value` is JSON text or a value."""
    body = value if isinstance(value, (bytes, str)) else json.dumps(value)
    head = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
    return http_request(server, "POST", path, body, {**head, **(headers or {})})


def query_request(server: TestServer, form: dict[str, str], path: str = "/", method: str = "POST") -> Answer:
    text = urlencode(form)
    if method == "GET":
        return http_request(server, "GET", f"{path}?{text}")
    return http_request(server, "POST", path, text, {"Content-Type": "application/x-www-form-urlencoded"})


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """For what happens on the server's thread or in another process."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "what was waited for did not happen"
        time.sleep(0.005)


def receive(sqs: Any, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **more).get(
        "Messages", []
    )
    return messages


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def arn_of(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def counts(sqs: Any, url: str) -> tuple[int, int, int]:
    """Visible, in flight, delayed."""
    names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
    values = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    visible, in_flight, delayed = (int(values[name]) for name in names)
    return visible, in_flight, delayed
