"""Parse durations and sizes: 250ms, 30s, 5m, 2h, 1d; 512KiB, 64MiB, 2GiB."""

from __future__ import annotations

import argparse
from datetime import datetime

from batonq.quantities import read_duration_s, read_size


def parse_duration_s(text: str) -> float:
    """A duration in seconds; a plain number is seconds. Raises argparse's error, so it can be an argument's type."""
    try:
        return read_duration_s(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def parse_time(text: str) -> str:
    """A time with a time zone, in RFC 3339: 2027-01-31T09:00:00Z. Raises argparse's error."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2027-01-31T09:00:00Z or …T09:00:00+01:00")
    return time.isoformat()


def parse_bytes(text: str) -> int:
    """A size in bytes; K, M, G and T (also KiB, KB and so on) are powers of 1,024."""
    try:
        return read_size(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
