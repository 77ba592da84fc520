"""KEDA's aws-sqs-queue scaler, request by request.

KEDA 2.13 and later use the AWS SDK for Go v2: GetQueueAttributes in AWS JSON 1.0, signed, with the names of the counts
that it adds up and the queue's URL (or only its name) as the trigger gives it. Older releases use the query protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from batonq.core.catalog.machine import Catalog
from tests.api.conftest import client
from tests.api.support import Answer, http_request
from tests.support.server import ACCOUNT, TestServer

KEY, SECRET = "BATONKEDA", "keda-secret"
COUNTS = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",  # scaleOnInFlight, which is the default
    "ApproximateNumberOfMessagesDelayed",  # scaleOnDelayed
]


@pytest.fixture(scope="module", params=["development", "secured"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    secure = request.param == "secured"
    with TestServer(str(tmp_path_factory.mktemp("keda")), secure=secure) as running:

        async def make_key() -> None:
            await running.node.catalog.change(Catalog.put_key, KEY, SECRET, ACCOUNT)

        if secure:
            running.run(make_key)
        sqs: Any = client("sqs", running.url, KEY, SECRET)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        for number in range(7):
            sqs.send_message(QueueUrl=url, MessageBody=str(number), DelaySeconds=900 if number < 2 else 0)
        assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1)["Messages"]) == 1
        sqs.close()
        yield running


def signed(server: TestServer, body: bytes, headers: dict[str, str]) -> Answer:
    """POST / with a signature over all its headers, as the SDK makes it."""
    request = AWSRequest("POST", server.url + "/", data=body, headers=headers)
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(request)
    return http_request(server, "POST", "/", body, dict(request.headers.items()))


@pytest.mark.parametrize(("names", "messages"), [(COUNTS[:1], 4), (COUNTS[:2], 5), (COUNTS, 7)])
@pytest.mark.parametrize("by", ["url", "name"])
def test_the_request_of_today(server: TestServer, names: list[str], messages: int, by: str) -> None:
    queue_url = f"{server.url}/{ACCOUNT}/jobs" if by == "url" else "jobs"
    body = json.dumps({"AttributeNames": names, "QueueUrl": queue_url}, separators=(",", ":")).encode()
    answer = signed(
        server,
        body,
        {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": "AmazonSQS.GetQueueAttributes",
            "Amz-Sdk-Invocation-Id": "4b1f7d2e-0d7c-4f0e-8d2b-5f9a6c1b2d3e",
            "Amz-Sdk-Request": "attempt=1; max=3",
            "User-Agent": "aws-sdk-go-v2/1.36.3 ua/2.1 os/linux lang/go#1.23.8 md/GOOS#linux api/sqs#1.38.5",
        },
    )
    assert answer.status == 200
    attributes = answer.json["Attributes"]
    assert set(attributes) == set(names)
    assert sum(int(attributes[name]) for name in names) == messages  # KEDA parses each, and adds them up


def test_the_request_of_older_releases(server: TestServer) -> None:
    form = {
        "Action": "GetQueueAttributes",
        "AttributeName.1": COUNTS[0],
        "AttributeName.2": COUNTS[1],
        "QueueUrl": f"{server.url}/{ACCOUNT}/jobs",
        "Version": "2012-11-05",
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    answer = signed(server, urlencode(form).encode(), headers)
    assert answer.status == 200
    assert "<Name>ApproximateNumberOfMessages</Name><Value>4</Value>" in answer.text
    assert "<Name>ApproximateNumberOfMessagesNotVisible</Name><Value>1</Value>" in answer.text


def test_the_queue_s_url_is_one_that_keda_takes(server: TestServer) -> None:
    """It wants an account and a name in the path, and nothing else."""
    sqs: Any = client("sqs", server.url, KEY, SECRET)
    path = urlsplit(sqs.get_queue_url(QueueName="jobs")["QueueUrl"]).path
    sqs.close()
    assert path.split("/") == ["", ACCOUNT, "jobs"]
