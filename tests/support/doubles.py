"""Test doubles that subclass production code override only what exists there."""

from __future__ import annotations

from typing import TypeVar

Class = TypeVar("Class", bound=type)


def overrides(double: Class) -> Class:
    """Decorates a double: fails when it defines something that none of its bases has, because nothing would call it.

    Names that the double lists in `OWN` are its own.
    """
    own = {"__module__", "__qualname__", "__doc__", "__init__", "__annotations__", "OWN", *getattr(double, "OWN", ())}
    inherited = {name for base in double.__mro__[1:] for name in vars(base)}
    unknown = sorted(name for name in vars(double) if name not in own | inherited and not name.startswith("__"))
    assert not unknown, f"{double.__name__} overrides what is not there: {', '.join(unknown)}"
    return double
