"""The frame that is being filled: rows and variable parts of many requests, sealed together by one group commit."""

from __future__ import annotations

from array import array

from batonq.core.records import FRAME_ROWS_MAX


class OpenFrame:
    """Rows go in by `add`; the position of a record is known at once, because the frame's number is."""

    __slots__ = ("number", "parts", "rows", "variable_bytes")

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.rows: array[int] = array("Q")
        self.parts: list[bytes] = []
        self.variable_bytes = 0

    @property
    def row_count(self) -> int:
        return len(self.rows) >> 3

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

    def seal(self) -> tuple[bytes, bytes]:
        """Rows and variable section as they are stored."""
        return self.rows.tobytes(), b"".join(self.parts)

    def begin(self, number: int) -> None:
        self.number = number
        self.rows = array("Q")
        self.parts = []
        self.variable_bytes = 0
