"""Rate limits as token buckets, per task, queue or key. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KEYS_MAX = 100_000


@dataclass(slots=True, frozen=True)
class Rate:
    """At most `per_second` messages per second, and `burst` at once (default: one second's worth, at least one).

    Without a key the limit applies to the task. With `key="queue"` there is one limit per queue. With a function of the
    message there is one limit per returned value, and no limit for None.
    """

    per_second: float
    burst: float | None = None
    key: Callable[[Any], str | None] | str | None = None

    def __post_init__(self) -> None:
        if not self.per_second > 0:
            raise ValueError(f"per_second must be greater than 0, not {self.per_second}")
        if self.burst is not None and self.burst < 1:
            raise ValueError(f"burst must be 1 or more, not {self.burst}")
        if isinstance(self.key, str) and self.key != "queue":
            raise ValueError(f'the key of a rate must be "queue" or a function of the message, not {self.key!r}')

    @property
    def size(self) -> float:
        return self.burst if self.burst is not None else max(self.per_second, 1.0)


class Bucket:
    """Tokens that are refilled at a rate. The balance may become negative, which reserves future tokens."""

    __slots__ = ("at", "per_second", "size", "tokens")

    def __init__(self, per_second: float, size: float, now: float) -> None:
        self.per_second = per_second
        self.size = size
        self.tokens = size
        self.at = now

    def available(self, now: float) -> float:
        if now > self.at:
            self.tokens = min(self.size, self.tokens + (now - self.at) * self.per_second)
            self.at = now
        return self.tokens

    def wait(self, now: float, count: float = 1) -> float:
        """Seconds until that many tokens are available."""
        missing = count - self.available(now)
        return missing / self.per_second if missing > 0 else 0.0

    def take(self, now: float, count: float = 1) -> None:
        self.available(now)
        self.tokens -= count


class Buckets:
    """One bucket per key. A full bucket is the same as a new one, so full ones are dropped when there are many."""

    def __init__(self, rate: Rate, keys_max: int = KEYS_MAX) -> None:
        self.rate = rate
        self._keys_max = keys_max
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def key_of(self, message: Any) -> str | None:
        key = self.rate.key
        if callable(key):
            return key(message)
        return str(message.queue) if key == "queue" else ""

    def bucket(self, key: str, now: float) -> Bucket:
        found = self._buckets.get(key)
        if found is None:
            if len(self._buckets) >= self._keys_max:
                self._forget(now)
            found = self._buckets[key] = Bucket(self.rate.per_second, self.rate.size, now)
        return found

    def _forget(self, now: float) -> None:
        full = [key for key, bucket in self._buckets.items() if bucket.available(now) >= bucket.size]
        # When every key is in use, drop the fullest buckets: their limits matter least.
        for key in (
            full or sorted(self._buckets, key=lambda key: -self._buckets[key].tokens)[: self._keys_max // 10 + 1]
        ):
            del self._buckets[key]


class Limits:
    """All rate limits of one task."""

    def __init__(self, rates: tuple[Rate, ...]) -> None:
        self._whole = [Buckets(rate) for rate in rates if rate.key is None]
        self._keyed = [Buckets(rate) for rate in rates if rate.key is not None]

    @property
    def keyed(self) -> bool:
        return bool(self._keyed)

    def room(self, wanted: int, now: float) -> int:
        """The number of messages that the task may request now."""
        for buckets in self._whole:
            wanted = min(wanted, int(buckets.bucket("", now).available(now) + 1e-9))
        return max(wanted, 0)

    def until_room(self, now: float) -> float:
        """Seconds until the task may request a message."""
        return max((buckets.bucket("", now).wait(now) for buckets in self._whole), default=0.0)

    def took(self, count: int, now: float) -> None:
        for buckets in self._whole:
            buckets.bucket("", now).take(now, count)

    def wait(self, message: Any, now: float) -> float:
        """Seconds until this message's keys allow it; no tokens are taken."""
        return max((bucket.wait(now) for bucket in self._of(message, now)), default=0.0)

    def reserve(self, message: Any, now: float) -> None:
        for bucket in self._of(message, now):
            bucket.take(now)

    def _of(self, message: Any, now: float) -> list[Bucket]:
        keys = ((buckets, buckets.key_of(message)) for buckets in self._keyed)
        return [buckets.bucket(key, now) for buckets, key in keys if key is not None]
