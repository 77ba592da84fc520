"""Numbers in words, as people read them."""

from __future__ import annotations

_SECOND_MS = 1000
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(ms: int) -> str:
    """A duration in the largest unit that fits: 0.2 s, 45 s, 4 min, 3 h, 2 d."""
    seconds = ms / _SECOND_MS
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def plural(count: int, word: str) -> str:
    """1 queue, 2,000 queues."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
