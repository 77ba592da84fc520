"""A progress bar on standard error, shown only if standard error is a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from batonq.cli.output import cut, duration, number

BAR_WIDTH = 24
REDRAW_S = 0.1


class Progress:
    """`with Progress("Sending", total) as bar: bar.update(done)`. The bar is erased at the end."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label = label
        self.total = total
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def update(self, done: int, remark: str = "") -> None:
        now = time.monotonic()
        if not self._shown or now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        line = cut(self.line(done, now - self._started, remark), shutil.get_terminal_size().columns - 1)
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()

    def line(self, done: int, seconds: float, remark: str = "") -> str:
        """The bar as text: label, bar, counts, and an estimate of the remaining time."""
        share = min(1.0, done / self.total) if self.total else 0.0
        filled = int(share * BAR_WIDTH)
        parts = [self.label, "[" + "#" * filled + "." * (BAR_WIDTH - filled) + "]"]
        parts.append(f"{number(done)} of {number(self.total)}" if self.total else number(done))
        if remark:
            parts.append(remark)
        elif done and share < 1 and self.total:
            parts.append(f"{duration(seconds / done * (self.total - done))} left")
        return "  ".join(parts)
