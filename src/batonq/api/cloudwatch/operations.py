"""GetMetricData, GetMetricStatistics and ListMetrics. They take and return the neutral form of all protocols, in which
a time is a `Timestamp`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from typing import Any

from batonq.api.cloudwatch.cbor import Timestamp
from batonq.api.cloudwatch.errors import bad_token, combination, invalid, missing
from batonq.api.cloudwatch.metrics import DIMENSION, METRICS, NAMESPACE, QueueHistory, samples
from batonq.api.cloudwatch.requests import (
    STATISTICS_DATAPOINTS_MAX,
    Dimension,
    GetMetricData,
    GetMetricStatistics,
    ListMetrics,
    MetricDataQuery,
    MetricIdentity,
    StatQuery,
    queue_of,
    read,
    span_ms,
)
from batonq.api.cloudwatch.statistics import BASIC, Bucket, buckets, is_statistic

LISTED_MAX = 500  # metrics of one answer of ListMetrics
SELECT_PERIOD_S = 300
_FUNCTIONS = {"AVG": "Average", "COUNT": "SampleCount", "MAX": "Maximum", "MIN": "Minimum", "SUM": "Sum"}
_SELECT = re.compile(
    rf"""SELECT\s+(?P<function>{"|".join(_FUNCTIONS)})\s*\(\s*"?(?P<metric>\w+)"?\s*\)\s+
    FROM\s+(?:SCHEMA\s*\(\s*)?"(?P<namespace>[\w/]+)"(?:\s*,\s*"?{DIMENSION}"?\s*\))?\s+
    WHERE\s+"?{DIMENSION}"?\s*=\s*'(?P<queue>[\w.-]+)'""",
    re.IGNORECASE | re.VERBOSE,
)

Operation = Callable[[QueueHistory, str, Any], Awaitable[dict[str, Any]]]


async def get_metric_data(history: QueueHistory, account: str, given: Any) -> dict[str, Any]:
    asked = read(GetMetricData, given)
    start_ms, end_ms = span_ms(asked.StartTime, asked.EndTime)
    if asked.ScanBy not in ("TimestampDescending", "TimestampAscending"):
        raise invalid("The parameter ScanBy must be TimestampDescending or TimestampAscending.")
    if asked.NextToken is not None:
        raise bad_token(asked.NextToken)  # every answer is complete, so there are none
    if len({query.Id for query in asked.MetricDataQueries}) < len(asked.MetricDataQueries):
        raise invalid("The values for parameter Id in MetricDataQueries are not unique.")
    results = []
    left = asked.MaxDatapoints
    for query in asked.MetricDataQueries:
        found = await _query(history, account, query, start_ms, end_ms)
        if not query.ReturnData:
            continue
        if asked.ScanBy == "TimestampDescending":
            found.reverse()
        shown = found[:left]
        left -= len(shown)
        results.append(
            {
                "Id": query.Id,
                "Label": query.Label or _label(query),
                "Timestamps": [Timestamp(at_ms / 1000) for at_ms, _ in shown],
                "Values": [value for _, value in shown],
                "StatusCode": "Complete" if len(shown) == len(found) else "PartialData",
            }
        )
    return {"MetricDataResults": results, "Messages": []}


async def _query(
    history: QueueHistory, account: str, query: MetricDataQuery, start_ms: int, end_ms: int
) -> list[tuple[int, float]]:
    """The datapoints of one query, oldest first."""
    stat = query.MetricStat if query.Expression is None else _selected(query)
    if stat is None:
        raise missing(f"MetricDataQueries.{query.Id}.MetricStat")
    if not is_statistic(stat.Stat):
        raise invalid(f"The statistic {stat.Stat[:40]!r} is not supported. Use {', '.join(BASIC)}, or p0 to p100.")
    metric = stat.Metric
    kind = METRICS.get(metric.MetricName)
    if kind is None or stat.Unit not in ("", kind.unit):
        return []
    found = await _buckets(
        history, account, metric.Namespace, metric.MetricName, metric.Dimensions, start_ms, end_ms, stat.Period
    )
    return [(bucket.start_ms, bucket.statistic(stat.Stat)) for bucket in found]


def _selected(query: MetricDataQuery) -> StatQuery:
    """The metric of an Expression in SQL, in the one form that selects the metric of a single queue."""
    found = _SELECT.fullmatch((query.Expression or "").strip())
    if found is None or found["namespace"] != NAMESPACE:
        raise invalid(
            f"Query {query.Id} has an Expression that Baton does not evaluate. Ask for a metric of {NAMESPACE} with "
            'MetricStat, or with SELECT MAX("ApproximateNumberOfMessagesVisible") FROM "AWS/SQS" WHERE QueueName = '
            "'name'."
        )
    metric = MetricIdentity(NAMESPACE, found["metric"], [Dimension(DIMENSION, found["queue"])])
    return StatQuery(metric, query.Period or SELECT_PERIOD_S, _FUNCTIONS[found["function"].upper()])


async def _buckets(
    history: QueueHistory,
    account: str,
    namespace: str,
    name: str,
    dimensions: list[Dimension],
    start_ms: int,
    end_ms: int,
    period_s: int,
) -> list[Bucket]:
    """Empty for a metric or queue that does not exist, as in CloudWatch."""
    queue = queue_of(name, dimensions)
    if namespace != NAMESPACE or name not in METRICS or not queue:
        return []
    found = await samples(history, account, queue, name, start_ms // (period_s * 1000) * period_s * 1000)
    return buckets(found, start_ms, end_ms, period_s)


def _label(query: MetricDataQuery) -> str:
    return query.MetricStat.Metric.MetricName if query.MetricStat is not None else query.Id


async def get_metric_statistics(history: QueueHistory, account: str, given: Any) -> dict[str, Any]:
    asked = read(GetMetricStatistics, given)
    start_ms, end_ms = span_ms(asked.StartTime, asked.EndTime)
    if not asked.Statistics and not asked.ExtendedStatistics:
        raise missing("Statistics")
    if asked.Statistics and asked.ExtendedStatistics:
        raise combination("The parameters Statistics and ExtendedStatistics cannot be used together.")
    for name in (*asked.Statistics, *asked.ExtendedStatistics):
        if not is_statistic(name) or (name in BASIC) != (name in asked.Statistics):
            raise invalid(f"The statistic {name[:40]!r} is not supported. Use {', '.join(BASIC)}, or p0 to p100.")
    if (end_ms - start_ms) // (asked.Period * 1000) > STATISTICS_DATAPOINTS_MAX:
        raise combination(
            f"The request asks for more than {STATISTICS_DATAPOINTS_MAX} datapoints. Use a longer Period or a shorter "
            "time."
        )
    found = await _buckets(
        history, account, asked.Namespace, asked.MetricName, asked.Dimensions, start_ms, end_ms, asked.Period
    )
    kind = METRICS.get(asked.MetricName)
    unit = kind.unit if kind is not None else "None"
    if asked.Unit and asked.Unit != unit:
        found = []  # no data in that unit
    points = []
    for bucket in found:
        point: dict[str, Any] = {"Timestamp": Timestamp(bucket.start_ms / 1000)}
        for name in BASIC:
            if name in asked.Statistics:
                point[name] = bucket.statistic(name)
        point["Unit"] = unit
        if asked.ExtendedStatistics:
            point["ExtendedStatistics"] = {name: bucket.statistic(name) for name in asked.ExtendedStatistics}
        points.append(point)
    return {"Label": asked.MetricName, "Datapoints": points}


async def list_metrics(history: QueueHistory, account: str, given: Any) -> dict[str, Any]:
    asked = read(ListMetrics, given)
    if asked.RecentlyActive not in (None, "PT3H"):
        raise invalid("The parameter RecentlyActive must be PT3H.")
    after = _after(asked.NextToken)
    queues: list[str] = []
    wanted = {one.Name: one.Value for one in asked.Dimensions}
    if asked.Namespace in (None, NAMESPACE) and wanted.keys() <= {DIMENSION}:
        name = wanted.get(DIMENSION)
        queues = [queue for queue in history.queues(account) if name is None or queue == name]
    listed = [
        (queue, metric)
        for queue in queues
        for metric in METRICS
        if asked.MetricName in (None, metric) and (queue, metric) > after
    ]
    answer: dict[str, Any] = {
        "Metrics": [
            {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": [{"Name": DIMENSION, "Value": queue}]}
            for queue, metric in listed[:LISTED_MAX]
        ]
    }
    if len(listed) > LISTED_MAX:
        answer["NextToken"] = base64.urlsafe_b64encode("/".join(listed[LISTED_MAX - 1]).encode()).decode()
    return answer


def _after(token: str | None) -> tuple[str, str]:
    if token is None:
        return "", ""
    try:
        queue, slash, metric = base64.urlsafe_b64decode(token.encode("ascii")).decode().partition("/")
    except (binascii.Error, UnicodeError):
        raise bad_token(token) from None
    if not slash:
        raise bad_token(token)
    return queue, metric


OPERATIONS: dict[str, Operation] = {
    "GetMetricData": get_metric_data,
    "GetMetricStatistics": get_metric_statistics,
    "ListMetrics": list_metrics,
}
