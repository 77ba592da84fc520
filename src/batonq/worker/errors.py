"""What a handler may raise, and how any exception becomes an answer to the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batonq.errors import BatonError

REASON_MAX = 1024  # letters of a reason that go to the broker; the whole text is in the worker's own log


class Poison(Exception):
    """This message can never be handled: it goes to the dead-letter queue at once, whatever tries it has left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler called the message poison")


class RetryLater(Exception):
    """Not now: the message comes back after `delay` seconds, or when the queue's policy says if that is None."""

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        if delay is not None and delay < 0:
            raise ValueError(f"a delay is 0 seconds or more, not {delay}")
        super().__init__(reason or "the handler asked for another try")
        self.delay = delay

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float | None, str]]:
        """A handler may raise it in a process of its own."""
        return type(self), (self.delay, str(self))


class DeadlineExceeded(Exception):
    """The handler took longer than the message's deadline, and was stopped."""


class HandlerCrashed(Exception):
    """The process that ran the handler died under it."""


@dataclass(slots=True, frozen=True)
class Failure:
    """What is told to the broker about a message whose handler failed. `delay` None: the queue's retry policy.

    `untried`: the handler did not begin, because another holder works on the same; that is no receive.
    """

    error_class: str
    reason: str
    delay: float | None = None
    dead_letter: bool = False
    untried: bool = False


Classifier = Callable[[BaseException], "str | None"]


@dataclass(slots=True, frozen=True)
class Rules:
    """Which exceptions are poison, and which mean that the work is done; everything else is worth another try.

    `classify`, when given, is asked first and answers "poison", "retry", "done", or None for "ask the other rules".
    """

    poison: tuple[type[BaseException], ...] = ()
    retry: tuple[type[BaseException], ...] = ()
    done: tuple[type[BaseException], ...] = ()
    classify: Classifier | None = None

    def kind(self, error: BaseException) -> str:
        """ "poison", "retry" or "done". Of two rules that fit, `retry` is the one that loses nothing, and is first."""
        if isinstance(error, Poison):
            return "poison"
        if isinstance(error, RetryLater):
            return "retry"
        if self.classify is not None and (said := self.classify(error)) is not None:
            if said not in ("poison", "retry", "done"):
                raise ValueError(f"classify must answer 'poison', 'retry', 'done' or None, not {said!r}")
            return said
        if isinstance(error, self.retry):
            return "retry"
        if isinstance(error, self.poison):
            return "poison"
        return "done" if isinstance(error, self.done) else "retry"

    def failure(self, error: BaseException) -> Failure | None:
        """What to tell the broker; None: the message counts as done."""
        kind = self.kind(error)
        if kind == "done":
            return None
        untried = kind == "retry" and isinstance(error, BatonError) and bool(getattr(error, "untried", False))
        return Failure(class_name(error), reason(error), told_delay(error), kind == "poison", untried)


def told_delay(error: BaseException) -> float | None:
    """When the error itself says to try again: RetryLater, and errors of Baton's own such as a claim that is busy."""
    delay = getattr(error, "delay", None) if isinstance(error, (RetryLater, BatonError)) else None
    return float(delay) if isinstance(delay, (int, float)) else None


def class_name(error: BaseException) -> str:
    """The class with its module, as redrive filters use it; builtins and our own without."""
    told = getattr(error, "error_class", None)  # of an error that stands for one in another process
    if isinstance(told, str) and told:
        return told
    kind = type(error)
    if kind.__module__ in ("builtins", __name__):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"
