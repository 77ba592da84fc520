"""Parse durations and sizes: 250ms, 30s, 5m, 2h, 1d; 512KiB, 64MiB, 2GiB."""

from __future__ import annotations

import argparse

from batonq.quantities import read_size

_TIMES_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float:
    """A duration in seconds; a plain number is seconds. Raises argparse's error, so it can be an argument's type."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        value = float(number) * _TIMES_S[unit]
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 2h or 1d")
    return value


def parse_bytes(text: str) -> int:
    """A size in bytes; K, M, G and T (also KiB, KB and so on) are powers of 1,024."""
    try:
        return read_size(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
