"""Exceptions that a handler can raise, and how an exception becomes an answer to the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batonq.errors import BatonError

REASON_MAX = 1024  # maximum length of a reason sent to the broker; the worker's own log has the whole text


class Poison(Exception):
    """This message can never be processed: it is dead-lettered at once, even if it has receives left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler marked the message as poison")


class RetryLater(Exception):
    """Retry later: the message becomes visible again after `delay` seconds, or by the queue's policy if it is None."""

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        if delay is not None and delay < 0:
            raise ValueError(f"delay must be 0 or more seconds, not {delay}")
        super().__init__(reason or "the handler asked for a retry")
        self.delay = delay

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float | None, str]]:
        """It can be raised in a handler's own process."""
        return type(self), (self.delay, str(self))


class DeadlineExceeded(Exception):
    """The handler ran past the message's deadline and was stopped."""


class HandlerCrashed(Exception):
    """The process that ran the handler died."""


@dataclass(slots=True, frozen=True)
class Failure:
    """The report to the broker about a message whose handler failed. If `delay` is None, the queue's retry policy
    applies.

    `untried`: the handler was not started, because another consumer is processing the same key. It does not count as a
    receive.
    """

    error_class: str
    reason: str
    delay: float | None = None
    dead_letter: bool = False
    untried: bool = False


Classifier = Callable[[BaseException], "str | None"]


@dataclass(slots=True, frozen=True)
class Rules:
    """Which exceptions are poison, and which mean that the work is done. All others are retried.

    `classify`, if given, is asked first. It returns "poison", "retry", "done", or None to apply the other rules.
    """

    poison: tuple[type[BaseException], ...] = ()
    retry: tuple[type[BaseException], ...] = ()
    done: tuple[type[BaseException], ...] = ()
    classify: Classifier | None = None

    def kind(self, error: BaseException) -> str:
        """ "poison", "retry" or "done". If several rules match, `retry` comes first, because it loses nothing."""
        if isinstance(error, Poison):
            return "poison"
        if isinstance(error, RetryLater):
            return "retry"
        if self.classify is not None and (said := self.classify(error)) is not None:
            if said not in ("poison", "retry", "done"):
                raise ValueError(f"classify must return 'poison', 'retry', 'done' or None, not {said!r}")
            return said
        if isinstance(error, self.retry):
            return "retry"
        if isinstance(error, self.poison):
            return "poison"
        return "done" if isinstance(error, self.done) else "retry"

    def failure(self, error: BaseException) -> Failure | None:
        """The report for the broker; None if the message counts as done."""
        kind = self.kind(error)
        if kind == "done":
            return None
        untried = kind == "retry" and isinstance(error, BatonError) and bool(getattr(error, "untried", False))
        return Failure(class_name(error), reason(error), requested_delay(error), kind == "poison", untried)


def requested_delay(error: BaseException) -> float | None:
    """The delay that the error itself requests: RetryLater, and Baton's own errors such as a busy claim."""
    delay = getattr(error, "delay", None) if isinstance(error, (RetryLater, BatonError)) else None
    return float(delay) if isinstance(delay, (int, float)) else None


def class_name(error: BaseException) -> str:
    """The class with its module, as used in redrive filters; without a module for builtins and Baton's own errors."""
    given = getattr(error, "error_class", None)  # set on an error that represents one from another process
    if isinstance(given, str) and given:
        return given
    kind = type(error)
    if kind.__module__ in ("builtins", __name__):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"
