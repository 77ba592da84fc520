"""Replacement of pieces of the real code during a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

Patches = list[tuple[Any, str, Any]]  # the object, the attribute's name, the replacement


@contextlib.contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Applies the patches inside the block. The replaced attributes must exist."""
    before = [(target, attribute, getattr(target, attribute)) for target, attribute, _ in patches]
    for target, attribute, value in patches:
        setattr(target, attribute, value)
    try:
        yield
    finally:
        for target, attribute, value in before:
            setattr(target, attribute, value)
