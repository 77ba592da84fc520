"""Decides whether a request is accepted, by rules and the queue's depth. Pure functions.

A rule has a high-water mark (drain rate × SLA, as printed by `baton plan`) and the share of it at which its requests
are refused: 0.5 for work that can wait, 1 for important work. So load is shed in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil

from batonq.errors import InvalidInput

RETRY_AFTER_MAX_S = 300


@dataclass(slots=True, frozen=True)
class Rule:
    """Requests to these paths (`/uploads`, `/uploads/*`; default: all) with these methods are refused if the depth is
    above `at` × `high_water`. With `drain_rate`, in messages per second, Retry-After is the time until the depth is
    below it again.
    """

    high_water: int  # number of messages that can be processed in time
    path: str = "*"
    methods: tuple[str, ...] = ("POST", "PUT", "PATCH", "DELETE")
    at: float = 1.0  # share of the high-water mark
    drain_rate: float | None = None  # messages per second
    retry_after_s: int = 5  # if there is no drain rate

    def __post_init__(self) -> None:
        if self.high_water < 1 or not 0 < self.at <= 1:
            raise InvalidInput("a rule needs high_water >= 1, and at greater than 0 and at most 1")
        if self.drain_rate is not None and self.drain_rate <= 0:
            raise InvalidInput("drain_rate must be greater than 0; leave it out if it is unknown")
        if not 1 <= self.retry_after_s <= RETRY_AFTER_MAX_S:
            raise InvalidInput(f"retry_after must be 1 to {RETRY_AFTER_MAX_S} seconds")

    @property
    def mark(self) -> float:
        return self.high_water * self.at

    def matches(self, method: str, path: str) -> bool:
        return method in self.methods and fnmatchcase(path, self.path)

    def wait_s(self, depth: int) -> int:
        """The value of Retry-After at this depth."""
        if self.drain_rate is None:
            return self.retry_after_s
        return min(max(1, ceil((depth - self.mark) / self.drain_rate)), RETRY_AFTER_MAX_S)


@dataclass(slots=True, frozen=True)
class Refusal:
    status: int
    retry_after_s: int
    detail: str

    def body(self) -> bytes:
        """Problem details (RFC 9457)."""
        title = "Too Many Requests" if self.status == 429 else "Service Unavailable"
        code = "over_limit" if self.status == 429 else "unavailable"
        return (
            f'{{"type":"about:blank","title":"{title}","status":{self.status},"detail":"{self.detail}",'
            f'"code":"{code}","retryable":true}}'
        ).encode()

    def headers(self, length: int) -> list[tuple[str, str]]:
        return [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(length)),
            ("Retry-After", str(self.retry_after_s)),
            ("Cache-Control", "no-store"),
        ]


class Shedder:
    """The rules of one queue. The first rule that matches a request applies; a request that matches none is accepted.

    `open_when_unknown` decides what happens if the depth could not be read for a while: accept requests, or refuse them
    with 503.
    """

    def __init__(self, rules: Sequence[Rule], *, open_when_unknown: bool = True) -> None:
        if not rules:
            raise InvalidInput("at least one rule is needed, for example Rule(high_water=15_000)")
        self._rules = tuple(rules)
        self._open_when_unknown = open_when_unknown
        self.let_in = 0
        self.refused = 0
        self.unknown = 0  # number of requests during which the depth was unknown

    def concerns(self, method: str, path: str) -> Rule | None:
        return next((rule for rule in self._rules if rule.matches(method, path)), None)

    def judge(self, rule: Rule, depth: int | None) -> Refusal | None:
        """The refusal; None if the request is accepted."""
        if depth is None:
            self.unknown += 1
            if not self._open_when_unknown:
                self.refused += 1
                return Refusal(503, rule.retry_after_s, "The current load is unknown. Try again later.")
        elif depth > rule.mark:
            self.refused += 1
            return Refusal(429, rule.wait_s(depth), "The service is overloaded. Try again later.")
        self.let_in += 1
        return None
