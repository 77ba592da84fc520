"""Pieces of the real code that are replaced while a run lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

Patches = list[tuple[Any, str, Any]]  # whose attribute, its name, what stands there instead


@contextlib.contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """They are in place inside of the block. What is replaced must be there."""
    before = [(target, attribute, getattr(target, attribute)) for target, attribute, _ in patches]
    for target, attribute, value in patches:
        setattr(target, attribute, value)
    try:
        yield
    finally:
        for target, attribute, value in before:
            setattr(target, attribute, value)
