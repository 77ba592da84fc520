"""How far a starting node has read the logs of its cluster, for its log and for `/readyz`."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from batonq.log.frames import Frame
from batonq.log.layout import CATALOG_SHARD
from batonq.log.opening import OnFrame
from batonq.node import events

TELL_FIRST_S = 1.0  # a start that is faster than this is not worth a line
TELL_EVERY_S = 5.0


class Reading(NamedTuple):
    """Frames of one log that have to be read: `first` up to `stop` (exclusive)."""

    first: int
    stop: int


class CatchUp:
    """Frames are counted on other threads, each log on one at a time."""

    def __init__(self) -> None:
        self._readings: dict[int, Reading] = {}
        self._reached: dict[int, int] = {}  # the frame that is read next

    def expect(self, shard: int, first: int, stop: int) -> None:
        """A log has to be read."""
        self._readings[shard] = Reading(min(first, stop), stop)
        self._reached[shard] = min(first, stop)

    def counted(self, shard: int, on_frame: OnFrame) -> OnFrame:
        """`on_frame`, with each frame counted."""

        def read(frame: Frame) -> None:
            on_frame(frame)
            self._reached[shard] = frame.number + 1

        return read

    def done(self, shard: int) -> None:
        if shard in self._readings:
            self._reached[shard] = max(self._reached[shard], self._readings[shard].stop)

    @property
    def total(self) -> int:
        return sum(reading.stop - reading.first for reading in self._readings.values())

    @property
    def read(self) -> int:
        return sum(min(self._reached[shard], reading.stop) - reading.first for shard, reading in self._readings.items())

    def text(self) -> str:
        """The state in words; empty: nothing is being read."""
        waiting = [shard for shard, reading in self._readings.items() if self._reached[shard] < reading.stop]
        if not waiting:
            return ""
        names = ["the catalog" if shard == CATALOG_SHARD else f"shard {shard}" for shard in sorted(waiting)]
        share = 100 * self.read // max(self.total, 1)
        return f"{self.read:,} of {self.total:,} frames are read ({share} %); reading {', '.join(names)}"

    async def tell(self) -> None:
        """Report the progress in the log until cancelled."""
        await asyncio.sleep(TELL_FIRST_S)
        while True:
            text = self.text()
            if text:
                events.info("catching_up", f"Catching up with the logs: {text}", read=self.read, total=self.total)
            await asyncio.sleep(TELL_EVERY_S)
