"""Errors of the sources and the sink without Python tracebacks: Baton's message says what happened and what to do.

Spark passes an error of a Python process to the user as text, with the traceback of that process, unless the process
has the variable SPARK_HIDE_TRACEBACK. A process in which an error is raised ends afterwards, so the variable affects
only this error.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from batonq.errors import BatonError

T = TypeVar("T", bound=type)

_HIDE = "SPARK_HIDE_TRACEBACK"
_WORKERS = "PYTHON_WORKER_FACTORY_"  # begins variables that only Spark's own Python processes have


def brief_errors(source: T) -> T:
    """Class decorator for what Spark calls: each public method that the class itself defines."""
    for name, method in list(vars(source).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(source, name, _brief(method))
    return source


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @wraps(method)
        def iterate(*given: Any, **named: Any) -> Iterator[Any]:
            with _without_traceback():
                yield from method(*given, **named)

        return iterate

    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        with _without_traceback():
            return method(*given, **named)

    return call


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except BatonError:
        if any(name.startswith(_WORKERS) for name in os.environ):
            os.environ[_HIDE] = "1"
        raise
