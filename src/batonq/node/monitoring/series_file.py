"""The file that keeps the time series over a restart. It is a cache: if it is damaged, the series begin anew."""

from __future__ import annotations

import os
import zlib
from typing import Any

import msgspec

from batonq.node import events
from batonq.whole_file import replace_file

MAGIC = b"baton series 1\n"
BYTES_MAX = 256 << 20


class SeriesFile:
    """The methods may run on a thread."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> dict[str, Any] | None:
        """What was last saved; None if there is nothing, or nothing that can be read."""
        try:
            if os.path.getsize(self._path) > BYTES_MAX:
                raise ValueError("it is too large")
            with open(self._path, "rb") as file:
                data = file.read()
            if not data.startswith(MAGIC):
                raise ValueError("it is not a file of time series")
            unpacking = zlib.decompressobj()
            plain = unpacking.decompress(data[len(MAGIC) :], BYTES_MAX)
            if not unpacking.eof:
                raise ValueError("it is cut off, or too large")
            return msgspec.msgpack.decode(plain, type=dict[str, Any])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, zlib.error, msgspec.MsgspecError) as problem:
            self.tell_damage(problem)
            return None

    def tell_damage(self, problem: Exception) -> None:
        events.warning("series_lost", f"The time series in {self._path} cannot be read, and begin anew: {problem}")

    def save(self, data: dict[str, Any]) -> int:
        """Replace the file, all or nothing. Returns the size of the data before it was compressed."""
        plain = msgspec.msgpack.encode(data)
        try:
            replace_file(self._path, MAGIC + zlib.compress(plain, 1))
        except OSError as problem:
            events.warning("series_unsaved", f"The time series cannot be saved in {self._path}: {problem}")
        return len(plain)
