"""The history of one message, read from the retained log.

Every record of a message names the position of the message's previous record, so the history of a message that exists
is read backwards, one frame per record. A message that no longer exists is found by a binary search for the frame in
which it was created, because sequences only grow; from there the log is read forwards. Both are bounded, and let other
requests run between frames.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple

from batonq.core.commands import MessageView
from batonq.core.ids import message_id
from batonq.core.payload import Lineage, Payload, decode, merge_lineage, with_lineage
from batonq.core.records import (
    CARRIED_PREFIX,
    EDITED_PREFIX,
    FOREVER_MS,
    ROW_BYTES,
    ArrivedFlag,
    Reason,
    ReturnedFlag,
    State,
    Type,
    arrived_prefix,
    decode_notes,
    part_of,
    skip,
)
from batonq.core.shard.state.columns import NIL
from batonq.errors import LogError, QueueDoesNotExist, Unavailable
from batonq.log.frames import Frame
from batonq.node.messages.peek import Peeked, first_after, peeked_from, read_view
from batonq.node.shard_host.host import ShardHost, committed

EVENTS_MAX = 200  # per message
FRAMES_MAX = 20_000  # read per request
BYTES_MAX = 128 << 20  # read per request
TURN_BYTES = 1 << 20  # read before other requests get a turn
_ROW = struct.Struct("<8Q")
_LOW32 = 0xFFFFFFFF
_RETURNED = {
    Reason.NACK: "nacked",
    Reason.EXPIRED: "leaseExpired",
    Reason.RELEASED: "released",
    Reason.UNDELIVERABLE: "dead",
    Reason.OPERATOR: "retried",
}
_DELETED = {
    Reason.ACK: "acknowledged",
    Reason.LATE_ACK: "acknowledgedLate",
    Reason.RETENTION: "expired",
    Reason.OPERATOR: "deleted",
}
_MOVES = {Reason.DEAD_LETTER: "dead letter", Reason.REDRIVE: "redrive", Reason.EXPIRY_DEAD_LETTER: "expired"}
_REFUSALS = {
    Reason.REFUSED_NO_QUEUE: "the queue does not exist",
    Reason.REFUSED_FULL: "the queue is full",
    Reason.REFUSED_PAUSED: "sends to the queue are paused",
    Reason.REFUSED_TYPE: "the queue has another type (standard or FIFO)",
    Reason.REFUSED_MOVED: "the message belongs on another shard of the queue",
}
DROPPED = "Earlier events are no longer in the retained log."
CUT = f"Only the newest {EVENTS_MAX} events are shown."
MOVED = "The message was moved, not lost: its content is now in the queue that it was moved to."
TOO_FAR = "The search in the log was stopped at its limit, so later events may be missing."


class Event(NamedTuple):
    """One thing that happened to a message."""

    at_ms: int
    event: str
    queue: int  # number
    holder: str = ""
    reason: str = ""
    error_class: str = ""
    receive_count: int = 0
    until_ms: int = 0
    to_queue: int = 0  # number of the destination of a move


class MessageFound(NamedTuple):
    """A message as one shard knows it. `peeked` has the state DELETED if the message has been deleted or moved."""

    peeked: Peeked
    events: list[Event]  # oldest first
    complete: bool
    note: str = ""
    from_shard: int = -1  # the shard from which the first event's message arrived; -1: none
    moved_as: str = ""  # id of the message that this one has become, if that is known
    higher: int = 0  # messages of higher priority that can be received
    higher_complete: bool = True  # False: there may be more of them


class _Row(NamedTuple):
    kind: int
    flags: int
    reason: int
    queue: int
    sequence: int
    time_ms: int
    w3: int
    w4: int
    w5: int
    w6: int
    w7: int

    @property
    def slot(self) -> int:
        return self.w7 & _LOW32


def _row(frame: Frame, at: int) -> _Row:
    w0, w1, w2, w3, w4, w5, w6, w7 = _ROW.unpack_from(frame.rows, at * ROW_BYTES)
    return _Row(w0 & 0xFF, w0 >> 8 & 0xFF, w0 >> 24 & 0xFF, w0 >> 32, w1, w2, w3, w4, w5, w6, w7)


async def find_with_history(host: ShardHost, queue: int, sequence: int) -> MessageFound | None:
    """A message with its history; None if neither the queue nor the retained log has the message. With the queue 0, a
    message of any queue that is no longer there is found.
    """
    try:
        slot = await first_after(host, queue, sequence - 1)
    except QueueDoesNotExist:
        slot = NIL
    if slot == NIL or host.shard.sequence_at(slot) != sequence:
        await committed(host)
        return await _Gone(_Reader(host), queue, sequence).find()
    view, last = host.shard.view(slot), host.shard.last_record(slot)
    higher, complete = host.shard.higher_priority(slot)
    await committed(host)
    peeked = await read_view(host, view)
    found = await _history_before(_Reader(host), peeked, last)
    return found._replace(higher=higher, higher_complete=complete)


class _Reader:
    """Reads frames of a shard's log, up to a number of bytes and frames."""

    def __init__(self, host: ShardHost) -> None:
        self.host = host
        self.bytes = self.frames = 0
        self._turn_bytes = 0
        self._last: Frame | None = None

    @property
    def is_spent(self) -> bool:
        return self.bytes >= BYTES_MAX or self.frames >= FRAMES_MAX

    async def frame(self, number: int) -> Frame:
        """Raises LogError."""
        if self._last is not None and self._last.number == number:
            return self._last
        log = self.host.log
        if log.is_cold(number):
            await asyncio.get_running_loop().run_in_executor(None, log.warm, [number])
        frame = self._last = log.frame(number)
        self.frames += 1
        self.bytes += frame.size
        self._turn_bytes += frame.size + 4096
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)
            if not self.host.serving:
                raise Unavailable(self.host.why)
        return frame


