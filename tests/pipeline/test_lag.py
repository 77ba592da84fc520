"""How far a stream is behind, from what Spark says of its progress: plain Python, without a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batonq.pipeline.reading.history import open_history
from batonq.pipeline.spark.lag import ShardLag, history_lag, messages_lag
from tests.pipeline.history_support import archive


def progress(*offsets: tuple[Any, Any]) -> dict[str, Any]:
    return {"sources": [{"endOffset": end, "latestOffset": latest} for end, latest in offsets]}


def test_frames_behind_per_shard() -> None:
    """As JSON or as objects: Spark has both. Other sources of the query do not count."""
    end, latest = {"10": 5, "2": 7}, {"2": 7, "10": 25, "11": 3}
    for one in (progress((end, latest)), progress((json.dumps(end), json.dumps(latest)), ("17", "19"), (None, None))):
        assert history_lag(one) == [ShardLag(2, 0, None), ShardLag(10, 20, None)]
    assert history_lag(progress(({"2": 7}, {"2": 3}))) == [ShardLag(2, 0, None)]  # an archive behind its node
    kafka = progress(({"orders": {"0": 5}}, {"orders": {"0": 9}}))
    assert history_lag(kafka) == history_lag(None) == [] and messages_lag(kafka) == messages_lag(None) == 0


def test_messages_behind() -> None:
    one = progress(({"messages": 40}, {"messages": 47}), ({"0": 1}, {"0": 9}))
    assert messages_lag(one) == 7
    assert history_lag(one) == [ShardLag(0, 8, None)]
    assert messages_lag(progress(({"messages": 40}, None))) == 0


def test_seconds_are_the_age_of_the_oldest_frame_that_is_not_read(busy_logs: str) -> None:
    first, second = open_history(busy_logs).shards()
    (frame,) = open_history(busy_logs).frames(0, 20, 21)
    end, latest = {"0": 20, "1": second.next}, {"0": first.next, "1": second.next}
    lag = history_lag(progress((end, latest)), busy_logs, clock=lambda: frame.time_ms / 1000 + 90)
    assert [one._replace(seconds=round(one.seconds or 0)) for one in lag] == [
        ShardLag(0, first.next - 20, 90),
        ShardLag(1, 0, 0),
    ]


def test_seconds_when_the_next_frame_was_deleted(busy_logs: str, tmp_path: Path) -> None:
    """Those of the first retained frame: a watch on the lag does not fail."""
    archive(busy_logs, f"file://{tmp_path}", frames_a_segment=100)
    sorted(tmp_path.glob("shard-0000/manifest-*.json"))[0].unlink()
    (frame,) = open_history(busy_logs).frames(0, 101, 102)
    lag = history_lag(progress(({"0": 20}, {"0": 300})), f"file://{tmp_path}", clock=lambda: frame.time_ms / 1000 + 5)
    assert [one._replace(seconds=round(one.seconds or 0)) for one in lag] == [ShardLag(0, 280, 5)]
