"""A log in memory whose appends a test can hold back and fail."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from batonq.errors import DiskFull, Fenced, LogCorrupt, LogError, LogGap
from batonq.log.frames import NO_DIGEST, VARIABLE_BYTES_MAX, Frame
from batonq.log.interface import Done, Piece, Room, SegmentInfo


class MemorySegment:
    __slots__ = ("bytes", "first", "frames", "sealed")

    def __init__(self, first: int) -> None:
        self.first = first
        self.frames: list[Frame] = []
        self.bytes = 0
        self.sealed = False

    @property
    def stop(self) -> int:
        return self.first + len(self.frames)

    @property
    def first_time_ms(self) -> int:
        return self.frames[0].time_ms if self.frames else 0

    @property
    def last_time_ms(self) -> int:
        return self.frames[-1].time_ms if self.frames else 0


class MemoryLog:
    """See interface.Log.

    With `hold` set, an append stays in progress until `release` commits or fails it, so that a test decides when.
    `fail_next` fails the next append. Beyond 90% of `bytes_max` only the reserve is left.
    """

    far = False

    def __init__(
        self,
        shard: int,
        *,
        segment_bytes: int = 1 << 20,
        bytes_max: int = 1 << 30,
        frame_bytes_max: int = VARIABLE_BYTES_MAX,
    ) -> None:
        self.shard = shard
        self.frame_bytes_max = frame_bytes_max
        self.next = 1
        self.tail_digest = NO_DIGEST
        self.tail_epoch = 0
        self.hold = False
        self.fail_next: LogError | DiskFull | None = None
        self._segment_bytes = segment_bytes
        self._bytes_max = bytes_max
        self._bytes = 0
        self._segments = [MemorySegment(1)]
        self._pending: tuple[Frame, Done] | None = None
        self._failed: BaseException | None = None

    @property
    def first(self) -> int:
        return self._segments[0].first

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        if self._pending is not None:
            raise AssertionError("one append at a time")
        if frame.number != self.next or frame.previous_digest != self.tail_digest:
            raise AssertionError(f"frame {frame.number} does not follow frame {self.next - 1}")
        if self._failed is not None:
            done(LogError(f"the log accepts nothing more until it is reopened: {self._failed}"))
            return
        if frame.epoch < self.tail_epoch:
            done(Fenced(f"epoch {frame.epoch} has ended: the log of shard {self.shard} is at epoch {self.tail_epoch}"))
            return
        self._pending = (frame, done)
        if not self.hold:
            full = self._bytes + frame.size > self._bytes_max
            self.release(self.fail_next or (DiskFull() if full else None))

    def release(self, error: BaseException | None = None) -> None:
        """Commit the append in progress, or fail it."""
        assert self._pending is not None
        frame, done = self._pending
        self._pending = None
        if error is not None:
            self._failed = error
            done(error)
            return
        segment = self._segments[-1]
        if segment.frames and segment.bytes + frame.size > self._segment_bytes:
            segment.sealed = True
            segment = MemorySegment(frame.number)
            self._segments.append(segment)
        segment.frames.append(frame)
        segment.bytes += frame.size
        self._bytes += frame.size
        self.next = frame.number + 1
        self.tail_digest = frame.digest
        self.tail_epoch = frame.epoch
        done(None)

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        stop = self.next if stop is None else min(stop, self.next)
        if start < self.first or start > self.next:
            raise self._gap(start)
        return (self.frame(number) for number in range(start, stop))

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        number = position >> 16
        variable = self.frame(number).variable
        if offset + length > len(variable):
            raise LogCorrupt(
                f"shard {self.shard}: a record refers to bytes {offset} to {offset + length} of frame "
                f"{number}, which has {len(variable)}"
            )
        return variable[offset : offset + length]

    def section(self, number: int) -> bytes | None:
        return self.frame(number).variable

    def is_cold(self, number: int) -> bool:
        return False

    def warm(self, numbers: Sequence[int]) -> None:
        pass

    def frame(self, number: int) -> Frame:
        if not self.first <= number < self.next:
            raise self._gap(number)
        at = self._segment_at(number)
        return self._segments[at].frames[number - self._segments[at].first]

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        parts = [self.frame(start)]
        size = parts[0].size
        for number in range(start + 1, min(self.next, start + frames_max)):
            frame = self.frame(number)
            size += frame.size
            if size > bytes_max:
                break
            parts.append(frame)
        data = b"".join(part for frame in parts for part in (frame.header, frame.rows, frame.variable))
        return Piece(start, start + len(parts), lambda: data)

    def room(self) -> Room:
        if self._bytes < self._bytes_max - self._bytes_max // 10:
            return Room.PLENTY
        return Room.RESERVE if self._bytes < self._bytes_max - self._bytes_max // 100 else Room.NONE

    def bytes_retained(self) -> int:
        return self._bytes

    def segments(self) -> list[SegmentInfo]:
        return list(self._segments)

    def droppable(self, before: int) -> int:
        return self._segments[self._segment_at(before)].first

    def drop_front(self, before: int) -> None:
        at = self._segment_at(before)
        self._bytes -= sum(segment.bytes for segment in self._segments[:at])
        del self._segments[:at]

    def note(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        self._failed = LogError("the log is closed")

    def _segment_at(self, number: int) -> int:
        """The segment of a frame; the first or last one for numbers outside."""
        at = bisect_right(self._segments, number, key=lambda segment: segment.first) - 1
        return max(at, 0)

    def _gap(self, number: int) -> LogGap:
        return LogGap(
            f"shard {self.shard}: frame {number} is not in the log, which has {self.first} to {self.next - 1}"
        )
