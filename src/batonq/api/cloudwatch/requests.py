"""The requests of the API, with its own names, from the neutral form that all three protocols are decoded to."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from batonq.api.cloudwatch.cbor import Timestamp
from batonq.api.cloudwatch.errors import invalid, missing

QUERIES_MAX = 500
DATAPOINTS_MAX = 100_800  # of GetMetricData
STATISTICS_DATAPOINTS_MAX = 1_440  # of GetMetricStatistics
DIMENSIONS_MAX = 30
T = TypeVar("T")

Text = Annotated[str, Meta(max_length=1024)]
PeriodSeconds = Annotated[int, Meta(ge=1, le=86_400)]


class Dimension(Struct):
    Name: Text = ""
    Value: Text | None = None


DimensionList = Annotated[list[Dimension], Meta(max_length=DIMENSIONS_MAX)]


class MetricIdentity(Struct):
    Namespace: Text = ""
    MetricName: Text = ""
    Dimensions: DimensionList = []


class StatQuery(Struct):
    Metric: MetricIdentity
    Period: PeriodSeconds
    Stat: Text
    Unit: Text = ""


class MetricDataQuery(Struct):
    Id: Annotated[str, Meta(pattern=r"^[a-z][a-zA-Z0-9_]{0,254}$")]
    MetricStat: StatQuery | None = None
    Expression: Text | None = None
    Label: Text | None = None
    ReturnData: bool = True
    Period: PeriodSeconds | None = None


class GetMetricData(Struct):
    MetricDataQueries: Annotated[list[MetricDataQuery], Meta(min_length=1, max_length=QUERIES_MAX)]
    StartTime: Any
    EndTime: Any
    NextToken: Text | None = None
    ScanBy: Text = "TimestampDescending"
    MaxDatapoints: Annotated[int, Meta(ge=1, le=DATAPOINTS_MAX)] = DATAPOINTS_MAX


class GetMetricStatistics(Struct):
    Namespace: Text
    MetricName: Text
    StartTime: Any
    EndTime: Any
    Period: PeriodSeconds
    Dimensions: DimensionList = []
    Statistics: Annotated[list[Text], Meta(max_length=5)] = []
    ExtendedStatistics: Annotated[list[Text], Meta(max_length=10)] = []
    Unit: Text = ""


class ListMetrics(Struct):
    Namespace: Text | None = None
    MetricName: Text | None = None
    Dimensions: DimensionList = []
    NextToken: Text | None = None
    RecentlyActive: Text | None = None


_MISSING = re.compile(r"missing required field `(\w+)`")


def read(shape: type[T], given: Any) -> T:
    """Raises CloudWatchError for a request that is not valid."""
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as problem:
        found = _MISSING.search(str(problem))
        if found:
            raise missing(found[1]) from None
        raise invalid(f"The request is not valid: {problem}.") from None


def time_ms(name: str, value: Any) -> int:
    """A time of a request, in milliseconds: seconds since 1970, or ISO 8601."""
    if isinstance(value, Timestamp):
        value = value.seconds
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                raise invalid(f"The parameter {name} must be a time in ISO 8601, not {value[:40]!r}.") from None
        else:
            value = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise invalid(f"The parameter {name} must be a time in seconds since 1970, not {str(value)[:40]!r}.")
    return round(value * 1000)


def span_ms(start: Any, end: Any) -> tuple[int, int]:
    start_ms, end_ms = time_ms("StartTime", start), time_ms("EndTime", end)
    if start_ms >= end_ms:
        raise invalid("The parameter StartTime must be less than the parameter EndTime.")
    return start_ms, end_ms


def queue_of(metric_name: str, dimensions: list[Dimension]) -> str:
    """The queue that a metric is about: its only dimension is QueueName. Empty: there is no such metric."""
    if len(dimensions) != 1 or dimensions[0].Name != "QueueName" or not metric_name:
        return ""
    return dimensions[0].Value or ""
