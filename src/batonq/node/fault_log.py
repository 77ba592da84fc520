"""Tracebacks of unexpected exceptions, at most one per place and ten seconds: no client can fill the disk with them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from time import monotonic

from batonq.node.bounded_cache import BoundedCache

PAUSE_S = 10.0
PLACES_MAX = 256

_Place = tuple[type[BaseException], str, int]  # the exception, and the line that raised it


class FaultLog:
    """Reports the exception that is being handled. What comes again from the same line soon is only counted."""

    def __init__(self, logger: logging.Logger, seconds: Callable[[], float] = monotonic) -> None:
        self._logger = logger
        self._seconds = seconds
        self._reported: BoundedCache[_Place, tuple[float, int]] = BoundedCache(
            PLACES_MAX, 1
        )  # when, and how many since

    def report(self, message: str, *arguments: object) -> None:
        """Call it in an `except` block."""
        place = _place(sys.exception())
        now_s = self._seconds()
        last_s, count = self._reported.get(place, (-PAUSE_S, 0))
        if now_s - last_s < PAUSE_S:
            self._reported.put(place, (last_s, count + 1), 1)
            return
        self._reported.put(place, (now_s, 0), 1)
        if count:
            message += " (%d more since the last traceback from this line)"
            arguments = (*arguments, count)
        self._logger.exception(message, *arguments)


def _place(error: BaseException | None) -> _Place:
    if error is None:
        return BaseException, "", 0
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return type(error), trace.tb_frame.f_code.co_filename if trace else "", trace.tb_lineno if trace else 0