class _Past:
    """What a message's records say, read backwards from one of them."""

    def __init__(self, events_max: int = EVENTS_MAX, payload_only: bool = False) -> None:
        self._events_max = events_max
        self._payload_only = payload_only
        self.events: list[Event] = []  # newest first
        self.payload: Payload | None = None
        self.complete = False
        self.note = ""
        self.from_shard = -1
        self._overlays: list[Lineage] = []  # newest first

    async def read(self, reader: _Reader, position: int, sequence: int) -> None:
        while len(self.events) < self._events_max and not reader.is_spent:
            if self._payload_only and self.payload is not None:
                return
            try:
                frame = await reader.frame(position >> 16)
            except LogError:
                self.note = DROPPED
                return
            at = position & 0xFFFF
            row = _row(frame, at)
            if row.sequence != sequence:
                self.note = DROPPED
                return
            event = _event(row, frame)
            if event is not None:
                self.events.append(event)
            self._see_payload(row, frame)
            if row.kind == Type.SENT:
                self.complete = True
                return
            if row.kind == Type.ARRIVED:
                before = _owed_before(frame, at, row)
                if before is None:
                    self.from_shard = row.w5 & 0xFFFF
                    return
                position, sequence = position - 1, before.sequence
            else:
                position = row.w5
        self.note = CUT

    def _see_payload(self, row: _Row, frame: Frame) -> None:
        """Keep the newest payload, with the lineages of the moves after it."""
        if self.payload is not None:
            return
        if row.kind == Type.ARRIVED and row.flags & ArrivedFlag.OVERLAY:
            self._overlays.append(Lineage.decode(part_of(frame.variable, row.w6)))
        payload = _payload_of(row, frame)
        if payload is not None and self._overlays:
            lineage = Lineage.decode(payload.lineage)
            for later in reversed(self._overlays):
                lineage = merge_lineage(lineage, later)
            payload = with_lineage(payload, lineage)
        self.payload = payload


async def _history_before(reader: _Reader, peeked: Peeked, position: int) -> MessageFound:
    """Follow the records of a message backwards from its last one."""
    past = _Past()
    await past.read(reader, position, peeked.view.sequence)
    return MessageFound(peeked, past.events[::-1], past.complete, past.note, past.from_shard)


async def payload_at(host: ShardHost, position: int, sequence: int) -> Payload | None:
    """The payload of a message as its record at a position has it, with its lineage at that time; None if it is no
    longer in the retained log.
    """
    past = _Past(FRAMES_MAX, payload_only=True)
    await past.read(_Reader(host), position, sequence)
    return past.payload


