"""A test double overrides only what exists.

A double that overrides a method which its production class has lost no longer replaces anything, and the test that uses
it compares production code with itself. `@double` finds that when the test module is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def double(*adds: str) -> Callable[[type[T]], type[T]]:
    """Decorate a test's subclass of a production class. Names that the subclass adds, and that replace nothing, are
    listed in `adds`.
    """

    def check(cls: type[T]) -> type[T]:
        bases = [base for base in cls.__mro__[1:] if base is not object]
        own = [name for name in vars(cls) if not (name.startswith("__") and name.endswith("__"))]
        known = {name for base in bases for name in vars(base)}
        of = ", ".join(base.__name__ for base in cls.__bases__)
        lost = [name for name in own if name not in known and name not in adds]
        if lost:
            raise TypeError(f"{cls.__name__} overrides {', '.join(lost)}, which {of} does not have")
        stale = [name for name in adds if name in known or name not in own]
        if stale:
            raise TypeError(f"{cls.__name__} says that it adds {', '.join(stale)} to {of}, which it does not")
        return cls

    return check
