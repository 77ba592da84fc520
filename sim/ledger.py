"""Books built from the committed frames of all shards, by independent rules: a second opinion on the log.

The ledger knows rows and payloads, and nothing about the core's state machine. It follows every copy of every message
from the record that created it to the record that ended it. Impossible records are anomalies, which the conservation
checker reports.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from batonq.core.payload import STORED, decode, decode_pointer
from batonq.core.records import FOREVER_MS, ArrivedFlag, Reason, SentFlag, Type, arrived_prefix
from batonq.log.frames import Frame
from sim.bodies import KEPT_MARK, number_of, published_number_of

_LOW32 = 0xFFFFFFFF
_SHARD_BITS = 0xFFFF


UNNUMBERED = -2  # the number of messages of schedules and replays, which no client has a number for
FIRST_PUBLISHED = -3  # published messages have numbers of their own, from here downwards

ReadObject = Callable[[str], bytes]  # the body that was put into the payload store under a key


def number_published(body_number: int) -> int:
    """The number of the copies of a published message."""
    return FIRST_PUBLISHED - body_number


def no_objects(key: str) -> bytes:
    """For runs without a payload store."""
    raise AssertionError(f"there is a pointer to {key}, and no payload store")


class Fired(NamedTuple):
    """A due time of a schedule that became a message."""

    due_ms: int
    sequence: int
    frame: int


@dataclass(slots=True)
class LeaseSpan:
    epoch: int
    began_ms: int
    deadline_ms: int
    ended_ms: int = -1  # by a return, a delete or a move
    place: int = 0  # of the commit that began it, see ShardBook.fold


@dataclass(slots=True)
class Copy:
    """One message on one shard. `number` is the number in its body; a move makes a new copy."""

    shard: int
    sequence: int
    queue: int
    number: int
    born_ms: int
    visible_ms: int
    expires_s: int
    source: tuple[int, int] | None = None  # the shard and channel number of its arrival
    owed: tuple[int, int, int, int] | None = None  # while owed: destination shard, channel number, queue, reason
    owed_ms: int = -1  # when it was last owed
    ended_ms: int = -1
    end: str = ""  # deleted, expired, moved, purged
    ended_at: int = -1  # the place of the commit that ended it
    dead_ms: int = -1  # since when it is DEAD
    gone_at: int = -1  # the place of the commit after which it no longer blocks its queue: it ended or became DEAD
    leases: list[LeaseSpan] = field(default_factory=list)
    key: str = ""  # of its body in the payload store

    @property
    def present(self) -> bool:
        return not self.end

    def lives_at(self, time_ms: int) -> bool:
        """Whether the copy certainly lives. A dead letter, and a message on its way to be one, does not count."""
        return time_ms < min(
            [end_ms for end_ms in (self.ended_ms, self.dead_ms, self.owed_ms) if end_ms >= 0], default=time_ms + 1
        )

    def may_live_at(self, time_ms: int) -> bool:
        """Whether the copy may live. A message on its way to another shard counts here until it has arrived there."""
        return time_ms < min([end_ms for end_ms in (self.ended_ms, self.dead_ms) if end_ms >= 0], default=time_ms + 1)


@dataclass(slots=True)
class Totals:
    """The books of one queue on one shard."""

    sent: int = 0
    arrived: int = 0
    deleted: int = 0
    expired: int = 0
    moved: int = 0
    moved_expired: int = 0  # the part of these that was dead-lettered because it expired
    purged: int = 0


class ShardBook:
    """The books of one shard. `fold` takes its frames in order."""

    def __init__(self, shard: int, read_object: ReadObject = no_objects) -> None:
        self.shard = shard
        self._read_object = read_object
        self.frames = 0
        self.copies: dict[int, Copy] = {}  # by sequence, including ended ones
        self.totals: dict[int, Totals] = {}  # by queue
        self.owed: dict[tuple[int, int], Copy] = {}  # (destination shard, number) → copy, including all past ones
        self.settled: dict[tuple[int, int], int] = {}  # → verdict
        self.arrived: dict[tuple[int, int], int] = {}  # (source shard, number) → verdict
        self.purge_ends_ms: dict[int, list[int]] = {}  # queue → when each of its purges ended
        self.scheduled: dict[int, int] = {}  # sequence of a message that a schedule sent → its frame
        self.firings: dict[tuple[int, str], list[Fired]] = {}  # by queue and name of the schedule
        self.rates_ms: dict[tuple[int, str], int] = {}
        self.anomalies: list[str] = []
        self._live: dict[int, dict[int, Copy]] = {}  # queue → its present copies by sequence
        self._at_slot: dict[int, Copy] = {}
        self._time_ms = 0
        self._place = 0
        self._handlers: dict[int, Callable[[list[int], bytes], None]] = {
            Type.SENT: self._sent,
            Type.LEASED: self._leased,
            Type.EXTENDED: self._extended,
            Type.RETURNED: self._returned,
            Type.DELETED: self._deleted,
            Type.OWED: self._owed,
            Type.ARRIVED: self._arrived,
            Type.SETTLED: self._settled,
            Type.QUEUE_PURGED: self._purged,
            Type.EPOCH: self._epoch,
            Type.SCHEDULE_SET: self._schedule,
        }

    def fold(self, frame: Frame, place: int = 0) -> None:
        """Add a frame. `place` is the position of its commit among those of all shards, whose clocks may differ."""
        assert frame.number == self.frames + 1, "the ledger takes every frame once"
        self._place = place
        words: array[int] = frame.words()
        for at in range(0, len(words), 8):
            row = list(words[at : at + 8])
            if row[2] < self._time_ms:
                self.anomalies.append(f"frame {frame.number} goes back in time, from {self._time_ms} to {row[2]}")
            self._time_ms = max(self._time_ms, row[2])
            handler = self._handlers.get(row[0] & 0xFF)
            if handler is not None:
                handler(row, frame.variable)
        self.frames = frame.number

    def live(self, queue: int) -> dict[int, Copy]:
        """The present copies of one queue by sequence, in order of arrival."""
        return self._live.setdefault(queue, {})

    def of(self, queue: int) -> Totals:
        return self.totals.setdefault(queue, Totals())

    # --- records ------------------------------------------------------------------------------

    def _new(self, copy: Copy, slot: int) -> None:
        if copy.sequence in self.copies:
            self.anomalies.append(f"sequence {copy.sequence} was given twice")
        other = self._at_slot.get(slot)
        if other is not None and other.present:
            self.anomalies.append(f"messages {other.sequence} and {copy.sequence} are in one slot")
        self.copies[copy.sequence] = copy
        self._at_slot[slot] = copy
        self.live(copy.queue)[copy.sequence] = copy

    def _find(self, row: list[int], what: str) -> Copy | None:
        copy = self.copies.get(row[1])
        if copy is None or not copy.present:
            state = "never was" if copy is None else f"was {copy.end} at {copy.ended_ms}"
            self.anomalies.append(f"message {row[1]} is {what} at {row[2]}, but it {state}")
            return None
        return copy

    def _end(self, copy: Copy, time_ms: int, end: str) -> None:
        copy.end = end
        copy.ended_ms = time_ms
        copy.ended_at = self._place
        copy.gone_at = copy.gone_at if copy.dead_ms >= 0 else self._place
        copy.owed = None
        self._end_lease(copy, time_ms)
        del self.live(copy.queue)[copy.sequence]

    @staticmethod
    def _end_lease(copy: Copy, time_ms: int) -> None:
        if copy.leases and copy.leases[-1].ended_ms < 0:
            copy.leases[-1].ended_ms = time_ms

    def _sent(self, row: list[int], variable: bytes) -> None:
        w0, sequence, time_ms, visible_ms, _, _, w6, w7 = row
        number, key = self._content(_part(variable, w6))
        if w0 >> 8 & SentFlag.SCHEDULED:
            number = UNNUMBERED
            self.scheduled[sequence] = self.frames + 1
        copy = Copy(self.shard, sequence, w0 >> 32, number, time_ms, visible_ms, w7 >> 32, key=key)
        self._new(copy, w7 & _LOW32)
        self.of(w0 >> 32).sent += 1

    def _content(self, data: bytes) -> tuple[int, str]:
        """The number of the message with this payload, and the key of its body in the payload store."""
        payload = decode(data)
        body, key = payload.body, ""
        if payload.content & STORED:
            key = decode_pointer(body)[0]
            body = self._read_object(key)
        if body.startswith(KEPT_MARK):
            return UNNUMBERED, key
        published = published_number_of(body)
        return number_of(body) if published < 0 else number_published(published), key

    def _schedule(self, row: list[int], variable: bytes) -> None:
        changes = json.loads(_part(variable, row[6]))
        key = row[0] >> 32, changes["name"]
        if "timing" in changes:
            self.rates_ms[key] = json.loads(changes["timing"]).get("rate_ms", 0)
        if row[1]:
            self.firings.setdefault(key, []).append(Fired(changes["last_due_ms"], row[1], self.frames + 1))

    def _leased(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "leased")
        if copy is None:
            return
        epoch = row[4] & _LOW32
        last = copy.leases[-1] if copy.leases else None
        if last is not None and (last.ended_ms < 0 or epoch <= last.epoch):
            self.anomalies.append(f"message {copy.sequence} is leased as {epoch} at {row[2]} over {last}")
        if copy.owed is not None or row[2] < copy.visible_ms or copy.dead_ms >= 0:
            self.anomalies.append(f"message {copy.sequence} is leased at {row[2]} though it is not visible: {copy}")
        copy.leases.append(LeaseSpan(epoch, row[2], row[3], place=self._place))

    def _extended(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "extended")
        if copy is None:
            return
        if not copy.leases or copy.leases[-1].ended_ms >= 0:
            self.anomalies.append(f"message {copy.sequence} is extended at {row[2]} though nobody holds it")
            return
        copy.leases[-1].deadline_ms = row[3]

    def _returned(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "returned")
        if copy is None:
            return
        reason = row[0] >> 24 & 0xFF
        held = bool(copy.leases) and copy.leases[-1].ended_ms < 0
        if held and reason == Reason.EXPIRED and row[2] < copy.leases[-1].deadline_ms:
            self.anomalies.append(f"the lease of message {copy.sequence} is ended at {row[2]}, before its time")
        self._end_lease(copy, row[2])
        if row[3] == FOREVER_MS:
            copy.dead_ms, copy.gone_at = row[2], self._place
        else:
            copy.visible_ms, copy.dead_ms, copy.gone_at = row[3], -1, -1

    def _deleted(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "deleted")
        if copy is None:
            return
        totals = self.of(copy.queue)
        if row[0] >> 24 & 0xFF == Reason.RETENTION:
            if row[2] < copy.expires_s * 1000:
                self.anomalies.append(f"message {copy.sequence} is expired at {row[2]}, before {copy.expires_s} s")
            self._end(copy, row[2], "expired")
            totals.expired += 1
        else:
            self._end(copy, row[2], "deleted")
            totals.deleted += 1

    def _owed(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "owed")
        if copy is None:
            return
        way = (row[3] & _SHARD_BITS, row[3] >> 16)
        if copy.owed is not None or way in self.owed:
            self.anomalies.append(f"message {copy.sequence} is owed by {way} a second time")
        self._end_lease(copy, row[2])
        copy.owed = (*way, row[7] >> 32, row[0] >> 24 & 0xFF)
        copy.owed_ms = row[2]
        self.owed[way] = copy

    def _arrived(self, row: list[int], variable: bytes) -> None:
        w0, sequence, time_ms, _, _, w5, w6, w7 = row
        flags = w0 >> 8 & 0xFF
        verdict = w0 >> 24 & 0xFF if flags & ArrivedFlag.REFUSED else int(Reason.ACCEPTED)
        if flags & ArrivedFlag.OVERLAY:
            way = self._way_within(row)
        else:
            way = (w5 & _SHARD_BITS, w5 >> 16)
        if way is not None:
            if way in self.arrived:
                self.anomalies.append(f"entry {way[1]} of the channel from shard {way[0]} arrived twice")
            self.arrived[way] = verdict
        if flags & ArrivedFlag.REFUSED:
            return
        if flags & ArrivedFlag.OVERLAY:
            source = self._at_slot.get(w5 & _LOW32)
            number, key = (source.number, source.key) if source is not None else (-1, "")
        else:
            number, key = self._content(_part(variable, w6)[arrived_prefix(flags) :])
        copy = Copy(self.shard, sequence, w0 >> 32, number, time_ms, time_ms, w7 >> 32, way, key=key)
        self._new(copy, w7 & _LOW32)
        self.of(w0 >> 32).arrived += 1

    def _way_within(self, row: list[int]) -> tuple[int, int] | None:
        """The source of an arrival within one shard. The row names the source's slot; the Owed record before it has the
        channel number.
        """
        source = self._at_slot.get(row[5] & _LOW32)
        if source is None or source.owed is None:
            self.anomalies.append(f"message {row[1]} arrives from slot {row[5] & _LOW32}, which owes nothing")
            return None
        return self.shard, source.owed[1]

    def _settled(self, row: list[int], _: bytes) -> None:
        copy = self._find(row, "settled")
        if copy is None:
            return
        way = (row[3] & _SHARD_BITS, row[3] >> 16)
        if copy.owed is None or copy.owed[:2] != way:
            self.anomalies.append(f"message {copy.sequence} is settled by {way}, but it owes {copy.owed}")
            return
        verdict = row[0] >> 24 & 0xFF
        self.settled[way] = verdict
        reason = copy.owed[3]
        copy.owed = None
        if verdict == Reason.ACCEPTED:
            self._end(copy, row[2], "moved")
            self.of(copy.queue).moved += 1
            self.of(copy.queue).moved_expired += reason == Reason.EXPIRY_DEAD_LETTER
        elif row[4] == FOREVER_MS:
            if copy.dead_ms < 0:  # else it was to be redriven, and is dead again as before
                copy.dead_ms, copy.gone_at = row[2], self._place
        else:
            copy.visible_ms, copy.dead_ms, copy.gone_at = row[4], -1, -1

    def _purged(self, row: list[int], _: bytes) -> None:
        queue = row[0] >> 32
        for copy in [copy for copy in self.live(queue).values() if copy.sequence < row[1] and copy.owed is None]:
            self._end(copy, row[2], "purged")
            self.of(queue).purged += 1
        if row[3]:
            self.purge_ends_ms.setdefault(queue, []).append(row[2])

    def _epoch(self, row: list[int], _: bytes) -> None:
        """Running leases are extended by a grace for the outage."""
        for copies in self._live.values():
            for copy in copies.values():
                if copy.leases and copy.leases[-1].ended_ms < 0:
                    copy.leases[-1].deadline_ms += row[4]


class Ledger:
    """The books of all shards."""

    def __init__(self, read_object: ReadObject = no_objects) -> None:
        self.books: dict[int, ShardBook] = {}
        self._read_object = read_object

    def book(self, shard: int) -> ShardBook:
        if shard not in self.books:
            self.books[shard] = ShardBook(shard, self._read_object)
        return self.books[shard]

    def copies(self) -> Iterator[Copy]:
        for book in self.books.values():
            yield from book.copies.values()

    def by_number(self) -> dict[int, list[Copy]]:
        """The copies of each message, in the order in which they were made on their shards."""
        found: dict[int, list[Copy]] = {}
        for copy in self.copies():
            if copy.number > UNNUMBERED:
                found.setdefault(copy.number, []).append(copy)
        return found


def _part(variable: bytes, w6: int) -> bytes:
    offset = w6 & _LOW32
    return variable[offset : offset + (w6 >> 32)]
