"""Statistics of one queue from the log: processing times, failures, arrivals and departures.

The processing time of a message is the time from its lease to its delete. Both are records in the log, so the server
collects nothing and nothing is sampled: the command reads the newest part of the log. The time includes waiting in a
consumer's local buffer, because the visibility timeout must cover that too.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from batonq.cli.log import Place, live_stop
from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.machine import Catalog
from batonq.core.records import ROW_WORDS, Reason, Type
from batonq.errors import InvalidInput, LogCorrupt, QueueDoesNotExist, Unavailable
from batonq.log import layout
from batonq.log.damage_scan import walk
from batonq.log.disk import Disk, RealDisk
from batonq.log.frames import Frame
from batonq.log.reading import Damage

MINUTE_MS = 60_000
_FAILURES = (Reason.NACK, Reason.EXPIRED)
_ENDS = (Reason.ACK, Reason.LATE_ACK)


@dataclass(slots=True)
class Measured:
    """The statistics of one queue over the part of the log that was read."""

    times_s: list[float] = field(default_factory=list)  # from lease to delete, for each completed message
    tries: Counter[int] = field(default_factory=Counter)  # number of leases of those messages
    leases: int = 0
    failures: int = 0  # leases that were nacked or expired
    late: int = 0  # messages deleted after their lease had expired
    first_ms: int = 0
    last_ms: int = 0
    arrived: Counter[int] = field(default_factory=Counter)  # by minute
    done: Counter[int] = field(default_factory=Counter)

    @property
    def span_s(self) -> float:
        return max(1.0, (self.last_ms - self.first_ms) / 1000)

    @property
    def arrival_rate(self) -> float:
        """Messages per second, over the whole time."""
        return self.arrived.total() / self.span_s

    @property
    def drain_rate(self) -> float:
        """Messages completed per second in the busiest minute, a lower bound of the capacity."""
        return max(self.done.values(), default=0) / min(60.0, self.span_s)

    @property
    def busy(self) -> float:
        """Average number of messages being processed at the same time."""
        return sum(self.times_s) / self.span_s

    @property
    def failed_share(self) -> float:
        return self.failures / self.leases if self.leases else 0.0

    def tries_of(self, share: float) -> int:
        """The number of leases that was enough for this share of the completed messages."""
        wanted, seen = share * self.tries.total(), 0
        for tries in sorted(self.tries):
            seen += self.tries[tries]
            if seen >= wanted:
                return tries
        return 0


class Folding:
    """Reads the frames of several logs, one after another, and collects the statistics of one queue."""

    def __init__(self, queue: int) -> None:
        self.found = Measured()
        self._queue = queue
        self._leased: dict[int, int] = {}  # sequence → time of its lease

    def begin_log(self) -> None:
        """Start the log of another shard, which has its own sequence numbers."""
        self._leased.clear()

    def add(self, words: array[int]) -> None:
        found, leased = self.found, self._leased
        for row, w0 in enumerate(words[0::ROW_WORDS]):
            if w0 >> 32 != self._queue:
                continue
            type_ = w0 & 0xFF
            sequence, time_ms = words[row * ROW_WORDS + 1], words[row * ROW_WORDS + 2]
            reason = w0 >> 24 & 0xFF
            if type_ in (Type.SENT, Type.ARRIVED):
                found.arrived[time_ms // MINUTE_MS] += 1
            elif type_ == Type.LEASED:
                leased[sequence] = time_ms
                found.leases += 1
            elif type_ == Type.RETURNED:
                if reason in _FAILURES:
                    found.failures += 1
                if reason != Reason.EXPIRED:  # its last holder may still delete it, late
                    leased.pop(sequence, None)
            elif type_ == Type.DELETED:
                self._ended(sequence, time_ms, reason, words[row * ROW_WORDS + 4] >> 32)
            else:
                continue
            found.first_ms = min(found.first_ms or time_ms, time_ms)
            found.last_ms = max(found.last_ms, time_ms)

    def _ended(self, sequence: int, time_ms: int, reason: int, receive_count: int) -> None:
        begun_ms = self._leased.pop(sequence, None)
        if reason not in _ENDS:
            return
        self.found.done[time_ms // MINUTE_MS] += 1
        self.found.late += reason == Reason.LATE_ACK
        if begun_ms is not None:  # otherwise the lease is older than the part that was read
            self.found.times_s.append(max(0, time_ms - begun_ms) / 1000)
            self.found.tries[receive_count] += 1


# --- reading ------------------------------------------------------------------------------------


def read_catalog(directory: str, disk: Disk | None = None) -> Catalog:
    """The catalog of a data directory, whether or not a server is using it."""
    disk = disk or RealDisk()
    place = Place(disk, directory, layout.CATALOG_SHARD)
    catalog = Catalog()
    for found in _frames(disk, place, layout.CATALOG_SHARD):
        catalog.apply_frame(found.number, found.words(), found.variable)
    return catalog


def find_queue(directory: str, name: str, account: str | None, disk: Disk | None = None) -> QueueEntry:
    """Find a queue by name in a data directory, whether or not a server is using it."""
    catalog = read_catalog(directory, disk)
    matching = [entry for entry in catalog.queues.values() if entry.name == name and account in (None, entry.account)]
    if not matching:
        raise QueueDoesNotExist(f"Queue {name!r} does not exist in {directory}.")
    if len(matching) > 1:
        accounts = ", ".join(sorted(entry.account for entry in matching))
        raise InvalidInput(f"Several accounts have a queue {name!r}. Choose one with --account: {accounts}")
    return matching[0]


def measure(directory: str, entry: QueueEntry, bytes_max: int, disk: Disk | None = None) -> Measured:
    """Read the newest part of the queue's logs: whole segments of about `bytes_max` bytes in total."""
    disk = disk or RealDisk()
    folding = Folding(entry.number)
    for shard in entry.shards:
        place = Place(disk, directory, shard)
        folding.begin_log()
        start = _start(disk, place.logs[shard], bytes_max // len(entry.shards))
        for frame in _frames(disk, place, shard, start):
            folding.add(frame.words())
    return folding.found


def _start(disk: Disk, directory: str, bytes_max: int) -> int:
    """The first frame of the oldest segment to read; the last segment is always read."""
    firsts = layout.segments(disk, directory)
    start, left = firsts[-1], bytes_max
    for first in reversed(firsts):
        left -= disk.size(f"{directory}/{layout.segment_name(first)}")
        if left < 0:
            break
        start = first
    return start


def _frames(disk: Disk, place: Place, shard: int, start: int = 1) -> Iterator[Frame]:
    directory = place.logs[shard]
    stop = live_stop(disk, place, directory, shard)
    try:
        for found in walk(disk, directory, shard=shard, cluster=place.cluster, start=start, stop=stop):
            if not isinstance(found, Damage):
                yield found.frame
            elif stop is not None:
                raise Unavailable(_SHORTENED)  # most likely the server is reusing old segment files
            elif found.number >= layout.segments(disk, directory)[-1]:
                return  # a write that a crash interrupted looks like this
            else:
                raise LogCorrupt(f"The log cannot be read ({found.message}): see `baton log verify`.")
    except FileNotFoundError:
        raise Unavailable(_SHORTENED) from None


_SHORTENED = "The server truncated its log while it was being read. Retry."