def _owed_before(frame: Frame, at: int, arrived: _Row) -> _Row | None:
    """The record with which a message left another queue of the shard; None if it came from another shard."""
    before = _row(frame, at - 1) if at and arrived.flags & ArrivedFlag.OVERLAY else None
    return before if before is not None and before.kind == Type.OWED and before.slot == arrived.w5 & _LOW32 else None


class _Gone:
    """The search for a message that no longer exists."""

    def __init__(self, reader: _Reader, queue: int, sequence: int) -> None:
        self._reader = reader
        self._log = reader.host.log
        self._shard = reader.host.shard.number
        self._queue = queue
        self._sequence = sequence
        self._events: list[Event] = []
        self._payload: Payload | None = None
        self._created: _Row | None = None
        self._created_at = 0  # position
        self._moved_as = ""
        self._is_over = False

    async def find(self) -> MessageFound | None:
        try:
            number = await self._frame_of_creation()
            self._reader = _Reader(self._reader.host)  # reading on has limits of its own
            while number and number < self._log.next and not self._is_over and not self._reader.is_spent:
                frame = await self._reader.frame(number)
                self._read(frame)
                if self._created is None:
                    return None
                number += 1
        except LogError:  # the front of the log was dropped meanwhile
            return None
        if self._created is None:
            return None
        past = await self._past()
        payload = self._payload or past.payload
        events = [*past.events[::-1], *self._events[bool(past.events) :]]
        is_cut = len(events) > EVENTS_MAX
        note = past.note or (CUT if is_cut else "") if self._is_over else TOO_FAR
        return MessageFound(
            self._peeked(self._created, payload),
            events[-EVENTS_MAX:],
            self._is_over and past.complete and not is_cut,
            note,
            past.from_shard,
            self._moved_as,
        )

    async def _past(self) -> _Past:
        """What happened up to the record that created the message: it may have been moved from another queue."""
        past = _Past()
        await past.read(_Reader(self._reader.host), self._created_at, self._sequence)
        return past

    async def _frame_of_creation(self) -> int:
        """The number of the frame in which the message was created; 0 if it is not retained."""
        low, high = self._log.first, self._log.next
        while low < high and not self._reader.is_spent:
            middle = (low + high) // 2
            number = middle
            created: Sequence[int] = ()
            while number < high and not created and not self._reader.is_spent:
                created = _created_in(await self._reader.frame(number))
                number += 1
            if not created or created[0] > self._sequence:
                high = middle
            elif created[-1] < self._sequence:
                low = number
            else:
                return number - 1
        return 0

    def _read(self, frame: Frame) -> None:
        kinds = frame.rows[::ROW_BYTES]
        sequences = frame.words()[1::8]
        at = -1
        for _ in range(sequences.count(self._sequence)):
            at = sequences.index(self._sequence, at + 1)
            if Type.SENT <= kinds[at] <= Type.SETTLED:
                self._note(frame, at)
        at = kinds.find(Type.QUEUE_PURGED)
        while at >= 0 and not self._is_over:
            row = _row(frame, at)
            is_moving = bool(self._events) and self._events[-1].event == "moving"  # a purge leaves it out
            if row.queue == self._queue and row.sequence > self._sequence and not is_moving:
                self._events.append(Event(row.time_ms, "purged", self._queue))
                self._is_over = True
            at = kinds.find(Type.QUEUE_PURGED, at + 1)

    def _note(self, frame: Frame, at: int) -> None:
        row = _row(frame, at)
        if self._created is None:
            if row.kind not in (Type.SENT, Type.ARRIVED) or self._queue not in (0, row.queue):
                return
            self._created, self._queue = row, row.queue
            self._created_at = frame.number << 16 | at
        event = _event(row, frame)
        if event is not None:
            self._events.append(event)
        self._payload = _payload_of(row, frame) or self._payload
        if row.kind == Type.OWED and (at + 1) * ROW_BYTES < len(frame.rows):
            then = _row(frame, at + 1)
            moved = then.kind == Type.ARRIVED and then.flags & ArrivedFlag.OVERLAY
            if moved and then.w5 & _LOW32 == row.slot and not then.flags & ArrivedFlag.REFUSED:
                self._moved_as = message_id(self._shard, then.sequence)
        self._is_over = row.kind == Type.DELETED or (row.kind == Type.SETTLED and row.reason == Reason.ACCEPTED)

    def _peeked(self, created: _Row, payload: Payload | None) -> Peeked:
        leases = [event for event in self._events if event.event == "leased"]
        sent_ms = created.time_ms if created.kind == Type.SENT else created.w3
        view = MessageView(
            slot=created.slot,
            sequence=self._sequence,
            state=State.DELETED,
            until_ms=0,
            epoch=len(leases),
            receive_count=leases[-1].receive_count if leases else 0,
            sent_ms=sent_ms,
            first_received_ms=leases[0].at_ms if leases else 0,
            expires_ms=(created.w7 >> 32) * 1000,
            priority=0,
            position=0,
            offset=0,
            length=0,
            overlays=(),
            holder="",
            error_class="",
            reason="",
            first_failure_ms=0,
            last_failure_ms=0,
            maximum=0,
            ahead=0,
            moves_to=0,
            moves_for=0,
            refusals=0,
        )
        lost = (
            MOVED if self._events[-1].event in ("moving", "moved") else "The content is no longer in the retained log."
        )
        return peeked_from(self._shard, view, payload, "" if payload is not None else lost)


