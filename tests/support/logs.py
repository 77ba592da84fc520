"""Frames and appends for tests of logs."""

from __future__ import annotations

from array import array

from batonq.core.records import Type, word0
from batonq.log import frames
from batonq.log.frames import Frame
from batonq.log.interface import Log

CLUSTER = 0xC0FFEE0123456789


def rows(count: int, sequence: int = 1, time_ms: int = 1_000) -> bytes:
    words = array("Q")
    for row in range(count):
        words.extend((word0(Type.SENT, 0, 0, 0, 7), sequence + row, time_ms, time_ms, 0, 0, 0, 0))
    return words.tobytes()


def make_frame(
    number: int,
    previous_digest: bytes,
    *,
    shard: int = 0,
    epoch: int = 1,
    count: int = 1,
    variable: bytes = b"",
    time_ms: int | None = None,
    cluster: int = CLUSTER,
) -> Frame:
    time_ms = 1_000 * number if time_ms is None else time_ms
    return frames.build(
        cluster=cluster,
        region=0,
        shard=shard,
        epoch=epoch,
        number=number,
        time_ms=time_ms,
        previous_digest=previous_digest,
        rows=rows(count, number, time_ms),
        variable=variable,
    )


def next_frame(log: Log, variable: bytes = b"", *, count: int = 1, epoch: int | None = None) -> Frame:
    return make_frame(
        log.next,
        log.tail_digest,
        shard=log.shard,
        epoch=log.tail_epoch or 1 if epoch is None else epoch,
        count=count,
        variable=variable,
    )


def append(log: Log, variable: bytes = b"", *, count: int = 1, epoch: int | None = None) -> Frame:
    """Append one frame and make sure that it was committed inline."""
    frame = next_frame(log, variable, count=count, epoch=epoch)
    outcomes: list[BaseException | None] = []
    log.append(frame, outcomes.append)
    assert outcomes == [None], outcomes
    return frame
