"""What an example prints while it runs: one line per event, with its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence


class Story:
    """`say` prints a line with the seconds since the start. `check` also records whether a condition holds."""

    def __init__(self, title: str) -> None:
        self._started = time.monotonic()
        self.failures: list[str] = []
        self._print(f"\n  {title}\n")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        self._print(f"{self.seconds:7.1f} s  {text}")

    def heading(self, text: str) -> None:
        self._print(f"\n  {text}\n")

    def figure(self, name: str, value: str) -> None:
        self._print(f"    {name:<34}{value}")

    def check(self, text: str, holds: bool) -> None:
        self._print(f"    {'✓' if holds else '✗'} {text}")
        if not holds:
            self.failures.append(text)

    def end(self, good: str, bad: str) -> int:
        """Print the last line and return the exit code."""
        self._print(f"\n  {bad if self.failures else good} ({self.seconds:.0f} s)\n")
        return 1 if self.failures else 0

    @staticmethod
    def _print(text: str) -> None:
        print(text, file=sys.stdout, flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed, or 0 if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
