"""The retained history of a queue on one shard: where the record of each retained message is in the log.

An entry is the log position of a message's Sent or Arrived record and the time of that record, 12 bytes in all. The
record itself has the message's sequence, time and payload. Entries are added in the order of the log. An entry ends
when it is older than the queue's `retainSeconds`; this writes no record, because the time in the log implies it.

What happens to a message after it entered the queue does not change its entry: edits, deletes and purges leave the
retained history as it is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

CHUNK = 4096  # entries per chunk: the oldest ones are dropped by the chunk
NOTHING = (1 << 64) - 1  # above every log position


class _Chunk:
    __slots__ = ("needs", "positions", "times")

    def __init__(self) -> None:
        self.positions = array("Q")
        self.times = array("I")  # in seconds, rounded up
        self.needs = NOTHING  # the lowest position of a payload that an entry shares with an older message


class Retained:
    """Entries of one queue, oldest first. All chunks but the last are full, so that an entry is found by its index."""

    __slots__ = ("_chunks", "_start", "retain_ms")

    def __init__(self, retain_ms: int) -> None:
        self.retain_ms = retain_ms
        self._chunks: list[_Chunk] = []
        self._start = 0  # entries of the first chunk that have ended

    def __len__(self) -> int:
        if not self._chunks:
            return 0
        return (len(self._chunks) - 1) * CHUNK + len(self._chunks[-1].positions) - self._start

    # --- adding and ending ----------------------------------------------------------------------------

    def append(self, position: int, time_ms: int, payload_position: int = NOTHING) -> None:
        """Add a message. `payload_position` is where its payload is, if that is not in the message's own record."""
        chunk = self._open_chunk()
        chunk.positions.append(position)
        chunk.times.append(-(-time_ms // 1000))
        if payload_position < chunk.needs:
            chunk.needs = payload_position

    def extend(self, positions: Sequence[int], time_ms: int) -> None:
        """Add messages of one time. Their payloads are in their own records."""
        time_s, at = -(-time_ms // 1000), 0
        while at < len(positions):
            chunk = self._open_chunk()
            some = positions[at : at + CHUNK - len(chunk.positions)]
            chunk.positions.extend(some)
            chunk.times.extend(array("I", (time_s,)) * len(some))
            at += len(some)

    def _open_chunk(self) -> _Chunk:
        if not self._chunks or len(self._chunks[-1].positions) == CHUNK:
            if self._chunks:
                full = self._chunks[-1]  # without the room that an array keeps to grow
                full.positions, full.times = array("Q", full.positions), array("I", full.times)
            self._chunks.append(_Chunk())
        return self._chunks[-1]

    def end_old(self, now_ms: int) -> None:
        """Drop the entries whose retention has ended."""
        ended_s = (now_ms - self.retain_ms) // 1000
        self._drop_chunks(lambda chunk: chunk.times[-1] <= ended_s)
        if self._chunks:
            self._start = bisect_right(self._chunks[0].times, ended_s, self._start)

    def drop_below(self, position: int) -> None:
        """Drop the entries below a log position."""
        self._drop_chunks(lambda chunk: chunk.positions[-1] < position)
        if self._chunks:
            self._start = bisect_left(self._chunks[0].positions, position, self._start)

    def _drop_chunks(self, ended: Callable[[_Chunk], bool]) -> None:
        """Drop the chunks at the front that have ended as a whole."""
        whole = sum(1 for _ in takewhile(ended, self._chunks))
        if whole:
            del self._chunks[:whole]
            self._start = 0

    # --- finding -------------------------------------------------------------------------------------

    def index_after(self, position: int) -> int:
        """The index of the first entry above a log position; the number of entries if there is none."""
        at = bisect_right(self._chunks, position, key=_first_position) - 1
        if at < 0:
            return 0
        return max(at * CHUNK + bisect_right(self._chunks[at].positions, position) - self._start, 0)

    def index_at_time(self, time_ms: int) -> int:
        """The index of the first entry of this time or later, in whole seconds; the number of entries if there is
        none.
        """
        time_s = -(-time_ms // 1000)
        at = bisect_left(self._chunks, time_s, key=_last_time)
        if at == len(self._chunks):
            return len(self)
        return max(at * CHUNK + bisect_left(self._chunks[at].times, time_s) - self._start, 0)

    def count_after(self, position: int) -> int:
        """How many entries are above a log position."""
        return len(self) - self.index_after(position)

    def has(self, position: int) -> bool:
        index = self.index_after(position)
        return index > 0 and self.position_at(index - 1) == position

    def position_at(self, index: int) -> int:
        chunk, at = divmod(index + self._start, CHUNK)
        return self._chunks[chunk].positions[at]

    def time_at(self, index: int) -> int:
        """The time of an entry in milliseconds, rounded up to a second."""
        chunk, at = divmod(index + self._start, CHUNK)
        return self._chunks[chunk].times[at] * 1000

    def positions(self, index: int, limit: int) -> array[int]:
        """The positions of at most `limit` entries from an index on."""
        found = array("Q")
        flat, stop = index + self._start, min(index + limit, len(self)) + self._start
        while flat < stop:
            chunk, at = divmod(flat, CHUNK)
            some = self._chunks[chunk].positions[at : at + stop - flat]
            found += some
            flat += len(some)
        return found

    @property
    def first(self) -> int:
        """The position of the oldest entry; NOTHING without entries."""
        return self.position_at(0) if len(self) else NOTHING

    @property
    def last(self) -> int:
        """The position of the newest entry; 0 without entries."""
        return self._chunks[-1].positions[-1] if len(self) else 0

    def front(self) -> int:
        """The lowest log position that the entries need; NOTHING without entries. It may be a little too low."""
        return min([self.first, *(chunk.needs for chunk in self._chunks)]) if len(self) else NOTHING

    # --- snapshots and checks --------------------------------------------------------------------------

    def facts(self) -> list[Any]:
        return [self._start, [chunk.needs for chunk in self._chunks]]

    def save(self) -> dict[str, bytes]:
        return {
            "positions": b"".join(chunk.positions.tobytes() for chunk in self._chunks),
            "times": b"".join(chunk.times.tobytes() for chunk in self._chunks),
        }

    def load(self, facts: Sequence[Any], sections: dict[str, bytes]) -> None:
        positions, times = array("Q", sections["positions"]), array("I", sections["times"])
        self._start, needs = facts
        self._chunks = []
        for at, lowest in zip(range(0, len(positions), CHUNK), needs, strict=True):
            chunk = _Chunk()
            chunk.positions, chunk.times = positions[at : at + CHUNK], times[at : at + CHUNK]
            chunk.needs = lowest
            self._chunks.append(chunk)

    def entries(self) -> list[tuple[int, int]]:
        """All entries as (position, time in seconds), for comparisons in tests."""
        pairs = [pair for chunk in self._chunks for pair in zip(chunk.positions, chunk.times, strict=True)]
        return pairs[self._start :]

    def validate(self) -> None:
        positions = [position for position, _ in self.entries()]
        times = [time for _, time in self.entries()]
        assert positions == sorted(set(positions)), "retained messages are out of order"
        assert times == sorted(times), "the times of retained messages are out of order"
        assert all(len(chunk.positions) == len(chunk.times) for chunk in self._chunks), "a retained message has no time"
        assert all(len(chunk.positions) == CHUNK for chunk in self._chunks[:-1]), "retained messages have a gap"
        assert not self._chunks or self._start < len(self._chunks[0].positions), "an empty chunk is kept"
        assert len(positions) == len(self), "retained messages are miscounted"


def _first_position(chunk: _Chunk) -> int:
    return chunk.positions[0]


def _last_time(chunk: _Chunk) -> int:
    return chunk.times[-1]


def front_of(retained: Iterable[Retained], now_ms: int) -> int:
    """The lowest log position that any of these needs now; NOTHING if none needs any."""
    lowest = NOTHING
    for one in retained:
        one.end_old(now_ms)
        lowest = min(lowest, one.front())
    return lowest
