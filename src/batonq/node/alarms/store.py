"""Keeps the alarm book in a small file of the data directory, written in a thread when something has changed.

The file is a convenience, not the truth: if it is damaged or cannot be written, the node goes on without it.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

import msgspec

from batonq.node import events
from batonq.node.alarms.book import Saved
from batonq.node.alarms.kinds import KINDS, SEVERITIES
from batonq.node.tasks import off_the_loop
from batonq.whole_file import replace_file

FILE_BYTES_MAX = 16 << 20
_decoder = msgspec.json.Decoder(Saved)


class AlarmStore:
    """`member` names one of several processes that share a data directory."""

    def __init__(self, data: str, member: str = "") -> None:
        self.path = os.path.join(data, f"alarms-{member}.json" if member else "alarms.json")
        self._writing = asyncio.Lock()

    def load(self) -> Saved:
        """What was saved; nothing if there is no readable file."""
        try:
            with open(self.path, "rb") as file:
                saved = _decoder.decode(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return Saved()
        except (OSError, msgspec.MsgspecError) as problem:
            text = (
                f"The alarms in {self.path} cannot be read, so their history and acknowledgements are lost: {problem}"
            )
            events.warning("alarms_unreadable", text)
            return Saved()
        saved.active = [alarm for alarm in saved.active if _known(alarm.kind, alarm.severity)]
        saved.history = [alarm for alarm in saved.history if _known(alarm.kind, alarm.severity)]
        return saved

    async def save(self, saved: Saved) -> None:
        """Write the file, off the event loop."""
        data = msgspec.json.encode(saved)
        async with self._writing:
            await off_the_loop(partial(self._write, data))

    def _write(self, data: bytes) -> None:
        try:
            replace_file(self.path, data, sync=True)
        except OSError as problem:
            events.warning("alarms_not_saved", f"{self.path} cannot be written: {problem.strerror}")


def _known(kind: str, severity: str) -> bool:
    """Whether this release knows an alarm that another release may have saved."""
    return kind in KINDS and severity in SEVERITIES
