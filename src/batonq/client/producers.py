"""Producer ids and increasing message numbers.

A queue stores a producer's message only if its number is above the last one from that producer, so a repeated request
does not store its messages twice. This requires that a producer has one request at a time and that nobody else uses its
id. So each request borrows a producer and returns it afterwards, and a forked process gets new ids.
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
    """The producers of one client, one per request in progress, with one sequence of numbers for all of them."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._forks = _forks
        self._lock = threading.Lock()
        self._name = os.urandom(8).hex()
        self._made = count()
        self._free: list[int] = []  # ids are reused, because the server remembers each for days
        self._next = 1

    def borrow(self) -> str:
        """The id of a producer that is not in use; return it with `give_back`."""
        if self._forks != _forks:
            self._begin()  # the parent continues to use the old ids
        with self._lock:
            return f"{self._name}.{heappop(self._free) if self._free else next(self._made)}"

    def take(self, numbers: int) -> int:
        """Reserve consecutive numbers and return the first."""
        with self._lock:
            first = self._next
            self._next += numbers
        return first

    def give_back(self, producer: str) -> None:
        name, _, number = producer.partition(".")
        with self._lock:
            if name == self._name:
                heappush(self._free, int(number))
