"""Samples the queues that this node serves, every few seconds, for rates, totals and time series.

All queues are compared with what was last seen, a few hundred per turn of the event loop. Only those that changed cost
more than that comparison. What is kept is what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from batonq.core.shard.machine import Shard
from batonq.errors import BatonError
from batonq.node import events
from batonq.node.monitoring.histogram import BUCKETS
from batonq.node.monitoring.series import DEPTHS, EMPTY_RECEIVES_AT, KINDS, SAMPLE_S, SENT_BYTES_AT, Book
from batonq.node.monitoring.series_file import SeriesFile
from batonq.node.shard_host.host import committed
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.tasks import off_the_loop

AT_ONCE = 400  # queues that are compared before other requests get a turn
CHANGED_AT_ONCE = 50  # and queues that changed
COMMIT_S = 2.0  # how long a sample waits for the commit of what it has seen
SAVE_S = 60.0
SAVE_BYTES = 4 << 20
RATE_STEPS = 6  # rates are over this many samples: 30 s

# Of a queue on a shard, in the order of a track's totals and depths. Messages that arrive from another queue are not
# sent by a client.
_TOTALS = ("sent", "received", "deleted", "returned", "dead_lettered", "expired_messages", "sent_bytes")
_seen_of = attrgetter(*_TOTALS, "visible", "in_flight", "delayed")
_COUNT = len(_TOTALS)
assert SENT_BYTES_AT == _COUNT - 1 and EMPTY_RECEIVES_AT == _COUNT
Seen = tuple[int, ...]


class Rates(NamedTuple):
    """Messages per second."""

    sent: float = 0.0
    received: float = 0.0
    acked: float = 0.0
    retried: float = 0.0
    dead_lettered: float = 0.0
    expired: float = 0.0

    def plus(self, other: Rates) -> Rates:
        return Rates(*map(sum, zip(self, other, strict=True)))


NO_RATES = Rates()


class _Slice:
    """What was last seen of the queues on one shard."""

    __slots__ = ("histograms", "oldest_ms", "queues", "shard", "sums_ms")

    def __init__(self, shard: Shard) -> None:
        self.shard = shard  # another object when the shard was opened again: then its histograms begin at zero
        self.queues: dict[int, Seen] = {}
        self.histograms: dict[int, tuple[list[int], ...]] = {}
        self.sums_ms: dict[int, tuple[int, ...]] = {}
        self.oldest_ms: dict[int, int] = {}  # of queues that have messages


class Sampler:
    """`book` has the time series. `empty_receives` returns the number of receives that got no message and were
    answered by this node, by queue. They count here, even if the queue is served by another node.
    """

    def __init__(
        self,
        shards: Sequence[ShardKeeper],
        now_ms: Callable[[], int],
        queues_max: int,
        empty_receives: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self.book = Book(queues_max)
        self._shards = shards
        self._now_ms = now_ms
        self.sums_ms = [0] * len(KINDS)  # of the durations in the server's histograms
        self._slices: dict[int, _Slice] = {}
        self._empty_receives = empty_receives
        self._empty_seen: dict[int, int] = {}

    async def begin(self) -> None:
        """Look at all queues once: what happened before is not part of the series."""
        now_ms = self._now_ms()
        self.book.start(now_ms)
        self._empty_seen = dict(self._empty_receives())
        await self._look_at_all(now_ms)

    async def sample(self) -> None:
        """Look at all queues, and write the rows of the steps that have ended."""
        now_ms = self._now_ms()
        await self._look_at_all(now_ms)
        done = 0
        for at, step, tracks in self.book.due(now_ms):
            began_ms = self.book.began(at)
            for track in tracks:
                track.close(at, step, now_ms, began_ms)
                done += 1
                if done % CHANGED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self.book.ended(at, now_ms)

    async def _look_at_all(self, now_ms: int) -> None:
        for keeper in self._shards:
            if keeper.serving:
                try:
                    await self._look(keeper, now_ms)
                    continue
                except TimeoutError:
                    continue  # the disk hangs: what was seen last stays
                except BatonError:
                    pass
            self._leave(keeper.number, now_ms)
        oldest = (min(slice_.oldest_ms.values()) for slice_ in self._slices.values() if slice_.oldest_ms)
        self.book.server.oldest_ms = min(oldest, default=0)
        await self._look_at_empty_receives(now_ms)

    def rates(self, queue: int) -> Rates:
        """The rates of a queue on this node's shards over the last half minute."""
        track = self.book.queues.get(queue)
        steps = min(RATE_STEPS, self.book.step - self.book.first_step)
        return NO_RATES if track is None or steps < 1 else Rates(*track.rates(self.book.step - 1, steps))

    # --- looking ------------------------------------------------------------------------------------

    async def _look_at_empty_receives(self, now_ms: int) -> None:
        before, seen = self._empty_seen, dict(self._empty_receives())
        self._empty_seen = seen
        if seen == before:
            return
        server = self.book.server
        done = 0
        for number, count in seen.items():
            delta = count - before.get(number, 0)
            if delta > 0:
                track = self.book.changed(number, now_ms, () if number in self.book.queues else self._depths(number))
                track.oldest_ms = self._oldest(number)
                track.totals[EMPTY_RECEIVES_AT] += delta
                server.totals[EMPTY_RECEIVES_AT] += delta
                done += 1
                if done % CHANGED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _look(self, keeper: ShardKeeper, now_ms: int) -> None:
        host = keeper.host()
        shard = host.shard
        slice_ = self._slices.get(keeper.number)
        unseen: Seen | None = (0,) * (_COUNT + len(DEPTHS))  # of a queue that was created since the last look
        if slice_ is None:
            slice_ = self._slices[keeper.number] = _Slice(shard)
            unseen = None
        elif slice_.shard is not shard:
            slice_.shard, slice_.histograms, slice_.sums_ms = shard, {}, {}
            _count_bytes_anew(slice_, shard)
        before, oldest = slice_.queues, slice_.oldest_ms
        changed: dict[int, Seen] = {}
        queues = shard.queues
        numbers = [*queues]
        for start in range(0, len(numbers), AT_ONCE):
            for number in numbers[start : start + AT_ONCE]:
                queue = queues.get(number)
                if queue is None:
                    continue
                seen = _seen_of(queue)
                if before.get(number) != seen:
                    changed[number] = seen
                    sent_ms = shard.oldest_sent(number)
                    if sent_ms:
                        oldest[number] = sent_ms
                    else:
                        oldest.pop(number, None)
            await asyncio.sleep(0)
        async with asyncio.timeout(COMMIT_S):
            await committed(host)
        gone = [number for number in before if number not in queues]
        for number in gone:
            self._take_away(slice_, number, now_ms)
        for done, (number, seen) in enumerate(changed.items()):
            self._add(slice_, number, before.get(number, unseen), seen, now_ms)
            before[number] = seen
            if done % CHANGED_AT_ONCE == CHANGED_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _add(self, slice_: _Slice, number: int, before: Seen | None, seen: Seen, now_ms: int) -> None:
        """Add what has changed in a queue to its track and to the server's. `before` is None at the first look."""
        if before == seen:
            return  # a new queue, still empty
        server = self.book.server
        levels = (0,) * len(DEPTHS) if before is None else before[_COUNT:]
        for at, level in enumerate(seen[_COUNT:]):
            server.depths[at] += level - levels[at]
        tracked = number in self.book.queues
        if before is None and not tracked:
            self._histogram_deltas(slice_, number)  # what happened before is not part of the series
            self._sum_deltas(slice_, number)
            return
        track = self.book.changed(number, now_ms, self._depths(number) if not tracked else ())
        for at, level in enumerate(seen[_COUNT:]):
            track.depths[at] += level - levels[at]
        track.oldest_ms = self._oldest(number)
        if before is None:
            self._histogram_deltas(slice_, number)
            self._sum_deltas(slice_, number)
            return
        for at in range(_COUNT):
            delta = seen[at] - before[at]
            if delta > 0:
                track.totals[at] += delta
                server.totals[at] += delta
        for kind, deltas in enumerate(self._histogram_deltas(slice_, number)):
            for bucket, delta in deltas:
                track.histograms[kind][bucket] += delta
                server.histograms[kind][bucket] += delta
        for kind, delta in enumerate(self._sum_deltas(slice_, number)):
            self.sums_ms[kind] += delta

    def _histogram_deltas(self, slice_: _Slice, number: int) -> list[list[tuple[int, int]]]:
        """What was added to the histograms of a queue on a shard: bucket and count."""
        latencies = slice_.shard.latencies_of(number)
        if latencies is None:
            return []
        now = latencies.waited, latencies.handled, latencies.lived
        before = slice_.histograms.get(number)
        slice_.histograms[number] = tuple([*counts] for counts in now)
        if before is None:
            return [[(bucket, count) for bucket, count in enumerate(counts) if count] for counts in now]
        return [
            [] if counts == known else [(b, counts[b] - known[b]) for b in range(BUCKETS) if counts[b] != known[b]]
            for counts, known in zip(now, before, strict=True)
        ]

    @staticmethod
    def _sum_deltas(slice_: _Slice, number: int) -> list[int]:
        latencies = slice_.shard.latencies_of(number)
        if latencies is None:
            return []
        now = latencies.waited_ms, latencies.handled_ms, latencies.lived_ms
        before = slice_.sums_ms.get(number, (0,) * len(now))
        slice_.sums_ms[number] = now
        return [after - earlier for after, earlier in zip(now, before, strict=True)]

    def _take_away(self, slice_: _Slice, number: int, now_ms: int) -> None:
        """A queue was deleted, or its shard is served elsewhere: its messages are no longer counted here."""
        seen = slice_.queues.pop(number)
        slice_.histograms.pop(number, None)
        slice_.sums_ms.pop(number, None)
        slice_.oldest_ms.pop(number, None)
        for at, level in enumerate(seen[_COUNT:]):
            self.book.server.depths[at] -= level
        if number in self.book.queues:
            track = self.book.changed(number, now_ms)
            for at, level in enumerate(seen[_COUNT:]):
                track.depths[at] -= level
            track.oldest_ms = self._oldest(number)

    def _leave(self, shard: int, now_ms: int) -> None:
        slice_ = self._slices.pop(shard, None)
        if slice_ is not None:
            for number in [*slice_.queues]:
                self._take_away(slice_, number, now_ms)

    def _depths(self, number: int) -> list[int]:
        """The depths of a queue as last seen, on all shards of this node."""
        seen = [slice_.queues[number][_COUNT:] for slice_ in self._slices.values() if number in slice_.queues]
        return [*map(sum, zip(*seen, strict=True))] if seen else [0] * len(DEPTHS)

    def _oldest(self, number: int) -> int:
        times = (slice_.oldest_ms.get(number, 0) for slice_ in self._slices.values())
        return min((time_ms for time_ms in times if time_ms), default=0)


