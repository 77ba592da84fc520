"""A node's structured events: one name, a text, some fields.

An event goes to the standard logger `batonq`. A formatter turns it into a JSON object or a readable line.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("batonq")
TRACEBACKS_PER_MINUTE = 20


def event(level: int, name: str, text: str, **fields: Any) -> None:
    """Report that something happened: `name` for machines, `text` for people, `fields` for both."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", text, extra={"event": name, "fields": fields})


def debug(name: str, text: str, **fields: Any) -> None:
    event(logging.DEBUG, name, text, **fields)


def info(name: str, text: str, **fields: Any) -> None:
    event(logging.INFO, name, text, **fields)


def warning(name: str, text: str, **fields: Any) -> None:
    event(logging.WARNING, name, text, **fields)


def error(name: str, text: str, **fields: Any) -> None:
    event(logging.ERROR, name, text, **fields)


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object per line. `always` has the fields that every event gets."""

    def __init__(self, **always: Any) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "text": record.getMessage(),
        }
        entry.update(self._always)
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, text; with `details` also the fields. `always` has the fields that every event
    gets.
    """

    def __init__(self, *, details: bool = True, **always: Any) -> None:
        super().__init__()
        self._details = details
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {**(getattr(record, "fields", {}) if self._details else {}), **self._always}
        tail = "".join(f" {key}={value}" for key, value in fields.items())
        line = f"{_stamp(record)} {record.levelname.lower():<7} {record.getMessage()}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class TracebackLimit(logging.Filter):
    """Limits events with a traceback to a number per minute, and adds the number of suppressed ones to the next.

    A client that finds a request which fails must not fill the disk with it.
    """

    def __init__(self, per_minute: int = TRACEBACKS_PER_MINUTE, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._clock = clock
        self._minute_s = clock()
        self._shown = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info:
            return True
        now_s = self._clock()
        if now_s - self._minute_s >= 60:
            self._minute_s, self._shown = now_s, 0
        if self._shown >= self._per_minute:
            self._left_out += 1
            return False
        self._shown += 1
        if self._left_out:
            record.fields = {**getattr(record, "fields", {}), "left_out": self._left_out}
            self._left_out = 0
        return True
