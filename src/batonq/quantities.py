"""Sizes as people write them: 512KiB, 64MiB, 2GiB."""

from __future__ import annotations

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def read_size(text: str) -> int:
    """A size in bytes; K, M, G and T (also KiB, KB and so on) are powers of 1,024. Raises ValueError."""
    lower = text.strip().lower()
    number = lower.rstrip("bikmgt")
    unit = lower[len(number) :].removesuffix("b").removesuffix("i")
    try:
        value = int(float(number) * _SIZES[unit])
    except (KeyError, ValueError, OverflowError):
        value = -1
    if value < 0:
        raise ValueError(f"{text!r} is not a size such as 1000000, 64MiB or 2GiB")
    return value
