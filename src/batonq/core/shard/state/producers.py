"""Idempotent producers: one entry per producer and queue.

A producer numbers its messages to a queue in ascending order, and sends one batch at a time. A number that is not above
the last accepted one is a duplicate. The entry also tells which messages the last numbers became, so that a retry of
the last batch gets the ids of its messages: number `last - i` became message `message - i`, for i below `run`.

An entry expires when its producer has been idle for a long time. Entries are in the order of their last use. Each new
entry sweeps the front by the times in the records, so that replay sweeps the same entries.
"""

from __future__ import annotations

import sys
from array import array
from typing import NamedTuple

RUN_MAX = 0xFFFF
_SEQUENCE_BITS = 48
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_MESSAGE_AT = 64
_RUN_AT = _MESSAGE_AT + _SEQUENCE_BITS
_EXPIRES_AT = _RUN_AT + 16
_MASK32 = 0xFFFFFFFF
_MASK64 = (1 << 64) - 1
_SWEEP = 3  # entries examined per entry written: more than one, so that the table shrinks


class Produced(NamedTuple):
    last: int  # the highest accepted number
    message: int  # the sequence of that number's message
    run: int  # how many numbers up to `last` became messages with consecutive sequences
    expires_s: int


class Producers:
    def __init__(self) -> None:
        self._entries: dict[int, int] = {}  # key hash → the four fields in one integer, in order of last use

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: int, now_s: int) -> Produced | None:
        packed = self._entries.get(key)
        if packed is None or packed >> _EXPIRES_AT <= now_s:
            return None
        return _unpack(packed)

    def full(self, now_s: int, entries_max: int) -> bool:
        """Whether there is no room for another producer. There is room if the oldest entry has expired, because it
        is then dropped.
        """
        if len(self._entries) < entries_max:
            return False
        return next(iter(self._entries.values())) >> _EXPIRES_AT > now_s

    def put(self, key: int, last: int, message: int, run: int, expires_s: int, now_s: int) -> None:
        entries = self._entries
        entries.pop(key, None)
        for _ in range(_SWEEP):
            oldest = next(iter(entries), 0)
            if not oldest or entries[oldest] >> _EXPIRES_AT > now_s:
                break
            del entries[oldest]
        entries[key] = last | message << _MESSAGE_AT | run << _RUN_AT | expires_s << _EXPIRES_AT

    def entries(self) -> list[tuple[int, Produced]]:
        """(key, entry) of all producers, least recently used first."""
        return [(key, _unpack(packed)) for key, packed in self._entries.items()]

    def save(self) -> dict[str, bytes]:
        words = array("Q")
        for key, packed in self._entries.items():
            words.extend((key, packed & _MASK64, packed >> _MESSAGE_AT & _MASK64, packed >> _EXPIRES_AT))
        if sys.byteorder == "big":
            words.byteswap()
        return {"entries": words.tobytes()}

    def load(self, sections: dict[str, bytes]) -> None:
        """Load the table. Without a section it is empty, as in logs and snapshots of older releases."""
        words = array("Q")
        words.frombytes(sections.get("entries", b""))
        if sys.byteorder == "big":
            words.byteswap()
        self._entries = {
            key: last | middle << _MESSAGE_AT | expires_s << _EXPIRES_AT
            for key, last, middle, expires_s in zip(words[0::4], words[1::4], words[2::4], words[3::4], strict=True)
        }

    def validate(self, next_sequence: int) -> None:
        for _, entry in self.entries():
            assert 0 < entry.message < next_sequence, "a producer's number became a message that was never sent"
            assert 0 < entry.run <= min(entry.last + 1, entry.message), "a producer's run is longer than its past"


def _unpack(packed: int) -> Produced:
    return Produced(
        packed & _MASK64,
        packed >> _MESSAGE_AT & _SEQUENCE_MASK,
        packed >> _RUN_AT & RUN_MAX,
        packed >> _EXPIRES_AT & _MASK32,
    )
