"""Runs in a process of its own, with the last botocore that speaks CloudWatch's query protocol.

Usage: legacy_client.py ENDPOINT KEY SECRET QUEUE. Prints OK when all went well.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import botocore.session
from botocore.exceptions import ClientError


def main(endpoint: str, key: str, secret: str, queue: str) -> None:
    session = botocore.session.get_session()
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    watch = session.create_client("cloudwatch", "us-east-1", endpoint_url=endpoint, **keys)
    assert watch.meta.service_model.metadata["protocol"] == "query"
    dimensions = [{"Name": "QueueName", "Value": queue}]
    name = "ApproximateNumberOfMessagesVisible"
    metric = {"Namespace": "AWS/SQS", "MetricName": name, "Dimensions": dimensions}
    now = datetime.now(UTC)
    window = {"StartTime": now - timedelta(minutes=5), "EndTime": now + timedelta(minutes=1)}
    asked = {"Id": "m1", "MetricStat": {"Metric": metric, "Period": 300, "Stat": "Maximum"}}
    (result,) = watch.get_metric_data(MetricDataQueries=[asked], **window)["MetricDataResults"]
    assert result["Values"][0] == 3.0 and result["StatusCode"] == "Complete", result
    assert abs((now - result["Timestamps"][0]).total_seconds()) < 601
    (point, *_) = watch.get_metric_statistics(**metric, **window, Period=300, Statistics=["Maximum"])["Datapoints"][-1:]
    assert point["Maximum"] == 3.0 and point["Unit"] == "Count"
    listed = watch.list_metrics(Namespace="AWS/SQS", MetricName=name, Dimensions=dimensions)["Metrics"]
    assert listed == [metric]
    code = ""
    try:
        watch.get_metric_data(MetricDataQueries=[{"Id": "e1", "Expression": "<m1>&m2"}], **window)
    except ClientError as problem:
        code = problem.response["Error"]["Code"]
    assert code == "InvalidParameterValue", code
    print("OK")


if __name__ == "__main__":
    main(*sys.argv[1:])
