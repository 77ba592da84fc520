"""Extends the leases of running handlers from one thread per store, so that a blocked event loop does not lose them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SHARE = 3  # a lease is extended after a third of its time
_log = logging.getLogger("batonq.idempotency")
Extend = Callable[[str, str, float], bool]


class _Held:
    __slots__ = ("due", "key", "lease", "owner", "until")

    def __init__(self, key: str, owner: str, lease: float, until: float) -> None:
        self.key = key
        self.owner = owner
        self.lease = lease
        self.until = until
        self.due = time.monotonic() + lease / _SHARE


class Renewals:
    """The claims that this process holds now."""

    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self._held: set[_Held] = set()
        self._changed = threading.Condition()
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def keep(self, key: str, owner: str, lease: float, renew_for: float) -> Iterator[None]:
        """Extend the lease repeatedly until the block ends, for at most `renew_for` seconds."""
        held = _Held(key, owner, lease, time.monotonic() + renew_for)
        with self._changed:
            self._held.add(held)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="baton-renewals", daemon=True)
                self._wakes_at = held.due
                self._thread.start()
            elif held.due < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(held)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = [held for held in self._held if held.due <= now]
                if not due:
                    self._wakes_at = min((held.due for held in self._held), default=float("inf"))
                    self._changed.wait(None if self._wakes_at == float("inf") else self._wakes_at - now)
                    continue
            for held in due:
                self._renew(held)

    def _renew(self, held: _Held) -> None:
        now = time.monotonic()
        held.due = now + held.lease / _SHARE
        if now >= held.until or not self._still_held(held):
            held.due = float("inf")

    def _still_held(self, held: _Held) -> bool:
        if held not in self._held:
            return False
        try:
            return self._extend(held.key, held.owner, held.lease)
        except Exception as problem:  # the store is unavailable; the next attempt may reach it before the lease expires
            _log.warning("the claim on %s could not be extended: %s", held.key, problem)
            return True
