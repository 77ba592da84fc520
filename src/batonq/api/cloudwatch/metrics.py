"""The metrics of AWS/SQS that Baton has, and where each one is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from batonq.api.cloudwatch.statistics import Sample

NAMESPACE = "AWS/SQS"
DIMENSION = "QueueName"


class MetricKind(NamedTuple):
    unit: str
    series: str  # name in the node's own time series
    is_rate: bool  # a rate per second there, a number of messages here
    per: str = ""  # the rate that it is divided by: a sample is then an average, and counts as often as that number


METRICS: Mapping[str, MetricKind] = {
    "ApproximateAgeOfOldestMessage": MetricKind("Seconds", "oldestSeconds", False),
    "ApproximateNumberOfMessagesDelayed": MetricKind("Count", "delayed", False),
    "ApproximateNumberOfMessagesNotVisible": MetricKind("Count", "inFlight", False),
    "ApproximateNumberOfMessagesVisible": MetricKind("Count", "visible", False),
    "NumberOfEmptyReceives": MetricKind("Count", "emptyReceives", True),
    "NumberOfMessagesDeleted": MetricKind("Count", "acked", True),
    "NumberOfMessagesReceived": MetricKind("Count", "received", True),
    "NumberOfMessagesSent": MetricKind("Count", "sent", True),
    "SentMessageSize": MetricKind("Bytes", "sentBytes", True, per="sent"),
}


class Steps(NamedTuple):
    """Values of one queue at equal steps; None: nothing is known of that step."""

    start_ms: int
    step_ms: int
    values: Mapping[str, Sequence[float | None]]


class QueueHistory(Protocol):
    """What the API reads. The node implements it."""

    def now_ms(self) -> int: ...

    def queues(self, account: str) -> list[str]:
        """The names of an account's queues, sorted."""
        ...

    async def steps(self, account: str, queue: str, start_ms: int) -> list[Steps]:
        """The history since `start_ms`, or as much of it as there is: parts that do not overlap. Empty if there is no
        such queue.
        """
        ...

    async def now(self, account: str, queue: str) -> Mapping[str, float]:
        """The current depths and age, by the names of the series. Empty if there is no such queue."""
        ...


async def samples(history: QueueHistory, account: str, queue: str, name: str, start_ms: int) -> list[Sample]:
    """The samples of a metric. The newest sample of a depth or an age is the current one, so a queue that has just
    been filled is seen at once.
    """
    kind = METRICS[name]
    found: list[Sample] = []
    for part in await history.steps(account, queue, start_ms):
        if kind.per:
            found += _averages(part, kind)
            continue
        step_s = part.step_ms / 1000
        found += [
            Sample(part.start_ms + at * part.step_ms, round(value * step_s) if kind.is_rate else value)
            for at, value in enumerate(part.values.get(kind.series, ()))
            if value is not None
        ]
    if not kind.is_rate:
        current = await history.now(account, queue)
        if kind.series in current:
            found.append(Sample(history.now_ms(), current[kind.series]))
    return found


def _averages(part: Steps, kind: MetricKind) -> list[Sample]:
    """One sample for each step in which there was something to take the average of."""
    step_s = part.step_ms / 1000
    found: list[Sample] = []
    columns = part.values.get(kind.series, ()), part.values.get(kind.per, ())
    for at, (total, count) in enumerate(zip(*columns, strict=True)):
        number = round((count or 0.0) * step_s)
        if total is not None and number > 0:
            found.append(Sample(part.start_ms + at * part.step_ms, round(total * step_s) / number, number))
    return found
