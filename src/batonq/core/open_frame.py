"""The frame that is being filled: rows and variable parts of many requests, sealed together by one group commit."""

from __future__ import annotations

from array import array

from batonq.core.records import FRAME_ROWS_MAX


class OpenFrame:
    """Rows are added with `add`. The position of a record is known at once, because the frame's number is.

    Before a frame grows too long for its log, `roll` finishes it, between two commands. Finished frames wait in front
    of the open one.
    """

    __slots__ = ("finished", "finished_bytes", "number", "parts", "rows", "variable_bytes")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.finished: list[tuple[array[int], bytes]] = []  # rows and variable section of each, oldest first
        self.finished_bytes = 0
        self.rows: array[int] = array("Q")
        self.parts: list[bytes] = []
        self.variable_bytes = 0

    @property
    def row_count(self) -> int:
        return len(self.rows) >> 3

    @property
    def filled(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.rows or self.finished)

    def heads(self) -> set[int]:
        """The first words of all rows that are not sealed yet."""
        heads = set(self.rows[0::8])
        for rows, _ in self.finished:
            heads.update(rows[0::8])
        return heads

    @property
    def size(self) -> int:
        return len(self.rows) * 8 + self.variable_bytes

    def put(self, variable: bytes) -> int:
        """Add a variable part; returns its w6, which several rows may share."""
        length = len(variable)
        if not length:
            return 0
        offset = self.variable_bytes
        self.parts.append(variable)
        self.variable_bytes = offset + length
        return offset | length << 32

    def add(self, w0: int, w1: int, w2: int, w3: int, w4: int, w5: int, w6: int, w7: int) -> int:
        """Add a row; returns its position."""
        rows = self.rows
        row = len(rows) >> 3
        assert row < FRAME_ROWS_MAX, "the host seals a frame before it is full"
        rows.extend((w0, w1, w2, w3, w4, w5, w6, w7))
        return self.number << 16 | row

    def extend(self, words: array[int]) -> None:
        """Add several rows at once."""
        self.rows += words
        assert len(self.rows) >> 3 <= FRAME_ROWS_MAX, "the host seals a frame before it is full"

    def roll(self) -> None:
        """Finish this frame, unless it is empty. Later rows go into the next frame."""
        if self.rows:
            self.finished.append((self.rows, b"".join(self.parts)))
            self.finished_bytes += self.size
            self.begin(self.number + 1)

    def take_finished(self) -> tuple[int, bytes, bytes]:
        """Remove the first finished frame; returns its number, rows and variable section."""
        number = self.number - len(self.finished)
        rows, variable = self.finished.pop(0)
        self.finished_bytes -= len(rows) * 8 + len(variable)
        return number, rows.tobytes(), variable

    def seal(self) -> tuple[bytes, bytes]:
        """Rows and variable section as stored. The caller has taken all finished frames before."""
        assert not self.finished
        return self.rows.tobytes(), b"".join(self.parts)

    def begin(self, number: int) -> None:
        self.number = number
        self.rows = array("Q")
        self.parts = []
        self.variable_bytes = 0
