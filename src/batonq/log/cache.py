"""Bounded caches of variable sections: those of the newest frames, and those of old frames that were read recently."""

from __future__ import annotations

from collections import OrderedDict, deque

ENTRY_BYTES = 160  # overhead per entry; it limits the number of empty ones


class FreshCache:
    """The newest frames' variable sections: most messages are read soon after they were written."""

    __slots__ = ("_bytes", "_bytes_max", "_order", "get", "sections")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[int] = deque()
        self.sections: dict[int, bytes] = {}
        self.get = self.sections.get

    def put(self, number: int, variable: bytes) -> None:
        self.sections[number] = variable
        self._order.append(number)
        self._bytes += len(variable) + ENTRY_BYTES
        while self._bytes > self._bytes_max and self._order:
            self._bytes -= len(self.sections.pop(self._order.popleft())) + ENTRY_BYTES


class ReadCache:
    """Variable sections of old frames, evicted least recently used first: neighbours are read together."""

    __slots__ = ("_bytes", "_bytes_max", "_sections")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sections: OrderedDict[int, bytes] = OrderedDict()

    def get(self, number: int) -> bytes | None:
        variable = self._sections.get(number)
        if variable is not None:
            self._sections.move_to_end(number)
        return variable

    def put(self, number: int, variable: bytes) -> None:
        self._sections[number] = variable
        self._bytes += len(variable) + ENTRY_BYTES
        while self._bytes > self._bytes_max and self._sections:
            _, dropped = self._sections.popitem(last=False)
            self._bytes -= len(dropped) + ENTRY_BYTES
