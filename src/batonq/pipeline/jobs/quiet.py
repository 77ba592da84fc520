"""Keeps Java's output on standard error away from the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

TEXT_BYTES_MAX = 64 << 10


class Aside:
    """The captured output."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def text(self) -> str:
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), TEXT_BYTES_MAX, max(0, size - TEXT_BYTES_MAX)).decode(errors="replace")


@contextmanager
def stderr_aside() -> Iterator[Aside]:
    """Processes started in this block write standard error to a temporary file; this process does so until the end of
    the block.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield Aside(file)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
