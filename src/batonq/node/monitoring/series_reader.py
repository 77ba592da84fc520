"""Reads time series of the whole server: each node has those of the shards that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from batonq.errors import Unavailable
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.sampler import Sampler
from batonq.node.monitoring.series import BY_NAME, FIRST_WIDTH, NAMES, RESOLUTIONS, WIDTH, Mark, Value, merged, window


class PartOfSeries(NamedTuple):
    values: list[list[Value]]
    marks: list[Mark]


class Series(NamedTuple):
    range: str
    step_s: int
    start_ms: int
    end_ms: int
    values: dict[str, list[Value]]
    marks: list[Mark]


DECODER = msgspec.msgpack.Decoder(PartOfSeries)


class SeriesReader:
    """`depths` returns the current depths and age of a queue on this node, for queues that have been idle."""

    def __init__(
        self,
        everywhere: Everywhere,
        sampler: Sampler,
        now_ms: Callable[[], int],
        depths: Callable[[int, int], Sequence[float]],
    ) -> None:
        self._everywhere = everywhere
        self._sampler = sampler
        self._now_ms = now_ms
        self._depths = depths
        everywhere.provide("series", self._read_here)

    async def read(self, range_name: str, queue: int | None) -> Series:
        """The series of a queue, by its number, or of the whole server. Raises Unavailable."""
        at = BY_NAME[range_name]
        now_ms = self._now_ms()
        parts = await self._everywhere.read_as(
            DECODER, "series", range=range_name, queue=queue, now_ms=now_ms, columns=WIDTH
        )
        told: list[PartOfSeries] = [part.value for part in parts if part.value is not None]
        if not told:
            raise Unavailable("No node could read its time series. Retry.")
        first, count = window(at, now_ms)
        step_ms = RESOLUTIONS[at].step_s * 1000
        start_ms, end_ms = first * step_ms, (first + count) * step_ms
        marks = sorted({mark for part in told for mark in part.marks if start_ms <= mark.at_ms < end_ms + step_ms})
        # A node of an earlier release has fewer columns.
        missing: list[Value] = [None] * count
        wide = [[*part.values, *[missing] * (WIDTH - len(part.values))] for part in told]
        values = dict(zip(NAMES, merged(wide), strict=True))
        return Series(range_name, RESOLUTIONS[at].step_s, start_ms, end_ms, values, marks)

    async def _read_here(self, arguments: dict[str, Any]) -> PartOfSeries:
        queue, now_ms = arguments["queue"], arguments["now_ms"]
        book = self._sampler.book
        depths = self._depths(queue, now_ms) if queue is not None and queue not in book.queues else ()
        columns = book.read(arguments["range"], queue, now_ms, depths)
        return PartOfSeries(columns[: arguments.get("columns", FIRST_WIDTH)], book.marks)
