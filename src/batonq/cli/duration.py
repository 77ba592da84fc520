"""Durations as people write them: 250ms, 30s, 5m, 2h, 1d."""

from __future__ import annotations

import argparse

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float:
    """Seconds; a bare number is seconds. Raises argparse's error, so that it can be an argument's type."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 2h or 1d")
    return value
