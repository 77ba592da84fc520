"""Who sends: a producer id, and numbers that rise with every message.

A queue takes a producer's message only if its number is above the last one it took from that producer, so a request
that is sent twice makes its messages once. That holds as long as a producer has one request under way at a time and
nobody else uses its id. So each request borrows a producer and gives it back when it is over, and a process that forks
gets new ids.
"""

from __future__ import annotations

import os
import threading
from heapq import heappop, heappush
from itertools import count

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Producers:
    """The producers of one client, as many as it has requests under way, and one line of numbers for all of them."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._forks = _forks
        self._lock = threading.Lock()
        self._name = os.urandom(8).hex()
        self._made = count()
        self._free: list[int] = []  # the same few are used again and again: the server remembers each for days
        self._next = 1

    def borrow(self) -> str:
        """The id of a producer that nobody else uses; give it back."""
        if self._forks != _forks:
            self._begin()  # the parent goes on with the old ones
        with self._lock:
            return f"{self._name}.{heappop(self._free) if self._free else next(self._made)}"

    def take(self, numbers: int) -> int:
        """The first of so many numbers that nobody else gets."""
        with self._lock:
            first = self._next
            self._next += numbers
        return first

    def give_back(self, producer: str) -> None:
        name, _, number = producer.partition(".")
        with self._lock:
            if name == self._name:
                heappush(self._free, int(number))