def _count_bytes_anew(slice_: _Slice, shard: Shard) -> None:
    """A shard that was opened again has counted the bytes sent from another moment on."""
    for number, seen in slice_.queues.items():
        queue = shard.queues.get(number)
        if queue is not None:
            slice_.queues[number] = (*seen[:SENT_BYTES_AT], queue.sent_bytes, *seen[_COUNT:])


class SeriesKeeper:
    """Takes samples, and keeps the series in a file: written at most once a minute, more rarely if there is much."""

    def __init__(
        self,
        sampler: Sampler,
        file: SeriesFile | None,
        exist: Callable[[], Iterable[int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._sampler = sampler
        self._file = file
        self._exist = exist  # the numbers of all queues; raises BatonError while they are not known
        self._now_ms = now_ms
        self._size = 0
        self.begun = False  # nothing is saved before what was saved earlier is loaded

    async def run(self, started: str) -> None:
        """Run until cancelled. `started` is the text of the mark at the beginning."""
        await self._load()
        self._sampler.book.mark(self._now_ms(), "start", started)
        await self._sampler.begin()
        self.begun = True
        samples = 0
        while True:
            await asyncio.sleep(SAMPLE_S - self._now_ms() / 1000 % SAMPLE_S)
            try:
                await self._sampler.sample()
            except Exception:  # a sample that fails is a gap
                events.logger.exception("a sample of the queues could not be taken")
            samples += 1
            if samples * SAMPLE_S >= SAVE_S * max(1, self._size / SAVE_BYTES):
                samples = 0
                await self.save()

    async def save(self) -> None:
        book = self._sampler.book
        with suppress(BatonError):
            book.forget(self._exist())
        if self._file is not None and self.begun:
            self._size = await off_the_loop(partial(self._file.save, book.dump()))

    async def _load(self) -> None:
        if self._file is None:
            return
        data = await asyncio.to_thread(self._file.load)
        if data is not None:
            try:
                self._sampler.book.load(data, self._exist(), self._now_ms())
            except (BatonError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
                self._file.tell_damage(problem)
