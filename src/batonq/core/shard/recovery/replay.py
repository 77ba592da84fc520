"""Applying committed frames: followers and recovery read the log and come to the owner's state."""

from __future__ import annotations

import json
from array import array

from batonq.core.payload import content_mark, decode
from batonq.core.policy import QueuePolicy
from batonq.core.records import (
    ARRIVED_NOTED,
    ARRIVED_PREFIX,
    CARRIED_PREFIX,
    EDITED_PREFIX,
    TOPICS_VERSION,
    ArrivedFlag,
    BaseFlag,
    CarriedFlag,
    LeaseFlag,
    Reason,
    ReturnedFlag,
    SentFlag,
    State,
    Type,
    decode_notes,
    part_of,
    skip,
)
from batonq.core.shard.commands.new_messages import group_hash
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.readers import ReaderCommands
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.effects.message_runs import RUN_MAX
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.recovery.columnar_replay import RUN_MIN, RUN_TYPES, ColumnarReplay, alike_until
from batonq.core.shard.recovery.truncation import Truncation
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.topics.subscription import Subscription
from batonq.errors import LogCorrupt

_LOW32 = 0xFFFFFFFF
_SHARD_BITS = 0xFFFF


class Replay:
    def __init__(
        self,
        messages: Messages,
        records: MessageRecords,
        columnar: ColumnarReplay,
        arrivals: Arrivals,
        transfers: Transfers,
        numbered: NumberedSends,
        requests: RememberedRequests,
        jobs: JobBook,
        readers: ReaderCommands,
        schedules: ScheduleBook,
        truncation: Truncation,
    ) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.attempts = messages.attempts
        self.dedup = messages.dedup
        self.records = records
        self.columnar = columnar
        self.arrivals = arrivals
        self.transfers = transfers
        self.numbered = numbered
        self.requests = requests
        self.jobs = jobs
        self.readers = readers
        self.schedules = schedules
        self.truncation = truncation
        self.base_parts: list[bytes] = []  # the parts read so far of a Base
        self._attempt_notes = (0, 0)  # of the last row that was a lease by an attempt

    def apply_frame(self, number: int, words: array[int], variable: bytes) -> None:
        """Apply one committed frame. Raises LogCorrupt if a record does not fit the state."""
        count = len(words) >> 3
        heads, times = words[0::8], words[2::8]
        notes: array[int] | None = None
        row = count if self.columnar.replay_frame_of_sends(number, words, heads, times, variable) else 0
        while row < count:
            stop = row + 1
            kind = heads[row] & 0xFF
            if kind in RUN_TYPES and not self.journal.before_base:
                stop = alike_until(times, row, alike_until(heads, row, min(row + RUN_MAX, count)))
                if kind == Type.LEASED:  # the notes name the holder; a run has one holder
                    notes = words[6::8] if notes is None else notes
                    stop = alike_until(notes, row, stop)
            position, rows = number << 16 | row, words[row << 3 : stop << 3]
            if stop - row < RUN_MIN or not self.columnar.replay_run(position, rows, variable):
                for at in range(0, len(rows), 8):
                    self.apply(position + (at >> 3), rows[at : at + 8], variable)
            row = stop
        if self.frame.number <= number:
            self.frame.begin(number + 1)

    def apply(self, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, _, w6, w7 = row
        self.messages.move_time(w2)
        kind = w0 & 0xFF
        slot = w7 & _LOW32
        if kind == Type.SENT:
            self._apply_sent(position, row, variable)
        elif kind == Type.LEASED:
            queue = self.messages.expect(slot, w1, Type.LEASED)
            if queue is not None:
                holder, attempt = decode_notes(part_of(variable, w6))
                self.records.on_leased(queue, slot, w2, w3, w4 & _LOW32, w4 >> 32, position, holder)
                if w0 >> 8 & LeaseFlag.ATTEMPT and not self.journal.before_base:
                    lease = slot, w1, w4 & _LOW32
                    self._replay_attempt(queue.number, attempt, lease, w2 + (w7 >> 32), (position >> 16, w6))
        elif kind == Type.EXTENDED:
            if self.messages.expect(slot, w1, Type.EXTENDED) is not None:
                self.records.on_extended(slot, w3, position, bool(w0 >> 8 & LeaseFlag.ATTEMPT))
        elif kind == Type.RETURNED:
            queue = self.messages.expect(slot, w1, Type.RETURNED)
            if queue is not None:
                error_class, text = decode_notes(part_of(variable, w6)) if w6 >> 32 else ("", "")
                charged = not w0 >> 8 & ReturnedFlag.UNCHARGED
                self.records.on_returned(queue, slot, w2, w3, w0 >> 24 & 0xFF, position, error_class, text, charged)
        elif kind == Type.DELETED:
            queue = self.messages.expect(slot, w1, Type.DELETED)
            if queue is not None:
                self.records.on_deleted(queue, slot, w2, w0 >> 24 & 0xFF)
        else:
            self._apply_rare(kind, position, row, variable)

    def _apply_sent(self, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        queue = self.messages.named_queue(w0 >> 32)
        flags, slot = w0 >> 8 & 0xFF, w7 & _LOW32
        self._check_free(slot, w1)
        self.records.on_sent(queue, slot, w1, w2, w3, w4, w7 >> 32, w0 >> 16 & 0xFF, w0 >> 24 & 0xFF, position, w6)
        if flags & SentFlag.WAITING:
            group = group_hash(decode(part_of(variable, w6)).group)
            self.records.on_waiting(queue, slot, w5, group, w3 > w2)
        if flags & SentFlag.DEDUPLICATED:
            mark = content_mark(part_of(variable, w6))
            self.dedup.put(queue, slot, w1, w2, w5, mark, bool(flags & SentFlag.DEDUP_LIVES))
        if flags & SentFlag.STORED:
            self.messages.stored.put_payload(queue, slot, part_of(variable, w6), w2)

    def _apply_published(self, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, _, w5, w6, _ = row
        self.journal.use_format(TOPICS_VERSION)
        self.records.on_published(w0 >> 32, w1, 1, w3 & _LOW32, w3 >> 32)
        if w0 >> 8 & SentFlag.DEDUPLICATED:
            queue = self.messages.named_queue(w0 >> 32)
            self.dedup.put(queue, NIL, w1, w2, w5, content_mark(part_of(variable, w6)), False)

    def _check_free(self, slot: int, sequence: int) -> None:
        columns = self.columns
        if slot < columns.used and columns.state[slot] != State.FREE:
            if not self.journal.before_base:
                raise LogCorrupt(f"message {sequence} takes slot {slot}, where message {columns.sequence[slot]} is")
            self.messages.drop_notes(slot)
            columns.state[slot] = State.FREE

    def _replay_attempt(
        self, queue: int, attempt: str, lease: tuple[int, int, int], expires_ms: int, notes: tuple[int, int]
    ) -> None:
        """Add a message to its receive's attempt.

        All rows of one receive share their notes: frame and w6. A receive with the same attempt at the same time, whose
        earlier leases ended at once, has other notes.
        """
        known = self.attempts.by_key.get((queue, attempt))
        leases = known.leases if known is not None and notes == self._attempt_notes else ()
        self._attempt_notes = notes
        self.attempts.put(queue, attempt, expires_ms, (*leases, lease))

    def _apply_rare(self, kind: int, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        slot = w7 & _LOW32
        if kind == Type.REQUESTED:
            self.requests.on_requested(w5, w1, w2, w3, w4)
        elif kind == Type.PRODUCED:
            self.numbered.on_produced(w5, w3, w1, w4, w2, w7 >> 32)
        elif kind == Type.OWED:
            queue = self.messages.expect(slot, w1, Type.OWED)
            if queue is not None:
                shard, number = w3 & _SHARD_BITS, w3 >> 16
                self.transfers.on_owed(queue, slot, w2, shard, number, w7 >> 32, w0 >> 24 & 0xFF, position)
        elif kind == Type.ARRIVED:
            self._apply_arrived(position, row, variable)
        elif kind == Type.EDITED:
            self._apply_edited(position, row, variable)
        elif kind == Type.SETTLED:
            queue = self.messages.expect(slot, w1, Type.SETTLED)
            if queue is not None:
                shard, number = w3 & _SHARD_BITS, w3 >> 16
                self.transfers.on_settled(queue, slot, w2, shard, number, w0 >> 24 & 0xFF, w7 >> 32, w4, position)
        elif kind == Type.PUBLISHED:
            self._apply_published(row, variable)
        elif kind == Type.SUBSCRIPTION_SET:
            subscription = None if w3 else Subscription.decode(part_of(variable, w6))
            self.messages.topics.on_subscription(w0 >> 32, w4, subscription)
        elif kind == Type.POLICY_SET:
            self.messages.on_policy(QueuePolicy.decode(part_of(variable, w6)), w2)
        elif kind == Type.QUEUE_PURGED:
            self.messages.on_purged(self.messages.named_queue(w0 >> 32), w1, w2, bool(w3), w5)
        elif kind == Type.QUEUE_CLOSED:
            self.messages.on_closed(self.messages.named_queue(w0 >> 32))
            self.schedules.queue_closed(w0 >> 32)
        elif kind == Type.EPOCH:
            self.messages.on_epoch(w1, w3, w4)
        elif kind == Type.JOB_SET:
            self.jobs.on_job(json.loads(part_of(variable, w6)))
        elif kind == Type.READER_SET:
            self.readers.on_reader(self.messages.named_queue(w0 >> 32), part_of(variable, w6))
        elif kind == Type.SCHEDULE_SET:
            self.schedules.on_set(w0 >> 32, json.loads(part_of(variable, w6)))
        elif kind == Type.CARRIED:
            self._apply_carried(position, row, variable)
        elif kind == Type.BASE:
            self._apply_base(w3, w4, bool(w0 >> 8 & BaseFlag.MORE), part_of(variable, w6))
        else:
            raise LogCorrupt(f"unknown record type {kind}: use the release that wrote the log, or a newer one")

    def _apply_arrived(self, position: int, row: array[int], variable: bytes) -> None:
        """Apply an Arrived record. w3 is the sent time, w4 the receive count, w5 the source's slot (overlay) or its
        shard and entry number.
        """
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        flags, slot = w0 >> 8 & 0xFF, w7 & _LOW32
        if flags & ArrivedFlag.REFUSED:
            if not flags & ArrivedFlag.OVERLAY:
                self.arrivals.on_entry(w5 & _SHARD_BITS, w5 >> 16, w0 >> 24 & 0xFF)
            return
        if not flags & ArrivedFlag.OVERLAY:
            self.arrivals.on_entry(w5 & _SHARD_BITS, w5 >> 16, Reason.ACCEPTED)
        queue = self.messages.named_queue(w0 >> 32)
        priority, count, expires_s = w0 >> 16 & 0xFF, w4 & _LOW32, w7 >> 32
        reason = w0 >> 24 & 0xFF
        self._check_free(slot, w1)
        if flags & ArrivedFlag.OVERLAY:
            source = w5 & _LOW32
            known = source < self.columns.used and self.columns.state[source] == State.OWED
            if self.journal.before_base and not known:
                return  # the payload was in the dropped front; a later Carried record has the message
            self.arrivals.on_moved(
                queue, slot, source, w1, w2, w3, count, expires_s, priority, position, reason, w4 >> 32
            )
            return
        part = part_of(variable, w6)
        redriven = maximum = 0
        if flags & ArrivedFlag.NOTED:
            prefix = ARRIVED_NOTED.size
            group, origin, redriven, maximum = ARRIVED_NOTED.unpack_from(part)
        else:
            prefix = ARRIVED_PREFIX.size
            group, origin = ARRIVED_PREFIX.unpack_from(part)
        self.arrivals.on_arrived(
            queue, slot, w1, w2, w3, count, expires_s, priority, group, position, skip(w6, prefix), delay_ms=w4 >> 32
        )
        self.arrivals.note_arrival(slot, reason, origin, redriven, maximum)
        self.messages.stored.put_payload(queue, slot, part[prefix:], w2)

    def _apply_carried(self, position: int, row: array[int], variable: bytes) -> None:
        """Apply a message that was copied forward. A known message only gets a new position. After the front was
        dropped, this is the message's first record.
        """
        w1, w6 = row[1], row[6]
        columns = self.columns
        slot = row[7] & _LOW32
        extent = skip(w6, CARRIED_PREFIX.size)
        if slot < columns.used and columns.state[slot] != State.FREE and columns.sequence[slot] == w1:
            self.messages.on_carried(slot, position, extent)
            return
        if not self.journal.before_base:
            raise LogCorrupt(f"message {w1} is carried, but is not there")
        self._begin_with(position, row, part_of(variable, w6), extent)

    def _apply_edited(self, position: int, row: array[int], variable: bytes) -> None:
        """Apply a message that a job changed. After the front was dropped, this may be the message's first record."""
        w6 = row[6]
        slot = row[7] & _LOW32
        key = EDITED_PREFIX.unpack_from(part_of(variable, w6))[0]
        w6 = skip(w6, EDITED_PREFIX.size)
        extent = skip(w6, CARRIED_PREFIX.size)
        queue = self.messages.expect(slot, row[1], Type.EDITED)
        if queue is not None:
            self.messages.on_edited(queue, slot, key, position, extent, part_of(variable, extent))
        else:
            self._begin_with(position, row, part_of(variable, w6), extent)

    def _begin_with(self, position: int, row: array[int], part: bytes, extent: int) -> None:
        """Create a message whose earlier records were in the dropped front."""
        w0, w1, _w2, w3, w4, _, _, w7 = row
        columns = self.columns
        slot = w7 & _LOW32
        state, doomed, maximum, first_received, leased, group, sent_ms = CARRIED_PREFIX.unpack_from(part)
        queue = self.messages.named_queue(w0 >> 32)
        self._check_free(slot, w1)
        self.messages.insert(queue, slot, w1, position, extent, w0 >> 16 & 0xFF, sent_ms, w7 >> 32)
        columns.state[slot], columns.until[slot] = state, w3
        columns.epoch[slot], columns.count[slot] = w4 & _LOW32, w4 >> 32
        columns.first_received[slot], columns.leased[slot], columns.doomed[slot] = first_received, leased, doomed
        if group:
            self.messages.loose_groups[slot] = group
        if maximum:
            self.messages.maxima[slot] = maximum
        if w0 & 0xFF == Type.CARRIED and w0 >> 8 & CarriedFlag.WAITING:
            # Its subscription is in the Base, but a move before that needs the group.
            self.messages.fanned[slot] = (0, group_hash(decode(part[CARRIED_PREFIX.size :]).group))

    def _apply_base(self, first_frame: int, part: int, more: bool, data: bytes) -> None:
        """Apply one part of a Base. A Base that was written for a later truncation is skipped, because the state is
        already known.

        An owner that died between two parts left an incomplete Base. The next Base begins with part 0 again.
        """
        if not self.journal.before_base or first_frame < self.journal.before_base:
            return
        if part == 0:
            self.base_parts.clear()
        if part != len(self.base_parts):
            raise LogCorrupt(f"part {part} of a Base follows {len(self.base_parts)} parts of it")
        self.base_parts.append(data)
        if not more:
            self.truncation.load_base(self.base_parts)
            self.base_parts = []