def _created_in(frame: Frame) -> list[int]:
    """The sequences of the first and the last message that were created in a frame; none if there are none."""
    kinds = frame.rows[::ROW_BYTES]
    places = [at for kind in (Type.SENT, Type.ARRIVED) for at in (kinds.find(kind), kinds.rfind(kind)) if at >= 0]
    # A refused arrival has no message, and its sequence is 0.
    sequences = sorted(sequence for at in places if (sequence := _row(frame, at).sequence))
    return [sequences[0], sequences[-1]] if sequences else []


def _payload_of(row: _Row, frame: Frame) -> Payload | None:
    w6 = row.w6
    if row.kind == Type.ARRIVED:
        if row.flags & ArrivedFlag.OVERLAY:
            return None
        w6 = skip(w6, arrived_prefix(row.flags))
    elif row.kind == Type.EDITED:
        w6 = skip(w6, EDITED_PREFIX.size + CARRIED_PREFIX.size)
    elif row.kind == Type.CARRIED:
        w6 = skip(w6, CARRIED_PREFIX.size)
    elif row.kind != Type.SENT:
        return None
    return decode(part_of(frame.variable, w6))


def _event(row: _Row, frame: Frame) -> Event | None:
    """What a record says about its message; None if it says nothing that happened to the message."""
    event = Event(row.time_ms, "", row.queue)
    later_ms = row.w3 if row.time_ms < row.w3 < FOREVER_MS else 0
    if row.kind == Type.SENT:
        return event._replace(event="sent", until_ms=later_ms)
    if row.kind == Type.LEASED:
        holder, _ = decode_notes(part_of(frame.variable, row.w6))
        return event._replace(event="leased", holder=holder, until_ms=row.w3, receive_count=row.w4 >> 32)
    if row.kind == Type.EXTENDED:
        return event._replace(event="extended", until_ms=row.w3)
    if row.kind == Type.RETURNED:
        error_class, text = decode_notes(part_of(frame.variable, row.w6)) if row.w6 >> 32 else ("", "")
        name = "givenBack" if row.flags & ReturnedFlag.UNCHARGED else _RETURNED.get(Reason(row.reason), "returned")
        return event._replace(event=name, error_class=error_class, reason=text, until_ms=later_ms)
    if row.kind == Type.DELETED:
        return event._replace(event=_DELETED.get(Reason(row.reason), "deleted"))
    if row.kind == Type.EDITED:
        return event._replace(event="edited")
    if row.kind == Type.OWED:
        return event._replace(event="moving", reason=_MOVES.get(Reason(row.reason), ""), to_queue=row.w7 >> 32)
    if row.kind == Type.ARRIVED:
        return event._replace(event="arrived", reason=_MOVES.get(Reason(row.reason), ""))
    if row.kind == Type.SETTLED:
        if row.reason == Reason.ACCEPTED:
            return event._replace(event="moved")
        return event._replace(event="moveRefused", reason=_REFUSALS.get(Reason(row.reason), ""))
    return None
