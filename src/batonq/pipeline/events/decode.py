"""Frames to Arrow: the events table, one column at a time.

numpy extracts the words of all rows. Texts are located by the extents in the words, and decoded once per extent, even
if many rows share it. The result is the same as that of plain.py, however frames are split into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batonq.core.records import ROW_WORDS, Type
from batonq.errors import LogCorrupt
from batonq.log.frames import Frame
from batonq.pipeline.events.arrays import Ints, Words
from batonq.pipeline.events.columns import Builder
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.names import Names, told
from batonq.pipeline.events.schema import EVENTS, arrow_schema

ROWS_A_BATCH = 32_768  # so that their columns stay in the CPU's cache
BYTES_A_BATCH = 64 << 20  # of variable parts; a longer frame is a batch of its own

_KNOWN = np.zeros(256, dtype=bool)
_KNOWN[list(EVENTS)] = True
_LOW32 = np.uint64(0xFFFFFFFF)


class Decoder:
    """Decodes the frames of one shard, in order. It remembers the queue names that it has seen."""

    def __init__(
        self,
        *,
        bodies: bool = False,
        wanted: Filter | None = None,
        names: Names | None = None,
        dictionaries: bool = True,
        columns: Sequence[str] | None = None,
        more_names: Callable[[], Names] | None = None,
    ) -> None:
        """`columns`: only these are decoded, in this order. Default: all, with `body` if `bodies` is set. `more_names`
        is called at most once: when names are needed, and that of a queue is not known.
        """
        self.names: Names = {} if names is None else names
        self.schema = arrow_schema(bodies=bodies, dictionaries=dictionaries)
        if columns is not None:
            self.schema = pa.schema([self.schema.field(name) for name in columns])
        self._wanted = wanted or Filter()
        self._dictionaries = dictionaries
        by_name = any(isinstance(queue, str) for queue in self._wanted.queues or ())
        needs_names = by_name or not {"queue_name", "tenant"}.isdisjoint(self.schema.names)
        self._more_names = more_names if needs_names else None

    def batches(self, frames: Iterable[Frame]) -> Iterator[pa.RecordBatch]:
        """Batches of bounded size; none is empty."""
        waiting: list[Frame] = []
        rows = size = 0
        for frame in frames:
            if waiting and (rows + frame.row_count > ROWS_A_BATCH or size + len(frame.variable) > BYTES_A_BATCH):
                yield from self._some(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(frame)
            rows += frame.row_count
            size += len(frame.variable)
        if waiting:
            yield from self._some(waiting)

    def _some(self, frames: Sequence[Frame]) -> Iterator[pa.RecordBatch]:
        try:
            batch = self.decode(frames)
        except LogCorrupt as problem:
            raise LogCorrupt(
                f"Shard {frames[0].shard}, frames {frames[0].number} to {frames[-1].number}: {problem.message}. These "
                "frames match their checksums: read them with the release that wrote them, or a newer one."
            ) from None
        if batch.num_rows:
            yield batch

    def decode(self, frames: Sequence[Frame]) -> pa.RecordBatch:
        """The events of these frames as one batch."""
        counts = np.fromiter((frame.row_count for frame in frames), np.int64, len(frames))
        sizes = np.fromiter((len(frame.variable) for frame in frames), np.int64, len(frames))
        rows = np.frombuffer(b"".join([frame.rows for frame in frames]), dtype="<u8").reshape(-1, ROW_WORDS)
        words: Words = np.ascontiguousarray(rows.T)
        variable = frames[0].variable if len(frames) == 1 else b"".join([frame.variable for frame in frames])
        kinds = (words[0] & np.uint64(0xFF)).astype(np.uint8)
        places = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
        which = np.repeat(np.arange(len(frames)), counts)
        bases = np.repeat(np.cumsum(sizes) - sizes, counts)
        _check(frames, words, kinds, which, sizes)
        learned = self._learn(words, kinds, bases, variable)
        if self._more_names is not None:
            self._add_names(words)
        keep = self._chosen(words, kinds, learned)
        if keep is not None:
            words, kinds, places, which, bases = words[:, keep], kinds[keep], places[keep], which[keep], bases[keep]
            moved: Ints = np.cumsum(keep) - keep  # number of kept rows before each row
            learned = {queue: int(moved[at]) for queue, at in learned.items()}
        builder = Builder(words, kinds, bases, variable, schema=self.schema, dictionaries=self._dictionaries)
        columns = builder.columns(self.names, learned)
        header = _headers(frames, which)
        columns["row"] = places
        columns.update(header)
        columns["logical_time"] = header["frame"] << 16 | places
        return builder.batch(columns, shard=frames[0].shard)

    def _learn(self, words: Words, kinds: Any, bases: Any, variable: bytes) -> dict[int, int]:
        """Add the queue names in these rows. Returns the row at which each new one became known."""
        learned: dict[int, int] = {}
        for at in np.flatnonzero((kinds == Type.POLICY_SET) | (kinds == Type.BASE)).tolist():
            start = int(bases[at]) + int(words[6, at] & _LOW32)
            names = told(int(kinds[at]), variable[start : start + int(words[6, at] >> np.uint64(32))])
            for queue, name in names.items():
                if queue not in self.names:
                    learned[queue] = at
                self.names[queue] = name
        return learned

    def _add_names(self, words: Words) -> None:
        """Ask for more names if there is a queue without one."""
        queues = set(np.unique(words[0] >> np.uint64(32)).tolist()) - {0}
        if self._more_names is not None and not queues <= self.names.keys():
            self.names = self._more_names() | self.names
            self._more_names = None

    def _chosen(self, words: Words, kinds: Any, learned: dict[int, int]) -> npt.NDArray[np.bool_] | None:
        """Which rows are selected; None: all."""
        wanted = self._wanted
        if wanted.everything:
            return None
        keep = np.ones(len(kinds), dtype=bool)
        if wanted.events is not None:
            keep &= np.isin(kinds, [kind for kind, name in EVENTS.items() if name in wanted.events])
        if wanted.since_ms is not None:
            keep &= words[2] >= np.uint64(max(wanted.since_ms, 0))
        if wanted.until_ms is not None:
            keep &= words[2] < np.uint64(max(wanted.until_ms, 0))
        if wanted.queues is not None:
            queues = words[0] >> np.uint64(32)
            chosen = np.isin(queues, [queue for queue in wanted.queues if isinstance(queue, int)])
            for queue, name in self.names.items():
                if name.name in wanted.queues:
                    mine = queues == queue
                    mine[: learned.get(queue, 0)] = False
                    chosen |= mine
            keep &= chosen
        return keep


def _headers(frames: Sequence[Frame], which: Any) -> dict[str, Any]:
    def column(values: Iterable[int]) -> Any:
        return np.fromiter(values, np.int64, len(frames))[which]

    return {
        "frame": column(frame.number for frame in frames),
        "region": column(frame.region for frame in frames),
        "owner_epoch": column(frame.epoch for frame in frames),
    }


def _check(frames: Sequence[Frame], words: Words, kinds: Any, which: Any, sizes: Any) -> None:
    """Check that no type is unknown, and that no extent exceeds its frame."""
    unknown = ~_KNOWN[kinds]
    if unknown.any():
        at = int(np.argmax(unknown))
        raise LogCorrupt(
            f"frame {frames[which[at]].number} has a record of type {kinds[at]}, which this release does not support"
        )
    ends = (words[6] & _LOW32) + (words[6] >> np.uint64(32))
    beyond = ends > sizes[which].astype(np.uint64)
    if beyond.any():
        number = frames[which[int(np.argmax(beyond))]].number
        raise LogCorrupt(f"frame {number} has a record that points beyond its variable section")
