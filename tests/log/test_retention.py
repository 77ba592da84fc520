"""How much history is kept."""

from __future__ import annotations

import pytest

from batonq.log.memory import MemoryLog
from batonq.log.retention import history_start
from tests.support.logs import append


@pytest.fixture
def log() -> MemoryLog:
    """Segments of five frames; frame n has time 1,000 n."""
    log = MemoryLog(0, segment_bytes=5 * 144)
    for _ in range(23):
        append(log)
    assert [(segment.first, segment.stop) for segment in log.segments()] == [
        (1, 6),
        (6, 11),
        (11, 16),
        (16, 21),
        (21, 24),
    ]
    return log


def test_without_limits_everything_is_kept(log: MemoryLog) -> None:
    assert history_start(log.segments(), now_ms=10**12) == 1


@pytest.mark.parametrize(
    ("now_ms", "keep_ms", "start"),
    [
        (23_000, 18_000, 1),  # the newest frame of the first segment is exactly as old as allowed
        (23_001, 18_000, 6),
        (23_000, 10_000, 11),
        (23_000, 0, 21),
        (10**12, 0, 21),  # what is being written is never dropped
    ],
)
def test_by_time(log: MemoryLog, now_ms: int, keep_ms: int, start: int) -> None:
    assert history_start(log.segments(), now_ms=now_ms, keep_ms=keep_ms) == start


@pytest.mark.parametrize(
    ("keep_bytes", "start"), [(23 * 144, 1), (23 * 144 - 1, 6), (13 * 144, 11), (13 * 144 - 1, 16), (0, 21)]
)
def test_by_bytes(log: MemoryLog, keep_bytes: int, start: int) -> None:
    assert history_start(log.segments(), now_ms=23_000, keep_bytes=keep_bytes) == start


def test_the_tighter_limit_counts(log: MemoryLog) -> None:
    segments = log.segments()
    assert history_start(segments, now_ms=23_001, keep_ms=18_000, keep_bytes=13 * 144) == 11
    assert history_start(segments, now_ms=23_000, keep_ms=5_000, keep_bytes=23 * 144) == 16


def test_what_it_says_can_be_dropped(log: MemoryLog) -> None:
    start = history_start(log.segments(), now_ms=23_000, keep_ms=10_000)
    assert log.droppable(start) == start
    log.drop_front(start)
    assert log.first == start


def test_an_empty_log() -> None:
    assert history_start(MemoryLog(0).segments(), now_ms=0, keep_ms=0, keep_bytes=0) == 1
    assert history_start([], now_ms=0, keep_ms=0) == 1
