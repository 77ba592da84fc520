"""Time series of queues and of the whole server, kept in bounded space: rates, depths, ages and latency percentiles.

There is one ring of rows per resolution (`RESOLUTIONS`). A row has the values of one step. A queue has a row only for
steps in which it changed, so an idle queue costs nothing: a step without a row has rates of 0 and the depth of the step
before. The server has a row for every step in which this node took samples. A step without such a row is a gap: the
node was not running. The number of queues is limited; the one that has been idle for the longest time is dropped first.
If none has been idle, the newest is dropped, so that the others keep their history.

This module has no clock and no I/O: `sampler.py` calls it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from batonq.node.monitoring.histogram import BUCKETS, percentiles


class Resolution(NamedTuple):
    name: str
    step_s: int
    steps: int


RESOLUTIONS = (
    Resolution("15m", 5, 180),
    Resolution("1h", 15, 240),
    Resolution("6h", 60, 360),
    Resolution("24h", 300, 288),
    Resolution("72h", 900, 288),
)
BY_NAME = {resolution.name: at for at, resolution in enumerate(RESOLUTIONS)}
SAMPLE_S = RESOLUTIONS[0].step_s

RATES = ("sent", "received", "acked", "retried", "deadLettered", "expired")
LATER_RATES = ("sentBytes", "emptyReceives")  # added after the first release of the file, so they are the last columns
DEPTHS = ("visible", "inFlight", "delayed")
AGE = "oldestSeconds"
KINDS = ("queueWait", "handling", "endToEnd")
SHARES = (0.5, 0.95, 0.99)
PERCENTILES = tuple(f"{kind}P{round(share * 100)}Ms" for kind in KINDS for share in SHARES)
NAMES = (*RATES, *DEPTHS, AGE, *PERCENTILES, *LATER_RATES)
WIDTH = len(NAMES)
FIRST_WIDTH = WIDTH - len(LATER_RATES)  # the columns that every release knows
SENT_BYTES_AT, EMPTY_RECEIVES_AT = range(len(RATES), len(RATES) + len(LATER_RATES))  # in the totals of a track
_AGE_AT = NAMES.index(AGE)
_DEPTH_AT = NAMES.index("visible")
_NONE = -1.0  # a percentile of no messages
_UNKNOWN = float("nan")  # a value that the release which wrote the row did not have
_EMPTY_ROW = array("f", [0.0]) * WIDTH
MARKS_MAX = 200
BUSY_MS = 60_000  # a queue that changed in this time is not idle
TREND_POINTS = 20
VERSION = 1

Value = float | None


class Mark(NamedTuple):
    """An event worth a line in a plot."""

    at_ms: int
    kind: str  # start, takeover
    text: str


class Ring:
    """Rows of one resolution, oldest first: `steps[i]` is the number of the step of the i-th row."""

    __slots__ = ("_limit", "steps", "values")

    def __init__(self, limit: int) -> None:
        self.steps: array[int] = array("Q")
        self.values: array[float] = array("f")
        self._limit = limit

    def put(self, step: int, row: Sequence[float]) -> None:
        """Add the row of a step, or replace the newest row if it is of the same step."""
        steps = self.steps
        if steps and steps[-1] >= step:
            if steps[-1] > step:
                return  # the clock was set back: what is known of that time stays
            del steps[-1], self.values[-WIDTH:]
        steps.append(step)
        self.values.extend(row)
        if len(steps) > self._limit + (self._limit >> 2):  # rarely, because dropping the front moves the rest
            self.drop_before(step - self._limit + 1)

    def drop_before(self, step: int) -> None:
        """Drop old rows, but keep the last one before the step: it says how deep the queue was then."""
        drop = bisect_right(self.steps, step) - 1
        if drop > 0:
            del self.steps[:drop], self.values[: drop * WIDTH]

    def drop_from(self, step: int) -> None:
        """Drop the rows of a step and later ones: of a time that the clock was set back from."""
        kept = bisect_left(self.steps, step)
        del self.steps[kept:], self.values[kept * WIDTH :]

    def row(self, at: int) -> array[float]:
        return self.values[at * WIDTH : (at + 1) * WIDTH]

    def depth(self, step: int) -> int | None:
        """Visible messages at the end of a step; None if that is before the first row."""
        at = bisect_right(self.steps, step) - 1
        return int(self.values[at * WIDTH + _DEPTH_AT]) if at >= 0 else None


class Track:
    """The history of one queue, or of the whole server, on this node.

    The caller adds to the totals and histograms and sets the depths; `close` makes a row of what was added since the
    last row of that resolution.
    """

    __slots__ = (
        "_base_histograms",
        "_base_totals",
        "changed_ms",
        "depths",
        "histograms",
        "oldest_ms",
        "rings",
        "since_ms",
        "totals",
    )

    def __init__(self, now_ms: int, since_ms: int = 0) -> None:
        self.totals = [0] * (len(RATES) + len(LATER_RATES))
        self.histograms = [[0] * BUCKETS for _ in KINDS]
        self.depths = [0] * len(DEPTHS)
        self.oldest_ms = 0  # when the oldest message was sent; 0: there is none
        self.changed_ms = now_ms
        self.since_ms = since_ms  # nothing is known of the time before
        self.rings = [Ring(resolution.steps) for resolution in RESOLUTIONS]
        self._base_totals = [[*self.totals] for _ in RESOLUTIONS]
        self._base_histograms = [[[*counts] for counts in self.histograms] for _ in RESOLUTIONS]

    def close(self, at: int, step: int, now_ms: int, began_ms: int) -> None:
        """Write the row of the step that ends now. `began_ms`: when the step began; a track that began later has
        counted only since then, but was idle before.
        """
        seconds = max(1, now_ms - began_ms) / 1000
        rates = [(now - base) / seconds for now, base in zip(self.totals, self._base_totals[at], strict=True)]
        row = rates[: len(RATES)]
        row += self.depths
        row.append((now_ms - self.oldest_ms) / 1000 if self.oldest_ms else 0.0)
        bases = self._base_histograms[at]
        for kind, (counts, base) in enumerate(zip(self.histograms, bases, strict=True)):
            if counts == base:
                row += (_NONE,) * len(SHARES)
                continue
            delta = [now - before for now, before in zip(counts, base, strict=True)]
            row += percentiles(delta, SHARES) or (_NONE,) * len(SHARES)
            bases[kind] = [*counts]
        row += rates[len(RATES) :]
        self._base_totals[at] = [*self.totals]
        self.rings[at].put(step, row)

    def rates(self, step: int, steps: int) -> list[float]:
        """Rates over the last steps up to `step`, of the finest resolution."""
        ring = self.rings[0]
        first = step - steps + 1
        found = [0.0] * len(RATES)
        for at in range(len(ring.steps) - 1, -1, -1):
            if ring.steps[at] < first:
                break
            for name in range(len(RATES)):
                found[name] += ring.values[at * WIDTH + name]
        return [total / steps for total in found]


class Book:
    """All tracks of a node. `server` is the track of everything; queues are found by their number."""

    def __init__(self, queues_max: int) -> None:
        self.server = Track(0)
        self.queues: dict[int, Track] = {}
        self.marks: list[Mark] = []
        self.step = 0  # the current step of the finest resolution
        self.first_step = 0  # the first one in which this node took samples
        self._queues_max = queues_max
        self._dropped: dict[int, int] = {}  # queues whose track was dropped, and when
        self._dirty: list[dict[int, None]] = [{} for _ in RESOLUTIONS]  # tracks that changed in the current step
        self._began_ms = [0] * len(RESOLUTIONS)  # when the current step of each resolution began

    def mark(self, at_ms: int, kind: str, text: str) -> None:
        self.marks.append(Mark(at_ms, kind, text))
        del self.marks[:-MARKS_MAX]

    def changed(self, number: int, now_ms: int, depths_before: Sequence[int] = ()) -> Track:
        """The track of a queue that has changed. A queue that was idle so far had `depths_before`."""
        track = self.queues.get(number)
        if track is None:
            if len(self.queues) >= self._queues_max:
                self._drop_one(now_ms)
            track = self.queues[number] = Track(now_ms, self._dropped.pop(number, 0))
            if depths_before:
                track.depths = [*depths_before]
                row = [0.0] * len(RATES) + [*depths_before, 0.0] + [_NONE] * len(PERCENTILES) + [0.0] * len(LATER_RATES)
                for ring, began_ms, resolution in zip(track.rings, self._began_ms, RESOLUTIONS, strict=True):
                    ring.put(max(0, began_ms // (resolution.step_s * 1000) - 1), row)
        track.changed_ms = now_ms
        for dirty in self._dirty:
            dirty[number] = None
        return track

    def _drop_one(self, now_ms: int) -> None:
        chosen = min(self.queues, key=lambda number: self.queues[number].changed_ms)
        if now_ms - self.queues[chosen].changed_ms < BUSY_MS:
            # Otherwise queues that are busy in turn would drop each other, and none would have a history.
            chosen = next(reversed(self.queues))
        self._dropped[chosen] = now_ms
        self._forget_track(chosen)

    def _forget_track(self, number: int) -> None:
        del self.queues[number]
        for dirty in self._dirty:
            dirty.pop(number, None)

    def forget(self, exist: Iterable[int]) -> None:
        """Forget the queues that no longer exist."""
        kept = {*exist}
        for number in [number for number in self.queues if number not in kept]:
            self._forget_track(number)
        self._dropped = {number: at_ms for number, at_ms in self._dropped.items() if number in kept}

    def start(self, now_ms: int) -> None:
        """Take samples from now on: the time before is a gap. Queues that were tracked before get a row soon, because
        nobody saw what happened meanwhile.
        """
        for dirty in self._dirty:
            dirty.update(dict.fromkeys(self.queues))
        self.step = self.first_step = now_ms // (SAMPLE_S * 1000)
        self._began_ms = [now_ms] * len(RESOLUTIONS)

    def due(self, now_ms: int) -> list[tuple[int, int, list[Track]]]:
        """The steps that have ended: resolution, step, and the tracks whose row is to be written with `close`."""
        found: list[tuple[int, int, list[Track]]] = []
        for at, resolution in enumerate(RESOLUTIONS):
            step = self._began_ms[at] // (resolution.step_s * 1000)
            if now_ms // (resolution.step_s * 1000) <= step:
                continue
            tracks = [self.queues[number] for number in self._dirty[at] if number in self.queues]
            found.append((at, step, [self.server, *tracks]))
            self._dirty[at] = {}
        return found

    def began(self, at: int) -> int:
        return self._began_ms[at]

    def ended(self, at: int, now_ms: int) -> None:
        """All rows of a step are written."""
        self._began_ms[at] = now_ms
        if at == 0:
            self.step = now_ms // (SAMPLE_S * 1000)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, range_name: str, number: int | None, now_ms: int, depths: Sequence[float] = ()) -> list[list[Value]]:
        """The values of one queue (None: of the server) by NAMES, one per step of a range that ends now.

        `depths` are the current depths and age of a queue that has no track, because it has been idle all the time.
        """
        at = BY_NAME[range_name]
        first, count = window(at, now_ms)
        columns: list[list[Value]] = [[None] * count for _ in NAMES]
        sampled = self.server.rings[at].steps
        covered = [step - first for step in sampled if first <= step < first + count]
        track = self.server if number is None else self.queues.get(number)
        if track is None:
            self._fill_idle(columns, covered, number or 0, at, first, depths, now_ms)
            return columns
        ring = track.rings[at]
        step_s = RESOLUTIONS[at].step_s
        for place in covered:
            step = first + place
            row_at = bisect_right(ring.steps, step) - 1
            if row_at < 0:
                if (step + 1) * step_s * 1000 <= track.since_ms:
                    continue
                row, own, later_s = ring.row(0) if ring.steps else _EMPTY_ROW, False, 0  # it was idle until then
            else:
                row, own = ring.row(row_at), ring.steps[row_at] == step
                later_s = (step - ring.steps[row_at]) * step_s
            for name in range(WIDTH):
                value = row[name]
                if name < len(RATES) or name >= FIRST_WIDTH:
                    columns[name][place] = _rate(value) if own else 0.0
                elif name < _AGE_AT:
                    columns[name][place] = int(value)
                elif name == _AGE_AT:
                    columns[name][place] = round(value + later_s, 3) if value else 0.0
                elif own and value != _NONE:
                    columns[name][place] = round(value, 2)
        return columns

    def _fill_idle(
        self,
        columns: list[list[Value]],
        covered: Sequence[int],
        number: int,
        at: int,
        first: int,
        depths: Sequence[float],
        now_ms: int,
    ) -> None:
        """A queue without a track has not changed since its track was dropped, or since sampling began."""
        step_s = RESOLUTIONS[at].step_s
        since_ms = self._dropped.get(number, 0)
        *levels, age_s = depths or (0.0,) * (len(DEPTHS) + 1)
        for place in covered:
            end_ms = (first + place + 1) * step_s * 1000
            if end_ms <= since_ms:
                continue
            for name in (*range(len(RATES)), *range(FIRST_WIDTH, WIDTH)):
                columns[name][place] = 0.0
            for name, level in enumerate(levels, len(RATES)):
                columns[name][place] = int(level)
            columns[_AGE_AT][place] = round(max(0.0, age_s - (now_ms - end_ms) / 1000), 3) if age_s else 0.0

    def trend(self, number: int, visible: int) -> list[int]:
        """Visible messages at TREND_POINTS moments of the last 15 minutes, the newest last."""
        track = self.queues.get(number)
        if track is None:
            return [visible] * TREND_POINTS
        every = RESOLUTIONS[0].steps // TREND_POINTS
        ring = track.rings[0]
        points = [ring.depth(self.step - every * back) for back in range(TREND_POINTS - 1, -1, -1)]
        return [*(point or 0 for point in points[:-1]), visible]

    # --- saving -----------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything as plain data, for MessagePack."""
        return {
            "version": VERSION,
            "names": [*NAMES],
            "steps": [resolution.step_s for resolution in RESOLUTIONS],
            "server": _dump_track(self.server),
            "queues": {number: _dump_track(track) for number, track in self.queues.items()},
            "dropped": dict(self._dropped),
            "marks": [tuple(mark) for mark in self.marks],
        }

    def load(self, data: dict[str, Any], exist: Iterable[int], now_ms: int) -> None:
        """Continue from what `dump` returned. Raises ValueError, TypeError or KeyError if that is damaged.

        An earlier release had fewer columns: what it did not have is unknown. Data of any other layout is left out.
        """
        names = data["names"]
        if (data["version"], data["steps"]) != (VERSION, [resolution.step_s for resolution in RESOLUTIONS]):
            return
        if names not in ([*NAMES], [*NAMES[:FIRST_WIDTH]]):
            return
        width = len(names)
        server = _load_track(data["server"], now_ms, width)
        kept = {*exist}
        queues = {
            int(number): _load_track(told, now_ms, width)
            for number, told in data["queues"].items()
            if int(number) in kept
        }
        marks = [Mark(int(at_ms), str(kind), str(text)) for at_ms, kind, text in data["marks"]]
        dropped = {int(number): min(int(at_ms), now_ms) for number, at_ms in data["dropped"].items()}
        self._dropped = {number: at_ms for number, at_ms in dropped.items() if number in kept}
        self.server, self.queues, self.marks = server, queues, marks[-MARKS_MAX:]
        while len(self.queues) > self._queues_max:
            self._drop_one(now_ms)


