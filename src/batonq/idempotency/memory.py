"""Claims in this process's memory: for tests, and for single-process workers that need no claims after a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from batonq.idempotency.store import Claim, ClaimState, Place, Store, Turn

P = ParamSpec("P")
T = TypeVar("T")

_SWEEP_EVERY = 1024  # number of claims between two sweeps of expired ones


class _Row(NamedTuple):
    owner: str
    done: bool
    until: float
    result: bytes | None


class _Line(NamedTuple):
    last: int
    owner: str  # "": no turn is taken
    until: float


class MemoryStore(Store):
    """`clock` returns seconds; a test may set it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._lines: dict[str, _Line] = {}
        self._until_sweep = _SWEEP_EVERY

    def after_fork(self) -> None:
        super().after_fork()
        self._lock = threading.Lock()

    def claim(self, key: str, owner: str, lease: float) -> Claim:
        with self._lock:
            now = self._clock()
            self._sweep_sometimes(now)
            row = self._rows.get(key)
            if row is not None and row.until > now:
                if row.done:
                    return Claim(ClaimState.DONE, row.result)
                if row.owner != owner:
                    return Claim(ClaimState.BUSY, retry_after=row.until - now)
            self._rows[key] = _Row(owner, False, now + lease, None)
            return Claim(ClaimState.TAKEN)

    def extend(self, key: str, owner: str, lease: float) -> bool:
        with self._lock:
            row = self._held(key, owner)
            if row is not None:
                self._rows[key] = row._replace(until=self._clock() + lease)
            return row is not None

    def complete(self, key: str, owner: str, ttl: float, result: bytes | None) -> bool:
        with self._lock:
            row = self._rows.get(key)
            if row is not None and row.owner != owner:
                return False
            self._rows[key] = _Row(owner, True, self._clock() + ttl, result)
            return True

    def release(self, key: str, owner: str) -> bool:
        with self._lock:
            row = self._held(key, owner)
            if row is not None:
                del self._rows[key]
            return row is not None

    def forget(self, key: str) -> bool:
        with self._lock:
            known = self._rows.pop(key, None) is not None
            return self._lines.pop(key, None) is not None or known

    def prune(self) -> int:
        with self._lock:
            return self._sweep(self._clock())

    def begin_turn(self, key: str, sequence: int, owner: str, lease: float, first: int) -> Turn:
        with self._lock:
            now = self._clock()
            line = self._lines.get(key, _Line(first - 1, "", 0.0))
            if sequence <= line.last:
                return Turn(Place.SEEN, line.last)
            if sequence > line.last + 1:
                return Turn(Place.GAP, line.last)
            if line.owner not in ("", owner) and line.until > now:
                return Turn(Place.BUSY, line.last, line.until - now)
            self._lines[key] = _Line(line.last, owner, now + lease)
            return Turn(Place.NEXT, line.last)

    def extend_turn(self, key: str, owner: str, lease: float) -> bool:
        with self._lock:
            line = self._lines.get(key)
            if line is None or line.owner != owner:
                return False
            self._lines[key] = line._replace(until=self._clock() + lease)
            return True

    def end_turn(self, key: str, sequence: int, owner: str) -> bool:
        with self._lock:
            line = self._lines.get(key)
            if line is None or line.owner != owner or line.last + 1 != sequence:
                return False
            self._lines[key] = _Line(sequence, "", 0.0)
            return True

    def give_up_turn(self, key: str, owner: str) -> bool:
        with self._lock:
            line = self._lines.get(key)
            if line is None or line.owner != owner:
                return False
            self._lines[key] = _Line(line.last, "", 0.0)
            return True

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return method(*args, **kwargs)  # nothing here waits

    def _held(self, key: str, owner: str) -> _Row | None:
        # An expired lease may still be extended, as long as nobody has taken the claim.
        row = self._rows.get(key)
        return row if row is not None and row.owner == owner and not row.done else None

    def _sweep_sometimes(self, now: float) -> None:
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._sweep(now)

    def _sweep(self, now: float) -> int:
        over = [key for key, row in self._rows.items() if row.until <= now]
        for key in over:
            del self._rows[key]
        self._until_sweep = max(_SWEEP_EVERY, len(self._rows))  # so that the cost of sweeping is O(1) per claim
        return len(over)
