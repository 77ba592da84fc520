"""boto3 in each of its protocols, an older botocore, and the AWS CLI, with nothing changed but the endpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import botocore.model
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.system.process import ServerProcess, baton

LEGACY = Path(sys.prefix) / "legacy-botocore"
VISIBLE = "ApproximateNumberOfMessagesVisible"


class Place(NamedTuple):
    url: str
    key: str
    secret: str

    def client(self, service: str, **more: Any) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=more.pop("secret", self.secret),
            config=Config(retries={"total_max_attempts": 1}),
        )


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ServerProcess(tmp_path_factory.mktemp("development")) as server:
        yield filled(Place(server.url, "111122223333", "secret"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("secured")
    made = baton("keys", "create", "--data", str(directory), "--json")
    told = json.loads(made.stdout)
    with ServerProcess(directory, "--secure") as server:
        yield filled(Place(server.url, told["keyId"], told["secret"]))


@pytest.fixture(params=["development", "secured"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def filled(place: Place) -> Place:
    """Three messages in the queue `jobs`."""
    sqs = place.client("sqs")
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    sqs.close()
    return place


def window() -> dict[str, datetime]:
    now = datetime.now(UTC)
    return {"StartTime": now - timedelta(minutes=5), "EndTime": now + timedelta(minutes=1)}


def query(name: str = VISIBLE, queue: str = "jobs") -> dict[str, Any]:
    metric = {"Namespace": "AWS/SQS", "MetricName": name, "Dimensions": [{"Name": "QueueName", "Value": queue}]}
    return {"Id": "depth", "MetricStat": {"Metric": metric, "Period": 300, "Stat": "Maximum"}}


@pytest.mark.parametrize("protocol", ["json", "smithy-rpc-v2-cbor", "query"])
def test_boto3(place: Place, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.model, "PRIORITY_ORDERED_SUPPORTED_PROTOCOLS", (protocol,))
    watch = place.client("cloudwatch")
    assert watch.meta.service_model.resolved_protocol == protocol
    queries = [query(), {**query("NumberOfMessagesSent"), "Id": "sent"}]
    answer = watch.get_metric_data(MetricDataQueries=queries, **window())
    depth, sent = answer["MetricDataResults"]
    assert (depth["Id"], depth["Label"], depth["Values"][0]) == ("depth", VISIBLE, 3.0)
    assert sent["Id"] == "sent" and sent["StatusCode"] == "Complete"
    assert abs((datetime.now(UTC) - depth["Timestamps"][0]).total_seconds()) < 601
    points = watch.get_metric_statistics(
        Namespace="AWS/SQS",
        MetricName=VISIBLE,
        Dimensions=[{"Name": "QueueName", "Value": "jobs"}],
        Period=300,
        Statistics=["Maximum", "SampleCount"],
        **window(),
    )["Datapoints"]
    assert points[-1]["Maximum"] == 3.0 and points[-1]["SampleCount"] >= 1 and points[-1]["Unit"] == "Count"
    listed = [page["Metrics"] for page in watch.get_paginator("list_metrics").paginate(Namespace="AWS/SQS")]
    assert VISIBLE in {metric["MetricName"] for page in listed for metric in page}
    with pytest.raises(ClientError) as info:
        watch.get_metric_data(MetricDataQueries=[{"Id": "e1", "Expression": "m1<&m2"}], **window())
    assert info.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert "does not evaluate" in info.value.response["Error"]["Message"]
    assert info.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(ClientError) as info:
        watch.describe_alarms()
    assert "'DescribeAlarms' is not supported" in info.value.response["Error"]["Message"]
    watch.close()


@pytest.mark.parametrize("protocol", ["json", "smithy-rpc-v2-cbor", "query"])
def test_a_wrong_signature_is_refused(secured: Place, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.model, "PRIORITY_ORDERED_SUPPORTED_PROTOCOLS", (protocol,))
    watch = secured.client("cloudwatch", secret="wrong")
    with pytest.raises(ClientError) as info:
        watch.list_metrics()
    assert info.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
    assert info.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    watch.close()


def test_counts_come_from_the_time_series(development: Place) -> None:
    sqs, watch = development.client("sqs"), development.client("cloudwatch")
    url = sqs.create_queue(QueueName="counted")["QueueUrl"]
    time.sleep(6)  # the series counts from the first sample on
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    for size in range(100, 800, 100):
        sqs.send_message(QueueUrl=url, MessageBody="x" * size)
    for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3)["Messages"]:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    found: dict[str, float] = {}
    ends = time.monotonic() + 120
    while not (found and all(found.values())) and time.monotonic() < ends:
        time.sleep(1)
        names = ("NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfMessagesDeleted")
        queries = [
            {**query(name, "counted"), "Id": name[0].lower() + name[1:]}
            for name in (*names, "NumberOfEmptyReceives", "SentMessageSize")
        ]
        for one in queries:
            one["MetricStat"]["Stat"] = "Sum"
        results = watch.get_metric_data(MetricDataQueries=queries, **window())["MetricDataResults"]
        found = {one["Id"]: sum(one["Values"]) for one in results}
    assert len(found) == 5 and all(found.values())
    sizes: list[dict[str, Any]] = []
    while time.monotonic() < ends:  # the last messages may be in a later sample
        sizes = watch.get_metric_statistics(
            Namespace="AWS/SQS",
            MetricName="SentMessageSize",
            Dimensions=[{"Name": "QueueName", "Value": "counted"}],
            Period=3600,
            Statistics=["SampleCount", "Sum", "Average", "Minimum", "Maximum"],
            **window(),
        )["Datapoints"]
        if sum(point["SampleCount"] for point in sizes) >= 7:
            break
        time.sleep(1)
    assert sum(point["SampleCount"] for point in sizes) == pytest.approx(7, abs=1), "computed from rates"
    for point in sizes:
        assert point["Unit"] == "Bytes", point
        assert 100 <= point["Minimum"] <= point["Average"] <= point["Maximum"] <= 700
        assert point["Sum"] == pytest.approx(point["Average"] * point["SampleCount"])
    listed = watch.list_metrics(Dimensions=[{"Name": "QueueName", "Value": "counted"}])["Metrics"]
    assert {"NumberOfEmptyReceives", "SentMessageSize"} <= {metric["MetricName"] for metric in listed}
    sqs.close()
    watch.close()


def test_accounts_do_not_see_each_other(development: Place) -> None:
    watch = Place(development.url, "999999999999", "x").client("cloudwatch")
    assert watch.list_metrics()["Metrics"] == []
    assert watch.get_metric_data(MetricDataQueries=[query()], **window())["MetricDataResults"][0]["Values"] == []
    watch.close()


def test_an_older_botocore(place: Place) -> None:
    script = Path(__file__).with_name("legacy_client.py")
    result = subprocess.run(
        [sys.executable, str(script), place.url, place.key, place.secret, "jobs"],
        env={**clean_environment(), "PYTHONPATH": str(LEGACY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (result.returncode, result.stdout.strip()) == (0, "OK"), result.stderr


def test_the_aws_cli(place: Place) -> None:
    aws = str(Path(sys.executable).with_name("aws"))
    environment = {
        **clean_environment(),
        "AWS_ACCESS_KEY_ID": place.key,
        "AWS_SECRET_ACCESS_KEY": place.secret,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }

    def run(*command: str) -> Any:
        options = ["--endpoint-url", place.url, "--region", "us-east-1", "--output", "json"]
        result = subprocess.run(
            [aws, *options, "cloudwatch", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    times = {name: at.isoformat() for name, at in window().items()}
    start = ("--start-time", times["StartTime"], "--end-time", times["EndTime"])
    answer = run("get-metric-data", "--metric-data-queries", json.dumps([query()]), *start)
    assert answer["MetricDataResults"][0]["Values"][0] == 3.0
    dimension = ("--dimensions", "Name=QueueName,Value=jobs")
    about = ("--namespace", "AWS/SQS", "--metric-name", VISIBLE, *dimension)
    answer = run("get-metric-statistics", *about, *start, "--period", "300", "--statistics", "Maximum")
    assert answer["Datapoints"][-1]["Maximum"] == 3.0
    assert [metric["MetricName"] for metric in run("list-metrics", *about)["Metrics"]] == [VISIBLE]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