def window(at: int, now_ms: int) -> tuple[int, int]:
    """The first step of a resolution's range that ends now, and the number of steps. The step that has not ended yet
    is not part of it.
    """
    resolution = RESOLUTIONS[at]
    last = now_ms // (resolution.step_s * 1000) - 1
    return max(0, last - resolution.steps + 1), resolution.steps


def merged(parts: Sequence[Sequence[Sequence[Value]]]) -> list[list[Value]]:
    """The values of a queue, or of the server, from several nodes.

    Rates and depths are summed; of ages and percentiles the highest is taken. Percentiles of several nodes are
    therefore those of the slowest.
    """
    if len(parts) == 1:
        return [[*column] for column in parts[0]]
    whole: list[list[Value]] = []
    for name, columns in enumerate(zip(*parts, strict=True)):
        together: list[Value] = []
        for values in zip(*columns, strict=True):
            known = [value for value in values if value is not None]
            if not known:
                together.append(None)
            else:
                together.append(sum(known) if name < _AGE_AT or name >= FIRST_WIDTH else max(known))
        whole.append([round(value, 3) if value is not None else None for value in together])
    return whole


def _rate(value: float) -> float | None:
    return round(value, 3) if value == value else None  # a value that is not a number is unknown


def _dump_track(track: Track) -> list[Any]:
    rings = [(ring.steps.tobytes(), ring.values.tobytes()) for ring in track.rings]
    return [track.changed_ms, track.since_ms, rings]


def _load_track(told: Sequence[Any], now_ms: int, width: int) -> Track:
    changed_ms, since_ms, rings = told
    track = Track(now_ms, min(int(since_ms), now_ms))
    track.changed_ms = min(int(changed_ms), now_ms)
    for at, (ring, (steps, values)) in enumerate(zip(track.rings, rings, strict=True)):
        ring.steps.frombytes(steps)
        ring.values.frombytes(values)
        if width < WIDTH:
            ring.values = _widened(ring.values, width)
        rising = all(a < b for a, b in zip(ring.steps, ring.steps[1:], strict=False))
        if len(ring.values) != len(ring.steps) * WIDTH or not rising:
            raise ValueError("the rows of a time series do not fit together")
        first, _ = window(at, now_ms)
        ring.drop_before(first)
        ring.drop_from(now_ms // (RESOLUTIONS[at].step_s * 1000))
    return track


def _widened(values: array[float], width: int) -> array[float]:
    """Rows of fewer columns, with unknown values in the columns that they do not have."""
    unknown = array("f", [_UNKNOWN]) * (WIDTH - width)
    whole: array[float] = array("f")
    for at in range(0, len(values), width):
        whole += values[at : at + width]
        whole += unknown
    return whole
