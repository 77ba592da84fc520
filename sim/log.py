"""Slow appends, and a witness of committed frames, on top of the real log on its faulty disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from batonq.log.frames import Frame
from batonq.log.interface import Done, Log, Piece, Room, SegmentInfo
from batonq.log.layout import CATALOG_SHARD
from sim.ledger import Ledger, ReadObject, no_objects
from sim.loop import Life, SimLoop


class Witness:
    """Keeps every frame of every shard, and reports a committed frame that is missing after a crash.

    A frame that was being written at a crash may or may not have survived: the log decides when it is opened.
    """

    def __init__(self, read_object: ReadObject = no_objects) -> None:
        self.ledger = Ledger(read_object)
        self.lost: list[str] = []
        self.frames: dict[int, list[Frame]] = {}
        self.places: dict[int, list[int]] = {}  # of each frame's commit among all
        self.commits = 0  # of all shards

    def committed(self, shard: int, frame: Frame) -> None:
        frames = self.frames.setdefault(shard, [])
        assert frame.number == len(frames) + 1, f"shard {shard}: frame {frame.number} is committed out of order"
        frames.append(frame)
        self._place(shard)

    def opened(self, log: Log) -> None:
        frames = self.frames.setdefault(log.shard, [])
        known = len(frames)
        if log.next <= known:
            self.lost.append(f"shard {log.shard}: frame {known} was committed, the log ends with {log.next - 1}")
        elif known and known >= log.first and log.frame(known).digest != frames[-1].digest:
            self.lost.append(f"shard {log.shard}: frame {known} is another one than was committed")
        else:
            frames.extend(log.frames(known + 1))
            self._place(log.shard)
            return
        frames[log.first - 1 :] = log.frames(log.first)
        self.ledger.books.pop(log.shard, None)
        self.places.pop(log.shard, None)
        self._place(log.shard)

    def _place(self, shard: int) -> None:
        """New frames of a shard come after everything committed before."""
        places = self.places.setdefault(shard, [])
        while len(places) < len(self.frames[shard]):
            self.commits += 1
            places.append(self.commits)

    def fold(self) -> Ledger:
        """The books up to now. Committed frames never change, so each is added once."""
        for shard, frames in self.frames.items():
            if shard == CATALOG_SHARD:
                continue
            book = self.ledger.book(shard)
            for at in range(book.frames, len(frames)):
                book.fold(frames[at], self.places[shard][at])
        return self.ledger

    def count(self) -> int:
        return sum(map(len, self.frames.values()))


class SlowLog:
    """See interface.Log. An append beside the loop ends later; an append on the loop's thread blocks all other work."""

    far = False

    def __init__(self, inner: Log, loop: SimLoop, life: Life, latency_s: Callable[[], float], witness: Witness) -> None:
        self._inner = inner
        self._loop = loop
        self._life = life
        self._latency_s = latency_s
        self._witness = witness
        self._under_way: Callable[[], None] | None = None
        if life.alive:
            witness.opened(inner)

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        if self._under_way is not None:
            raise AssertionError("one append at a time")

        def finish(problem: BaseException | None) -> None:
            if not self._life.alive:
                return  # the node crashed during this append
            if problem is None:
                self._witness.committed(self._inner.shard, frame)
            done(problem)

        def run() -> None:
            if self._under_way is not None:
                self._under_way = None
                self._inner.append(frame, finish)

        self._under_way = run
        if in_thread:
            self._loop.call_later(self._latency_s(), run)
        else:
            self._loop.pass_time(self._latency_s())
            run()

    def close(self) -> None:
        """Like the real log, wait for the append in progress."""
        if self._under_way is not None:
            self._under_way()
        self._inner.close()

    # --- the rest is the real log's ------------------------------------------------------------

    @property
    def shard(self) -> int:
        return self._inner.shard

    @property
    def first(self) -> int:
        return self._inner.first

    @property
    def next(self) -> int:
        return self._inner.next

    @property
    def tail_digest(self) -> bytes:
        return self._inner.tail_digest

    @property
    def frame_bytes_max(self) -> int:
        return self._inner.frame_bytes_max

    @property
    def tail_epoch(self) -> int:
        return self._inner.tail_epoch

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        return self._inner.frames(start, stop)

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        return self._inner.read_variable(position, offset, length)

    def section(self, number: int) -> bytes | None:
        return self._inner.section(number)

    def is_cold(self, number: int) -> bool:
        return self._inner.is_cold(number)

    def warm(self, numbers: Sequence[int]) -> None:
        self._inner.warm(numbers)

    def frame(self, number: int) -> Frame:
        return self._inner.frame(number)

    def room(self) -> Room:
        return self._inner.room()

    def bytes_retained(self) -> int:
        return self._inner.bytes_retained()

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        return self._inner.piece(start, bytes_max, frames_max)

    def droppable(self, before: int) -> int:
        return self._inner.droppable(before)

    def segments(self) -> list[SegmentInfo]:
        return self._inner.segments()

    def drop_front(self, before: int) -> None:
        self._inner.drop_front(before)

    def note(self) -> None:
        self._inner.note()

    def tick(self) -> None:
        self._inner.tick()
