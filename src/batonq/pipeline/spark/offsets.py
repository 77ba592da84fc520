"""Positions in history, and their division into parts. Plain functions: no Spark, and nothing is read.

A position is one number per shard: the next frame to read. As a Spark offset it is {"<shard>": frame}. The same pair of
offsets always means the same frames; so a shard that is added later first gets its beginning, in a step that reads
nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from batonq.errors import InvalidInput, LogGap, NotFound
from batonq.pipeline.reading.history import Range

Position = dict[int, int]
Marks = Callable[[int, int, int], list[int]]  # shard, start, stop: see History.marks

SMALL_PART_FRAMES = 1_000  # parts with fewer frames than that, in total, are read as one


class Part(NamedTuple):
    """Frames `start` up to `stop` (exclusive) of a shard, read by one task."""

    shard: int
    start: int
    stop: int


def encode(position: Position) -> dict[str, int]:
    return {str(shard): position[shard] for shard in sorted(position)}


def decode(offset: Mapping[str, Any]) -> Position:
    """Raises InvalidInput."""
    try:
        position = {int(shard): int(frame) for shard, frame in offset.items()}
    except (ValueError, TypeError, AttributeError):
        position = {-1: 0}
    if any(shard < 0 or frame < 1 for shard, frame in position.items()):
        raise InvalidInput(f'An offset of history must be {{"<shard>": <next frame>}}, not {json.dumps(offset)}.')
    return position


def chosen(ranges: Iterable[Range], shards: frozenset[int] | None, source: str) -> list[Range]:
    """The selected shards. Raises NotFound for a missing one."""
    found = {span.shard: span for span in ranges}
    missing = sorted((shards or frozenset()) - found.keys())
    if missing:
        raise NotFound(f"There is no shard {missing[0]} in {source}; the shards are {_listed(found)}.")
    return [span for shard, span in sorted(found.items()) if shards is None or shard in shards]


def initial(ranges: Iterable[Range], start: str) -> Position:
    """Where a new stream starts: `earliest`, `latest`, or an offset in JSON; omitted
    shards start at their first frame.
    """
    if start == "latest":
        return {span.shard: span.next for span in ranges}
    position = {span.shard: span.first for span in ranges}
    if start == "earliest":
        return position
    given = _given(start)
    if given is None:
        raise InvalidInput(f"start must be earliest, latest or an offset in JSON, not {start!r}.")
    return position | {shard: frame for shard, frame in given.items() if shard in position}


def final(ranges: Iterable[Range], end: str) -> Position:
    """Where a batch ends: `latest`, or an offset in JSON; omitted shards end at their last frame."""
    position = {span.shard: span.next for span in ranges}
    if end == "latest":
        return position
    given = _given(end)
    if given is None:
        raise InvalidInput(f"end must be latest or an offset in JSON, not {end!r}.")
    return {shard: min(given.get(shard, frame), frame) for shard, frame in position.items()}


def _given(text: str) -> Position | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return decode(found) if isinstance(found, dict) else None


def latest(
    start: Position, ranges: Iterable[Range], limit: int | None, source: str, *, lossy: bool = False
) -> Position:
    """The end of the next batch: at most `limit` frames, with a share for every shard.

    Raises LogGap if the next frame is not retained, unless `lossy`: then the first retained one counts as the next.
    Raises NotFound if a shard no longer exists.
    """
    found = {span.shard: span for span in ranges}
    for shard, frame in start.items():
        if shard not in found:
            raise NotFound(f"Shard {shard}, with frame {frame} as the next one, is no longer in {source}.")
        if not lossy:
            check_retained(found[shard], frame, source)
    end = {shard: max(frame, found[shard].first) for shard, frame in start.items()}
    waiting = {shard: max(found[shard].next - frame, 0) for shard, frame in end.items()}
    left = sum(waiting.values()) if limit is None else limit
    for shards_left, shard in zip(
        range(len(waiting), 0, -1), sorted(waiting, key=lambda one: waiting[one]), strict=True
    ):
        share = min(waiting[shard], -(-left // shards_left))
        end[shard] += share
        left -= share
    return end | {shard: span.first for shard, span in found.items() if shard not in start}


def check_retained(span: Range, frame: int, source: str) -> None:
    if frame < span.first:
        raise LogGap(
            f"Frames {frame} to {span.first - 1} of shard {span.shard} are no longer in {source}: they were deleted "
            f"before they were read, and the first retained frame is {span.first}. Read them from the archive, if "
            "there is one, by its URL. Otherwise they are lost: ingest the current history into a new lake; a stream "
            "continues without them with the source's option failOnDataLoss=false."
        )


def retained(part: Part, first: int) -> tuple[Part, Part]:
    """A part without the frames before `first`, and these frames."""
    begin = min(max(part.start, first), part.stop)
    return part._replace(start=begin), part._replace(stop=begin)


def loss(lost: Part, source: str, next_frame: int) -> str:
    """The warning about frames that were skipped."""
    count = lost.stop - lost.start
    return (
        f"Data loss: {count:,} frame{'s' * (count != 1)} of shard {lost.shard} ({lost.start} to {lost.stop - 1}) "
        f"{'were' if count != 1 else 'was'} deleted from {source} before being read, and "
        f"{'are' if count != 1 else 'is'} skipped, because failOnDataLoss is false. Reading continues at frame "
        f"{next_frame}."
    )


def between(start: Position, end: Position) -> list[Part]:
    """The parts between two positions, one per shard. A shard that is not in `start` begins at `end`."""
    return [Part(shard, start[shard], end[shard]) for shard in sorted(end) if start.get(shard, end[shard]) < end[shard]]


def split(parts: Iterable[Part], marks: Marks, frames_max: int | None) -> list[Part]:
    """Parts for tasks: of `frames_max` frames; without it split at the marks, with small ones combined."""
    result: list[Part] = []
    for shard, start, stop in parts:
        if frames_max is not None:
            cuts = [*range(start, stop, frames_max), stop]
        else:
            cuts = [start]
            for mark in [*marks(shard, start, stop), stop]:
                if mark == stop or mark - cuts[-1] >= SMALL_PART_FRAMES:
                    cuts.append(mark)
        result += [Part(shard, begin, end) for begin, end in pairwise(cuts)]
    return result


def _listed(shards: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(shards))) or "none"
