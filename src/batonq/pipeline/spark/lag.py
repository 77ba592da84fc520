"""How far a streaming query is behind, from its progress: `query.lastProgress`, or the progress of a listener's event.

Spark has no custom metrics for sources written in Python, but it reports each source's offsets. The difference between
`latestOffset`, where the log or the queue ends, and `endOffset`, up to which the query has read, is the lag.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from batonq.errors import LogGap
from batonq.pipeline.reading.history import History, open_history

MESSAGES = "messages"  # the offset of read=messages: {"messages": number}


class ShardLag(NamedTuple):
    shard: int
    frames: int  # not read yet
    seconds: float | None  # age of the oldest frame that is not read yet; 0 if all are read; None: no url was given


def history_lag(
    progress: Mapping[str, Any] | None,
    url: str = "",
    *,
    access_key: str = "",
    secret_key: str = "",
    clock: Callable[[], float] = time.time,
) -> list[ShardLag]:
    """The lag of a stream of history or of a replay, per shard. Empty if the query has made no progress yet.

    Seconds need the url of the history: the time of one frame is read from each shard that is behind. `url` and the
    keys are those of the stream.
    """
    history = open_history(url, access_key=access_key, secret_key=secret_key) if url else None
    found = []
    for end, latest in _offsets(progress):
        for shard in sorted(end.keys() & latest.keys() - {MESSAGES}, key=int):
            frames = max(latest[shard] - end[shard], 0)
            seconds = None
            if history is not None:
                seconds = max(clock() - _time_s(history, int(shard), end[shard]), 0.0) if frames else 0.0
            found.append(ShardLag(int(shard), frames, seconds))
    return found


def messages_lag(progress: Mapping[str, Any] | None) -> int:
    """Visible messages that a stream with read=messages has not received yet."""
    offsets = [(end, latest) for end, latest in _offsets(progress) if MESSAGES in end and MESSAGES in latest]
    return sum(max(latest[MESSAGES] - end[MESSAGES], 0) for end, latest in offsets)


def _offsets(progress: Mapping[str, Any] | None) -> list[tuple[dict[str, int], dict[str, int]]]:
    """The end offset and the latest offset of each of Baton's sources."""
    sources = progress["sources"] if progress else ()
    pairs = [(_offset(source["endOffset"]), _offset(source["latestOffset"])) for source in sources]
    return [(end, latest) for end, latest in pairs if end and latest]


def _offset(given: Any) -> dict[str, int]:
    """An offset of Baton's; empty if it is another source's. Spark has it as JSON or as an object."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(value, int) for value in found.values()):
        return {}
    return {name: value for name, value in found.items() if name.isdigit() or name == MESSAGES}


def _time_s(history: History, shard: int, number: int) -> float:
    """The time of a frame; of the first one that is retained, if that frame is not."""
    try:
        return history.time_ms(shard, number) / 1000
    except LogGap:
        first = next(span.first for span in history.shards() if span.shard == shard)
        return history.time_ms(shard, first) / 1000
