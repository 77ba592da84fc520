"""Counts in words, as people read them."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """1 queue, 2,000 queues."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
