"""The history of a queue from the node's time series, whose older parts have coarser steps."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from batonq.api.cloudwatch.history import NodeHistory
from batonq.api.cloudwatch.metrics import Steps
from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller

NOW_MS = 1_700_000_007_000
STEPS = {"15m": (5, 180), "1h": (15, 240), "6h": (60, 360), "24h": (300, 288), "72h": (900, 288)}


class FakeRest:
    """A server on which one message per second has been sent for ever."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[str] = []
        self.callers: list[Caller] = []

    async def handle(self, request: Request, caller: Caller) -> Response:
        assert request.path == "/v1/queues/jobs.fifo/series" and request.method == "GET"
        (name,) = parse_qs(request.query)["range"]
        self.asked.append(name)
        self.callers.append(caller)
        step_s, count = STEPS[name]
        last = NOW_MS // (step_s * 1000) - 1
        start_ms = (last - count + 1) * step_s * 1000
        value = {"stepSeconds": step_s, "startAtMs": start_ms, "values": {"sent": [1.0] * count}, "marks": []}
        return Response(self.status, msgspec.json.encode(value))


def steps(rest: FakeRest, age_s: int) -> list[Steps]:
    broker: Any = SimpleNamespace(now_ms=lambda: NOW_MS)
    return asyncio.run(NodeHistory(broker, rest).steps("111122223333", "jobs.fifo", NOW_MS - age_s * 1000))


@pytest.mark.parametrize(("age_s", "ranges"), [(60, 1), (890, 1), (1_000, 2), (10_000, 3), (80_000, 4), (999_999, 5)])
def test_parts_follow_each_other_without_gap_or_overlap(age_s: int, ranges: int) -> None:
    rest = FakeRest()
    parts = steps(rest, age_s)
    assert rest.asked == list(STEPS)[:ranges] and len(parts) == ranges
    assert {(caller.account, caller.role) for caller in rest.callers} == {("111122223333", "read")}
    for newer, older in itertools.pairwise(parts):
        assert older.start_ms + len(older.values["sent"]) * older.step_ms == newer.start_ms
    covered_s = sum(len(part.values["sent"]) * part.step_ms for part in parts) / 1000
    assert covered_s >= min(age_s, 72 * 3600 - 900) - 10


def test_a_queue_that_does_not_exist_has_no_history() -> None:
    assert steps(FakeRest(404), 60) == []
