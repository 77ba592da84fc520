"""Quantities as people write them: sizes (64MiB, 2GiB), durations (250ms, 30s, 2h), counts (2,000 messages)."""

from __future__ import annotations

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_duration_s(text: str) -> float:
    """A duration in seconds; a plain number is seconds. Raises ValueError."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        value = float(number) * _TIMES_S[unit]
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 2h or 1d")
    return value


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


def plural(count: int, word: str, words: str = "") -> str:
    """1 message, 2,000 messages. `words` is the plural if it does not end with an s."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"
