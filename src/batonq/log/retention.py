"""How much history a log keeps: a decision about segments, apart from carrying it out."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.log.interface import SegmentInfo


def history_start(
    segments: Sequence[SegmentInfo], *, now_ms: int, keep_ms: int | None = None, keep_bytes: int | None = None
) -> int:
    """The first frame that history retention wants to keep; all below it lie in whole sealed segments.

    A segment may go when its newest frame is older than `keep_ms`, or when it and what follows it is more than
    `keep_bytes`. None means no limit of that kind. Messages that live in what goes must be carried forward first.
    """
    if not segments:
        return 1
    retained = sum(segment.bytes for segment in segments)
    start = segments[0].first
    for segment in segments:
        too_old = keep_ms is not None and segment.last_time_ms < now_ms - keep_ms
        too_large = keep_bytes is not None and retained > keep_bytes
        if not segment.sealed or not (too_old or too_large):
            break
        retained -= segment.bytes
        start = segment.stop
    return start
