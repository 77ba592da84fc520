"""Whether a request is let in: rules by route, a depth that is known or not. Pure.

A rule has a high-water mark, drain rate × SLA (`baton plan` says it), and the share of it at which the rule's requests
are refused: 0.5 for what can wait, 1 for what matters, so that load is shed in steps and not all at once.
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
    """Requests for these paths (`/uploads`, `/uploads/*`; any, if not said) and methods are refused when the depth is
    above `at` × `high_water`. With `drain_rate`, in messages a second, Retry-After is the time until it is not."""

    high_water: int  # messages that can be done in time
    path: str = "*"
    methods: tuple[str, ...] = ("POST", "PUT", "PATCH", "DELETE")
    at: float = 1.0  # share of the high-water mark
    drain_rate: float | None = None  # messages a second
    retry_after_s: int = 5  # without a drain rate

    def __post_init__(self) -> None:
        if self.high_water < 1 or not 0 < self.at <= 1:
            raise InvalidInput("a rule has a high-water mark of at least 1, and a share of it above 0 and up to 1")
        if self.drain_rate is not None and self.drain_rate <= 0:
            raise InvalidInput("the drain rate is above 0; leave it out if it is not known")
        if not 1 <= self.retry_after_s <= RETRY_AFTER_MAX_S:
            raise InvalidInput(f"Retry-After is from 1 to {RETRY_AFTER_MAX_S} seconds")

    @property
    def mark(self) -> float:
        return self.high_water * self.at

    def matches(self, method: str, path: str) -> bool:
        return method in self.methods and fnmatchcase(path, self.path)

    def wait_s(self, depth: int) -> int:
        """What Retry-After says at this depth."""
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
    """The rules of one queue. The first that matches a request counts; a request that none matches is let in.

    `open_when_unknown` is the choice for a depth that nobody could read for a while: let requests in, and find out when
    sending, or refuse them with 503.
    """

    def __init__(self, rules: Sequence[Rule], *, open_when_unknown: bool = True) -> None:
        if not rules:
            raise InvalidInput("give at least one rule, such as Rule(high_water=15_000)")
        self._rules = tuple(rules)
        self._open_when_unknown = open_when_unknown
        self.let_in = 0
        self.refused = 0
        self.unknown = 0  # requests for which the depth was not known

    def concerns(self, method: str, path: str) -> Rule | None:
        return next((rule for rule in self._rules if rule.matches(method, path)), None)

    def judge(self, rule: Rule, depth: int | None) -> Refusal | None:
        """None: let it in."""
        if depth is None:
            self.unknown += 1
            if not self._open_when_unknown:
                self.refused += 1
                return Refusal(503, rule.retry_after_s, "It is not known whether there is room; try again later.")
        elif depth > rule.mark:
            self.refused += 1
            return Refusal(429, rule.wait_s(depth), "There is more to do than can be done in time; try again later.")
        self.let_in += 1
        return None
