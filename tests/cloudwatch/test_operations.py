"""The operations and their statistics, against a history that the test writes itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.api.cloudwatch.app import CloudWatchApp
from batonq.api.cloudwatch.cbor import Timestamp
from batonq.api.cloudwatch.errors import CloudWatchError
from batonq.api.cloudwatch.metrics import METRICS, Steps
from batonq.api.cloudwatch.operations import LISTED_MAX, OPERATIONS
from batonq.api.cloudwatch.protocols import JSON
from batonq.api.cloudwatch.statistics import Bucket, Sample, buckets, is_statistic
from batonq.api.http import Request, Response
from batonq.api.sqs.access import OpenAccess

NOW_S = 1_700_000_040  # 20 s after a full minute
ACCOUNT = "000000000000"


class Written:
    """Ten minutes of steps of 5 s: the depth rises by one per step, and 2 messages per second are sent, of 10 bytes and
    of 30 bytes in turns. Nothing is sent in the first half minute. There is one empty receive per step.
    """

    def __init__(self, *queues: str) -> None:
        self.names = sorted(queues)
        self.asked: list[int] = []

    def now_ms(self) -> int:
        return NOW_S * 1000

    def queues(self, account: str) -> list[str]:
        return self.names if account == ACCOUNT else []

    async def steps(self, account: str, queue: str, start_ms: int) -> list[Steps]:
        self.asked.append(start_ms)
        if queue not in self.queues(account):
            return []
        depths: list[float | None] = [None, *map(float, range(1, 120))]
        values: dict[str, Sequence[float | None]] = {
            "visible": depths,
            "sent": [0.0] * 6 + [2.0] * 114,
            "sentBytes": [0.0] * 6 + [20.0, 60.0] * 57,
            "emptyReceives": [0.2] * 120,
        }
        return [Steps((NOW_S - 600) * 1000, 5000, values)]

    async def now(self, account: str, queue: str) -> Mapping[str, float]:
        return {"visible": 500.0} if queue in self.queues(account) else {}


def run(name: str, given: dict[str, Any], history: Written | None = None, account: str = ACCOUNT) -> dict[str, Any]:
    return asyncio.run(run_async(name, given, history or Written("jobs"), account))


async def run_async(name: str, given: dict[str, Any], history: Written, account: str) -> dict[str, Any]:
    return await OPERATIONS[name](history, account, given)


def query(metric: str, stat: str = "Average", queue: str = "jobs", period: int = 60, **more: Any) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": queue}]
    about = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": dimensions}
    return {"Id": "m1", "MetricStat": {"Metric": about, "Period": period, "Stat": stat}, **more}


def data(*queries: dict[str, Any], start: Any = NOW_S - 300, end: Any = NOW_S + 1, **more: Any) -> dict[str, Any]:
    return {"MetricDataQueries": list(queries), "StartTime": start, "EndTime": end, **more}


def refused(name: str, given: dict[str, Any]) -> CloudWatchError:
    with pytest.raises(CloudWatchError) as info:
        run(name, given)
    return info.value


# --- GetMetricData


def test_the_newest_datapoint_comes_first_and_contains_the_current_depth() -> None:
    (result,) = run("GetMetricData", data(query("ApproximateNumberOfMessagesVisible", "Maximum")))["MetricDataResults"]
    assert (result["Id"], result["Label"]) == ("m1", "ApproximateNumberOfMessagesVisible")
    assert result["StatusCode"] == "Complete"
    minute = NOW_S // 60 * 60
    assert result["Timestamps"] == [Timestamp(minute - 60 * back) for back in range(6)]
    assert result["Values"][0] == 500 and result["Values"][1:] == sorted(result["Values"][1:], reverse=True)


def test_rates_become_numbers_of_messages() -> None:
    asked = data(query("NumberOfMessagesSent", "Sum"), ScanBy="TimestampAscending", end=NOW_S // 60 * 60)
    (result,) = run("GetMetricData", asked)["MetricDataResults"]
    assert result["Values"] == [120.0] * 5  # 2 per second
    (empty,) = run("GetMetricData", data(query("NumberOfEmptyReceives", "Sum"), end=NOW_S // 60 * 60))[
        "MetricDataResults"
    ]
    assert empty["Values"] == [12.0] * 5
    (counted,) = run("GetMetricData", data(query("NumberOfMessagesSent", "SampleCount"), end=NOW_S // 60 * 60))[
        "MetricDataResults"
    ]
    assert counted["Values"] == [12.0] * 5


def test_periods_begin_at_multiples_of_their_length() -> None:
    history = Written("jobs")
    asked = data(query("ApproximateNumberOfMessagesVisible", "Minimum", period=300), start=NOW_S - 10)
    (result,) = run("GetMetricData", asked, history)["MetricDataResults"]
    assert [at.seconds % 300 for at in result["Timestamps"]] == [0]
    assert history.asked == [int(result["Timestamps"][0].seconds * 1000)]


@pytest.mark.parametrize(
    ("metric", "queue", "account"),
    [
        ("NumberOfMessagesSent", "other", ACCOUNT),
        ("Nonsense", "jobs", ACCOUNT),
        ("NumberOfMessagesSent", "jobs", "1" * 12),
    ],
)
def test_what_does_not_exist_has_no_data(metric: str, queue: str, account: str) -> None:
    (result,) = run("GetMetricData", data(query(metric, queue=queue)), account=account)["MetricDataResults"]
    assert result["Values"] == [] and result["StatusCode"] == "Complete"


def test_queries_that_return_no_data_and_too_much_data() -> None:
    visible = "ApproximateNumberOfMessagesVisible"
    hidden = query(visible, ReturnData=False)
    shown = {**query(visible, Label="depth"), "Id": "m2"}
    (result,) = run("GetMetricData", data(hidden, shown, MaxDatapoints=2))["MetricDataResults"]
    assert (result["Id"], result["Label"], len(result["Values"])) == ("m2", "depth", 2)
    assert result["StatusCode"] == "PartialData"


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (data(query("NumberOfMessagesSent", "Median")), "InvalidParameterValue", "'Median' is not supported"),
        (data({"Id": "e1", "Expression": "m1+m2"}), "InvalidParameterValue", "does not evaluate"),
        (data({"Id": "m1"}), "MissingParameter", "MetricStat"),
        (data({"Id": "Upper"}), "InvalidParameterValue", "not valid"),
        (data(query("NumberOfMessagesSent"), query("NumberOfMessagesSent")), "InvalidParameterValue", "not unique"),
        (data(query("NumberOfMessagesSent"), start=NOW_S, end=NOW_S), "InvalidParameterValue", "less than"),
        (data(query("NumberOfMessagesSent"), start="yesterday"), "InvalidParameterValue", "ISO 8601"),
        (data(query("NumberOfMessagesSent"), start=None), "InvalidParameterValue", "seconds since 1970"),
        (data(query("NumberOfMessagesSent"), ScanBy="Random"), "InvalidParameterValue", "ScanBy"),
        (data(query("NumberOfMessagesSent"), NextToken="x"), "InvalidNextToken", "'x'"),
        (data(query("NumberOfMessagesSent", period=0)), "InvalidParameterValue", "not valid"),
        ({"StartTime": 1, "EndTime": 2}, "MissingParameter", "MetricDataQueries"),
        (data(), "InvalidParameterValue", "not valid"),
        ({"MetricDataQueries": "x", "StartTime": 1, "EndTime": 2}, "InvalidParameterValue", "not valid"),
    ],
)
def test_wrong_requests_for_data(asked: dict[str, Any], code: str, words: str) -> None:
    problem = refused("GetMetricData", asked)
    assert problem.code == code and words in problem.message


@pytest.mark.parametrize(
    "expression",
    [
        """SELECT MAX("ApproximateNumberOfMessagesVisible") FROM "AWS/SQS" WHERE QueueName = 'jobs'""",
        """select max(ApproximateNumberOfMessagesVisible) from SCHEMA("AWS/SQS", QueueName) where QueueName='jobs' """,
    ],
)
def test_the_sql_that_selects_one_queue(expression: str) -> None:
    asked = data({"Id": "q1", "Expression": expression, "Period": 60})
    (result,) = run("GetMetricData", asked)["MetricDataResults"]
    (same,) = run("GetMetricData", data(query("ApproximateNumberOfMessagesVisible", "Maximum")))["MetricDataResults"]
    assert result["Values"] == same["Values"] and result["Label"] == "q1"
    problem = refused("GetMetricData", data({"Id": "q1", "Expression": f"{expression} ORDER BY MAX() DESC"}))
    assert problem.code == "InvalidParameterValue"


def test_a_query_in_another_unit_has_no_data() -> None:
    asked = query("ApproximateNumberOfMessagesVisible")
    for unit, found in (("Count", True), ("Seconds", False)):
        asked["MetricStat"]["Unit"] = unit
        (result,) = run("GetMetricData", data(asked))["MetricDataResults"]
        assert bool(result["Values"]) is found


# --- GetMetricStatistics


def statistics(**more: Any) -> dict[str, Any]:
    return {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "Dimensions": [{"Name": "QueueName", "Value": "jobs"}],
        "StartTime": "2023-11-14T22:10:00Z",  # NOW_S is 22:14:00
        "EndTime": "2023-11-14T22:14:00+00:00",
        "Period": 60,
        **more,
    }


def test_statistics_of_each_period() -> None:
    answer = run("GetMetricStatistics", statistics(Statistics=["Minimum", "Maximum", "Average", "Sum", "SampleCount"]))
    assert answer["Label"] == "ApproximateNumberOfMessagesVisible"
    first, *_ = points = answer["Datapoints"]
    assert len(points) == 4 and first["Unit"] == "Count"
    assert first["SampleCount"] == 12 and first["Maximum"] - first["Minimum"] == 11
    assert first["Average"] == first["Sum"] / 12


def test_the_size_of_sent_messages_counts_each_message() -> None:
    asked = statistics(MetricName="SentMessageSize", Statistics=["SampleCount", "Sum", "Average", "Minimum", "Maximum"])
    first, *_ = points = run("GetMetricStatistics", asked)["Datapoints"]
    assert first["Unit"] == "Bytes"
    assert (first["SampleCount"], first["Sum"], first["Average"]) == (120, 2400, 20)
    assert (first["Minimum"], first["Maximum"]) == (10, 30), "averages of the steps"
    asked = statistics(MetricName="SentMessageSize", ExtendedStatistics=["p0", "p49", "p51", "p100"])
    assert [*run("GetMetricStatistics", asked)["Datapoints"][0]["ExtendedStatistics"].values()] == [10, 10, 30, 30]
    idle = statistics(MetricName="SentMessageSize", Statistics=["Average"], StartTime=NOW_S - 600, EndTime=NOW_S - 570)
    assert run("GetMetricStatistics", idle | {"Period": 10})["Datapoints"] == [], "nothing was sent"
    assert len(points) == 4


def test_percentiles() -> None:
    answer = run("GetMetricStatistics", statistics(ExtendedStatistics=["p0", "p50", "p99.9"]))
    found = answer["Datapoints"][0]["ExtendedStatistics"]
    assert found["p0"] < found["p50"] < found["p99.9"]
    assert is_statistic("p100") and not is_statistic("p101") and not is_statistic("p") and not is_statistic("tm99")


def test_another_unit_has_no_data() -> None:
    assert run("GetMetricStatistics", statistics(Statistics=["Sum"], Unit="Bytes"))["Datapoints"] == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, "MissingParameter"),
        ({"Statistics": ["Sum"], "ExtendedStatistics": ["p50"]}, "InvalidParameterCombination"),
        ({"Statistics": ["p50"]}, "InvalidParameterValue"),
        ({"ExtendedStatistics": ["Sum"]}, "InvalidParameterValue"),
        ({"Statistics": ["Sum"], "Period": 1, "StartTime": "2023-11-10T00:00:00"}, "InvalidParameterCombination"),
        ({"Statistics": ["Sum"], "Dimensions": [{"Name": "QueueName", "Value": "jobs"}] * 31}, "InvalidParameterValue"),
    ],
)
def test_wrong_requests_for_statistics(more: dict[str, Any], code: str) -> None:
    assert refused("GetMetricStatistics", statistics(**more)).code == code


# --- ListMetrics


def test_the_metrics_of_each_queue() -> None:
    listed = run("ListMetrics", {}, Written("jobs", "mails"))["Metrics"]
    assert len(listed) == 2 * len(METRICS)
    assert listed[0] == {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": "jobs"}],
    }
    only = {"MetricName": "NumberOfMessagesSent", "Dimensions": [{"Name": "QueueName", "Value": "mails"}]}
    assert len(run("ListMetrics", only, Written("jobs", "mails"))["Metrics"]) == 1
    assert run("ListMetrics", {"Namespace": "AWS/EC2"}, Written("jobs"))["Metrics"] == []
    assert run("ListMetrics", {"Dimensions": [{"Name": "Topic"}]}, Written("jobs"))["Metrics"] == []


def test_many_queues_come_in_pages() -> None:
    history = Written(*(f"q{number:04}" for number in range(200)))
    found: list[Any] = []
    token = None
    for _ in range(10):
        answer = run("ListMetrics", {"NextToken": token} if token else {}, history)
        assert len(answer["Metrics"]) <= LISTED_MAX
        found += [(one["Dimensions"][0]["Value"], one["MetricName"]) for one in answer["Metrics"]]
        token = answer.get("NextToken")
        if token is None:
            break
    assert found == sorted(set(found)) and len(found) == 200 * len(METRICS)
    for wrong in ("!", "bm9uc2Vuc2U="):
        assert refused("ListMetrics", {"NextToken": wrong}).code == "InvalidNextToken"


# --- buckets


@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.floats(-1e6, 1e6)), max_size=50),
    st.integers(0, 10_000_000),
    st.integers(1, 10_000_000),
    st.integers(1, 86_400),
)
def test_every_sample_is_in_its_bucket(
    found: list[tuple[int, float]], start_ms: int, length_ms: int, period_s: int
) -> None:
    end_ms = start_ms + length_ms
    made = buckets([Sample(*one) for one in found], start_ms, end_ms, period_s)
    first_ms = start_ms // (period_s * 1000) * period_s * 1000
    inside = sorted(value for at_ms, value in found if first_ms <= at_ms < end_ms)
    assert sorted(value for bucket in made for value in bucket.values) == inside
    assert [bucket.start_ms for bucket in made] == sorted({bucket.start_ms for bucket in made})
    assert all(bucket.start_ms % (period_s * 1000) == 0 and bucket.values == sorted(bucket.values) for bucket in made)


def test_percentiles_of_a_bucket() -> None:
    bucket = Bucket(0, [float(value) for value in range(1, 101)], [1.0] * 100)
    assert [bucket.statistic(name) for name in ("p0", "p50", "p95", "p100")] == [1.0, 51.0, 96.0, 100.0]


def test_answers_are_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand datapoints take long to encode. Other requests must not wait for that."""
    threads: list[int] = []

    def answer(operation: str, result: Mapping[str, Any], request_id: str) -> Response:
        threads.append(threading.get_ident())
        return Response(200)

    monkeypatch.setattr(JSON, "answer", answer)
    request = Request("POST", "/", headers={b"x-amz-target": b"GraniteServiceVersion20100801.ListMetrics"})
    assert asyncio.run(CloudWatchApp(Written("jobs"), OpenAccess(ACCOUNT)).handle(request)).status == 200
    assert threads and threads[0] != threading.get_ident()
