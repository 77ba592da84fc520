"""The thread functions that have another name in asyncio; see batonq.client.aio.pauses."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def to_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """This is a thread already."""
    return function(*args, **kwargs)


__all__ = ["sleep", "to_thread"]
