"""The leases that a ReceiveRequestAttemptId got. A retry within the window gets the same leases."""

from __future__ import annotations

from typing import Any, NamedTuple

from batonq.core.shard.state.journal import Journal

ATTEMPT_WINDOW_MS = 300_000


class Attempt(NamedTuple):
    expires_ms: int
    leases: tuple[tuple[int, int, int], ...]  # slot, sequence, epoch


class Attempts:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.by_key: dict[tuple[int, str], Attempt] = {}  # queue and attempt id → its leases, oldest first
        self.of_slot: dict[int, tuple[int, str]] = {}  # slot → key of its attempt

    def get(self, queue: int, attempt: str, now: int) -> Attempt | None:
        known = self.by_key.get((queue, attempt))
        return known if known is not None and known.expires_ms > now else None

    def put(self, queue: int, attempt: str, expires_ms: int, leases: tuple[tuple[int, int, int], ...]) -> None:
        key = (queue, attempt)
        self.end(key)
        self.by_key[key] = Attempt(expires_ms, leases)
        for slot, _, _ in leases:
            self.of_slot[slot] = key
        while self.by_key:
            oldest = next(iter(self.by_key))
            if self.by_key[oldest].expires_ms > self.journal.last_time_ms:
                break
            self.end(oldest)

    def end(self, key: tuple[int, str]) -> None:
        attempt = self.by_key.pop(key, None)
        if attempt is not None:
            for slot, _, _ in attempt.leases:
                self.of_slot.pop(slot, None)

    def full(self, now: int) -> bool:
        """Whether no attempt can be added: the table is full, and its oldest attempt has not expired."""
        if len(self.by_key) < self.journal.limits.attempts_max:
            return False
        return next(iter(self.by_key.values())).expires_ms > now

    def end_of(self, slot: int) -> None:
        """Forget the attempt that leased a message, because its lease was ended or changed."""
        key = self.of_slot.get(slot)
        if key is not None:
            self.end(key)

    def facts(self) -> list[Any]:
        return [[*key, value.expires_ms, value.leases] for key, value in self.by_key.items()]

    def load(self, facts: list[Any]) -> None:
        self.by_key.clear()
        self.of_slot.clear()
        for queue, text, expires_ms, leases in facts:
            attempt = Attempt(expires_ms, tuple((*lease,) for lease in leases))
            self.by_key[queue, text] = attempt
            self.of_slot.update({lease[0]: (queue, text) for lease in attempt.leases})
