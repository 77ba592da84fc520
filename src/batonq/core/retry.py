"""A queue's retry policy: the delay before a failed message is retried.

The policy is stored as JSON, in the queue's attribute `Baton.RetryPolicy` and in the shard's policy:

    {"kind": "exponential", "baseSeconds": 1, "factor": 2, "maxSeconds": 3600, "jitter": 0.2}
    {"kind": "schedule", "delaysSeconds": [60, 300, 1800], "jitter": 0.2}

After the first failure the delay is the base, or the schedule's first delay. At its end a schedule repeats its last
delay. Jitter makes each delay longer or shorter by up to that share, so that messages that failed together are not
retried together. Jitter is computed from the message's sequence and its lease's epoch, so that the core needs no
randomness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from batonq.errors import InvalidInput

DELAY_MAX_S = 1_209_600
DELAYS_MAX = 64
FACTOR_MAX = 100.0
_FIELDS = {
    "exponential": {"kind", "baseSeconds", "factor", "maxSeconds", "jitter"},
    "schedule": {"kind", "delaysSeconds", "jitter"},
}
_SHAPE = (
    'Use a JSON object such as {"kind":"exponential","baseSeconds":1,"factor":2,"maxSeconds":3600,"jitter":0.2} '
    'or {"kind":"schedule","delaysSeconds":[60,300,1800],"jitter":0.2}.'
)
_MIX = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    delays_ms: tuple[int, ...]  # the delays of a schedule; empty for exponential backoff
    base_ms: int = 0
    factor: float = 2.0
    max_ms: int = 0
    jitter: float = 0.0  # share of the delay

    def delay_ms(self, attempts: int, sequence: int, epoch: int) -> int:
        """The delay after `attempts` attempts, the last of them under the lease with this epoch."""
        step = max(attempts, 1) - 1
        if self.delays_ms:
            delay = self.delays_ms[min(step, len(self.delays_ms) - 1)]
        else:
            delay = self._grown(step)
        if not self.jitter:
            return delay
        spread = 2 * unit_hash(sequence, epoch) - 1
        return int(delay + delay * self.jitter * spread)

    def _grown(self, step: int) -> int:
        try:
            return min(int(self.base_ms * self.factor**step), self.max_ms)
        except OverflowError:
            return self.max_ms


def unit_hash(sequence: int, epoch: int) -> float:
    """A number from 0 to 1 that looks random and is the same on every node."""
    mixed = (sequence * _MIX + epoch) & _MASK64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK64
    return (mixed ^ mixed >> 31) / (1 << 64)


@lru_cache(maxsize=1024)
def parse_retry(text: str) -> RetryPolicy:
    """A policy from its JSON. Raises InvalidInput."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise refuse("It is not valid JSON") from None
    return from_value(value)


def from_value(value: Any) -> RetryPolicy:
    """A policy from its decoded JSON value. Raises InvalidInput."""
    if not isinstance(value, Mapping) or value.get("kind") not in _FIELDS:
        raise refuse("kind must be exponential or schedule")
    kind = value["kind"]
    unknown = sorted(str(name) for name in value if name not in _FIELDS[kind])
    if unknown:
        raise refuse(f"{', '.join(unknown)} is not a field of a retry policy of kind {kind}")
    jitter = _number(value, "jitter", 0.0, 0, 1)
    if kind == "schedule":
        delays = value.get("delaysSeconds")
        if not isinstance(delays, list | tuple) or not 1 <= len(delays) <= DELAYS_MAX:
            raise refuse(f"delaysSeconds must be a list of 1 to {DELAYS_MAX} numbers")
        return RetryPolicy(
            tuple(_milliseconds({"delaysSeconds": delay}, "delaysSeconds", 0) for delay in delays), jitter=jitter
        )
    base_ms = _milliseconds(value, "baseSeconds", 1)
    max_ms = _milliseconds(value, "maxSeconds", 3600)
    if max_ms < base_ms:
        raise refuse("maxSeconds must be at least baseSeconds")
    return RetryPolicy((), base_ms, _number(value, "factor", 2.0, 1, FACTOR_MAX), max_ms, jitter)


def refuse(reason: str) -> InvalidInput:
    return InvalidInput(f"The retry policy is not valid. {reason}. {_SHAPE}")


def _milliseconds(value: Mapping[str, Any], name: str, default: float) -> int:
    return round(_number(value, name, default, 0, DELAY_MAX_S) * 1000)


def _number(value: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    number = value.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
        raise refuse(f"{name} must be a number from {low:g} to {high:g}")
    return float(number)
