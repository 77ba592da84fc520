"""Frames into state: what a follower and a recovering node do. Runs of plain records are applied at once."""

from __future__ import annotations

import sys
from array import array

from batonq.core.payload import content_mark
from batonq.core.policy import QueuePolicy
from batonq.core.records import Flag, Reason, State, Type
from batonq.core.shard.columns import NIL, as_run
from batonq.core.shard.queuestate import QueueState
from batonq.core.shard.runs import FIRST_LEASE, RUN_MAX, Runs
from batonq.core.shard.state import ARRIVED_NOTED, ARRIVED_PREFIX, CARRIED_PREFIX, EDITED_PREFIX, decode_notes
from batonq.errors import LogCorrupt

_RUN_MIN = 3
_RUN_TYPES = (int(Type.SENT), int(Type.LEASED), int(Type.DELETED))
_LOW32 = 0xFFFFFFFF
_OVERLAYS_KEPT = 16  # of a message that is moved again and again, beside the first
_SHARD_BITS = 0xFFFF


class Replay(Runs):
    def apply_frame(self, number: int, words: array[int], variable: bytes) -> None:
        """Fold one committed frame. Raises LogCorrupt when a record does not fit the state."""
        count = len(words) >> 3
        heads, times = words[0::8], words[2::8]
        row = count if self._apply_frame_of_sends(number, words, heads, times, variable) else 0
        while row < count:
            w0 = heads[row]
            if w0 & 0xFF in _RUN_TYPES and not self.before_base:
                time = times[row]
                stop = row + 1
                notes = words[(row << 3) + 6] if w0 & 0xFF == Type.LEASED else 0  # who holds it: a run has one holder
                while stop < count and heads[stop] == w0 and times[stop] == time:
                    if notes and words[(stop << 3) + 6] != notes:
                        break
                    stop += 1
                if stop - row >= _RUN_MIN and self._apply_run(
                    number << 16 | row, words[row << 3 : stop << 3], variable
                ):
                    row = stop
                    continue
            at = row << 3
            self._apply(number << 16 | row, words[at : at + 8], variable)
            row += 1
        if self.frame.number <= number:
            self.frame.begin(number + 1)

    def _apply_frame_of_sends(
        self, number: int, words: array[int], heads: array[int], times: array[int], variable: bytes
    ) -> bool:
        """A frame of nothing but plain sends to one queue (and whose they were), into new slots, at once.

        That is what the log of a backlog is made of, so recovery is mostly this.
        """
        w0 = heads[0]
        if w0 & 0xFF == Type.REQUESTED and len(heads) > 1:
            w0 = heads[1]
        count = heads.count(w0)
        if w0 & 0xFF00FFFF != Type.SENT or count > RUN_MAX or self.before_base or times[-1] >= self.delays.due:
            return False
        queue = self._queue(w0 >> 32)
        beside = (Type.REQUESTED | queue.number << 32, Type.PRODUCED | queue.number << 32)
        if queue.fifo or count + sum(map(heads.count, beside)) != len(heads):
            return False
        first_position = number << 16
        others = [row for row, head in enumerate(heads) if head != w0] if count != len(heads) else []
        kept, positions = words, array("Q", range(first_position, first_position + len(heads)))
        if others:
            every, kept, positions = positions, array("Q"), array("Q")
            start = 0
            for row in (*others, len(heads)):
                kept += words[start << 3 : row << 3]
                positions += every[start:row]
                start = row + 1
        sequences, sent, visible, tenants, extents, tails = (kept[k::8] for k in (1, 2, 3, 4, 6, 7))
        halves = _halves(tails)
        slots = range(self.columns.used, self.columns.used + count)
        if (
            sent != visible
            or any(tenants)
            or halves[0::2] != array("I", slots)
            or sequences != array("Q", range(sequences[0], sequences[0] + count))
        ):
            return False
        self._fill_range(queue, slots, sequences, sent, halves[1::2], w0 >> 16 & 0xFF, positions, extents)
        self._count_sends(queue, count, sum(_halves(extents)[1::2]), sequences[-1] + 1)
        self.last_time_ms = max(self.last_time_ms, times[-1])
        requested = beside[0]
        remember = self.requests.put
        for row in others:
            at = row << 3
            if heads[row] == requested:
                _, first, time, until, made, key, _, _ = words[at : at + 8]
                remember(key, first, -(-until // 1000), made, time // 1000)
            else:
                self._apply(first_position | row, words[at : at + 8], variable)
        return True

    def _queue(self, number: int) -> QueueState:
        queue = self.queues.get(number)
        if queue is None:
            if not self.before_base:
                raise LogCorrupt(f"record for queue {number}, which this shard does not have")
            queue = self.queues[number] = QueueState(QueuePolicy(number, "", ""), self.lines)
        return queue

    def _move_time(self, time: int) -> None:
        if time > self.last_time_ms:
            self.last_time_ms = time
        if time >= self.delays.due and not self.before_base:
            self.advance_delays(time)

    def _apply_run(self, position: int, rows: array[int], variable: bytes) -> bool:
        """Records alike but for their messages, at once; False when they are not that plain."""
        w0, time = rows[0], rows[2]
        queue = self._queue(w0 >> 32)
        if w0 >> 8 & 0xFF or queue.fifo:
            return False
        self._move_time(time)
        kind = w0 & 0xFF
        if kind == Type.SENT:
            return self._apply_sends(queue, position, rows)
        slots = [word & _LOW32 for word in rows[7::8]]
        if kind == Type.LEASED:
            deadline, w6, count = rows[3], rows[6], len(slots)
            same = rows[3::8].count(deadline) == count and rows[6::8].count(w6) == count
            first = rows[4::8].count(FIRST_LEASE) == count
            if not same or not first or [*queue.ready.front(count)] != slots or rows[7::8] != array("Q", slots):
                return False
            if any(self.columns.sequence[slot] != sequence for slot, sequence in zip(slots, rows[1::8], strict=True)):
                return False  # one by one, that says what is wrong
            holder, _ = decode_notes(_part(variable, w6))
            self._on_first_leases(queue, as_run(slots), time, deadline, position, [(holder, count)])
            return True
        if w0 >> 24 & 0xFF != Reason.ACK:
            return False
        columns = self.columns
        for slot, sequence in zip(slots, rows[1::8], strict=True):
            held = slot < columns.used and columns.sequence[slot] == sequence and columns.state[slot] == State.IN_FLIGHT
            if not held:
                return False
        if not self.plain(slots):
            return False
        self._on_acknowledged(queue, as_run(slots))
        return True

    def _apply_sends(self, queue: QueueState, position: int, rows: array[int]) -> bool:
        """Fresh, ungrouped sends with consecutive sequences, VISIBLE at once."""
        columns = self.columns
        w0, time, aux = rows[0], rows[2], rows[7] >> 32
        sequences = rows[1::8]
        count = len(sequences)
        plain = not w0 >> 24 & 0xFF and rows[3::8].count(time) == count and not any(rows[4::8])
        if not plain or sequences[-1] != sequences[0] + count - 1:
            return False
        words = rows[7::8]
        if any(word >> 32 != aux for word in words):
            return False
        slots = as_run([word & _LOW32 for word in words])
        if any(slot < columns.used and columns.state[slot] for slot in slots):
            return False
        columns.take_named(slots)
        extents = rows[6::8]
        size = sum(_halves(extents)[1::2])
        self._on_sends(queue, slots, sequences, time, aux, w0 >> 16 & 0xFF, position, extents, size)
        return True

    def _apply(self, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, _, w6, w7 = row
        self._move_time(w2)
        kind = w0 & 0xFF
        slot = w7 & _LOW32
        if kind == Type.SENT:
            self._apply_sent(position, row, variable)
        elif kind == Type.LEASED:
            queue = self._message(slot, w1, Type.LEASED)
            if queue is not None:
                holder, attempt = decode_notes(_part(variable, w6))
                self._on_leased(queue, slot, w2, w3, w4 & _LOW32, w4 >> 32, position, holder)
                if w0 >> 8 & Flag.ATTEMPT and not self.before_base:
                    self._replay_attempt(queue.number, attempt, slot, w1, w4 & _LOW32, w7 >> 32, w2)
        elif kind == Type.EXTENDED:
            if self._message(slot, w1, Type.EXTENDED) is not None:
                self._on_extended(slot, w3, position, bool(w0 >> 8 & Flag.ATTEMPT))
        elif kind == Type.RETURNED:
            queue = self._message(slot, w1, Type.RETURNED)
            if queue is not None:
                error_class, text = decode_notes(_part(variable, w6)) if w6 >> 32 else ("", "")
                charged = not w0 >> 8 & Flag.UNCHARGED
                self._on_returned(queue, slot, w2, w3, w0 >> 24 & 0xFF, position, error_class, text, charged)
        elif kind == Type.DELETED:
            queue = self._message(slot, w1, Type.DELETED)
            if queue is not None:
                self._on_deleted(queue, slot, w2, w0 >> 24 & 0xFF)
        else:
            self._apply_rare(kind, position, row, variable)

    def _apply_sent(self, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        queue = self._queue(w0 >> 32)
        flags, slot = w0 >> 8 & 0xFF, w7 & _LOW32
        self._check_free(slot, w1)
        self._on_sent(queue, slot, w1, w2, w3, w4, w7 >> 32, w0 >> 16 & 0xFF, w0 >> 24 & 0xFF, position, w6)
        if flags & Flag.DEDUPLICATED:
            mark = content_mark(_part(variable, w6))
            self._on_dedup(queue, slot, w1, w2, w5, mark, bool(flags & Flag.DEDUP_LIVES))

    def _check_free(self, slot: int, sequence: int) -> None:
        columns = self.columns
        if slot < columns.used and columns.state[slot] != State.FREE:
            if not self.before_base:
                raise LogCorrupt(f"message {sequence} takes slot {slot}, where message {columns.sequence[slot]} is")
            self._drop_notes(slot)
            columns.state[slot] = State.FREE

    def _replay_attempt(
        self, queue: int, attempt: str, slot: int, sequence: int, epoch: int, window_ms: int, time: int
    ) -> None:
        """The rows of one receive name one attempt; each adds its message to it."""
        known = self.attempts.get((queue, attempt))
        expires = time + window_ms
        leases = known.leases if known is not None and known.expires_ms == expires else ()
        self._on_attempt(queue, attempt, expires, (*leases, (slot, sequence, epoch)))

    def _apply_rare(self, kind: int, position: int, row: array[int], variable: bytes) -> None:
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        slot = w7 & _LOW32
        if kind == Type.REQUESTED:
            self.requests.put(w5, w1, -(-w3 // 1000), w4, w2 // 1000)
        elif kind == Type.PRODUCED:
            self.producers.put(w5, w3, w1, w4, w7 >> 32, w2 // 1000)
        elif kind == Type.OWED:
            queue = self._message(slot, w1, Type.OWED)
            if queue is not None:
                shard, number = w3 & _SHARD_BITS, w3 >> 16
                self._on_owed(queue, slot, w2, shard, number, w7 >> 32, w0 >> 24 & 0xFF, position)
        elif kind == Type.ARRIVED:
            self._apply_arrived(position, row, variable)
        elif kind == Type.EDITED:
            self._apply_edited(position, row, variable)
        elif kind == Type.SETTLED:
            queue = self._message(slot, w1, Type.SETTLED)
            if queue is not None:
                shard, number = w3 & _SHARD_BITS, w3 >> 16
                self._on_settled(queue, slot, w2, shard, number, w0 >> 24 & 0xFF, w7 >> 32, w4, position)
        elif kind == Type.POLICY_SET:
            self._on_policy(QueuePolicy.decode(_part(variable, w6)))
        elif kind == Type.QUEUE_PURGED:
            self._on_purged(self._queue(w0 >> 32), w1, w2, bool(w3))
        elif kind == Type.QUEUE_CLOSED:
            self._queue(w0 >> 32).closed = True
        elif kind == Type.EPOCH:
            self._on_epoch(w1, w3, w4)
        elif kind == Type.JOB_SET:
            self._on_job(_part(variable, w6))
        elif kind == Type.CARRIED:
            self._apply_carried(position, row, variable)
        elif kind == Type.BASE:
            self._apply_base(w3, w4, bool(w0 >> 8 & Flag.MORE), _part(variable, w6))
        else:
            raise LogCorrupt(f"record type {kind} is not known to this release; use the one that wrote the log")

    def _apply_arrived(self, position: int, row: array[int], variable: bytes) -> None:
        """w3 is the sent time; w4 the receive count; w5 the source's slot (overlay) or its shard and entry number."""
        w0, w1, w2, w3, w4, w5, w6, w7 = row
        flags, slot = w0 >> 8 & 0xFF, w7 & _LOW32
        if flags & Flag.REFUSED:
            if not flags & Flag.OVERLAY:
                self._on_refused(w5 & _SHARD_BITS, w5 >> 16, w0 >> 24 & 0xFF)
            return
        if not flags & Flag.OVERLAY:
            self.cursors[w5 & _SHARD_BITS] = w5 >> 16
        queue = self._queue(w0 >> 32)
        priority, count, expires_s = w0 >> 16 & 0xFF, w4 & _LOW32, w7 >> 32
        reason = w0 >> 24 & 0xFF
        self._check_free(slot, w1)
        if flags & Flag.OVERLAY:
            source = w5 & _LOW32
            known = source < self.columns.used and self.columns.state[source] == State.OWED
            if self.before_base and not known:
                return  # its payload went with the dropped front; it is Carried later
            self._on_moved(queue, slot, source, w1, w2, w3, count, expires_s, priority, position, reason)
            return
        part = _part(variable, w6)
        redriven = maximum = 0
        if flags & Flag.NOTED:
            prefix = ARRIVED_NOTED.size
            tenant, origin, redriven, maximum = ARRIVED_NOTED.unpack_from(part)
        else:
            prefix = ARRIVED_PREFIX.size
            tenant, origin = ARRIVED_PREFIX.unpack_from(part)
        self._on_arrived(queue, slot, w1, w2, w3, count, expires_s, priority, tenant, position, skip(w6, prefix))
        self._note_arrival(slot, reason, origin, redriven, maximum)

    def _on_moved(
        self,
        queue: QueueState,
        slot: int,
        source: int,
        sequence: int,
        time: int,
        sent_ms: int,
        count: int,
        expires_s: int,
        priority: int,
        position: int,
        reason: int,
    ) -> None:
        """A move within the shard: the new message shares the old one's payload, under a lineage of its own."""
        columns = self.columns
        old = self.queues[columns.queue[source]]
        line = columns.line[source]
        in_line = old.fifo and not self.before_base and line != NIL
        tenant = self.lines.tenant(line, True) if in_line else self.tenants.get(source, 0)
        payload_position, payload_extent = columns.position[source], columns.extent[source]
        self._on_arrived(
            queue, slot, sequence, time, sent_ms, count, expires_s, priority, tenant, position, payload_extent
        )
        columns.position[slot] = payload_position
        past = self.overlays.get(source, ())
        self.overlays[slot] = (*past[:1], *past[1:][-_OVERLAYS_KEPT:], position)
        redriven = self.redriver(old.number) if reason == Reason.REDRIVE else self.redriven.get(source, 0)
        maximum = self.maxima.get(source, 0) or self.kept_maxima.get(source, 0)
        self._note_arrival(slot, reason, old.number | self.number << 32, redriven, maximum)

    def _apply_carried(self, position: int, row: array[int], variable: bytes) -> None:
        """A message copied forward. Live it only moves; after a dropped front this is where the message begins."""
        w1, w6 = row[1], row[6]
        columns = self.columns
        slot = row[7] & _LOW32
        extent = skip(w6, CARRIED_PREFIX.size)
        if slot < columns.used and columns.state[slot] != State.FREE and columns.sequence[slot] == w1:
            self._on_carried(slot, position, extent)
            return
        if not self.before_base:
            raise LogCorrupt(f"message {w1} is carried, but is not there")
        self._begin_with(position, row, _part(variable, w6), extent)

    def _apply_edited(self, position: int, row: array[int], variable: bytes) -> None:
        """A message that a job changed. After a dropped front it may begin here."""
        w6 = row[6]
        slot = row[7] & _LOW32
        key = EDITED_PREFIX.unpack_from(_part(variable, w6))[0]
        w6 = skip(w6, EDITED_PREFIX.size)
        extent = skip(w6, CARRIED_PREFIX.size)
        queue = self._message(slot, row[1], Type.EDITED)
        if queue is not None:
            self._on_edited(queue, slot, key, position, extent)
        else:
            self._begin_with(position, row, _part(variable, w6), extent)

    def _begin_with(self, position: int, row: array[int], part: bytes, extent: int) -> None:
        """A message whose earlier records went with the dropped front."""
        w0, w1, _w2, w3, w4, _, _, w7 = row
        columns = self.columns
        slot = w7 & _LOW32
        state, doomed, maximum, first_received, leased, tenant, sent_ms = CARRIED_PREFIX.unpack_from(part)
        queue = self._queue(w0 >> 32)
        self._check_free(slot, w1)
        self._insert(queue, slot, w1, position, extent, w0 >> 16 & 0xFF, sent_ms, w7 >> 32)
        columns.state[slot], columns.until[slot] = state, w3
        columns.epoch[slot], columns.count[slot] = w4 & _LOW32, w4 >> 32
        columns.first_received[slot], columns.leased[slot], columns.doomed[slot] = first_received, leased, doomed
        if tenant:
            self.tenants[slot] = tenant
        if maximum:
            self.maxima[slot] = maximum

    def tenant_of(self, slot: int) -> int:
        """The group of a message, wherever that is kept at the moment."""
        line = self.columns.line[slot]
        if line == NIL:
            return self.tenants.get(slot, 0)
        return self.lines.tenant(line, self.queues[self.columns.queue[slot]].fifo)

    def carried_prefix(self, slot: int) -> bytes:
        """What a record that a message may begin with says of it beside its words and its payload."""
        columns = self.columns
        return CARRIED_PREFIX.pack(
            columns.state[slot],
            columns.doomed[slot],
            self.maxima.get(slot, 0),
            columns.first_received[slot],
            columns.leased[slot],
            self.tenant_of(slot),
            columns.sent[slot],
        )

    def _on_carried(self, slot: int, position: int, extent: int) -> None:
        columns = self.columns
        if not self.before_base:
            queue = self.queues[columns.queue[slot]]
            queue.bytes += (extent >> 32) - (columns.extent[slot] >> 32)
        columns.position[slot] = columns.last[slot] = position
        columns.extent[slot] = extent
        self.overlays.pop(slot, None)

    def _apply_base(self, first_frame: int, part: int, more: bool, data: bytes) -> None:
        """A Base that was written for a later truncation says nothing new: the state is known.

        An owner that died between two parts left the first of them behind; the next Base begins with part 0 again.
        """
        if not self.before_base or first_frame < self.before_base:
            return
        if part == 0:
            self.base_parts.clear()
        if part != len(self.base_parts):
            raise LogCorrupt(f"part {part} of a Base follows {len(self.base_parts)} parts of it")
        self.base_parts.append(data)
        if not more:
            self.load_base(self.base_parts)
            self.base_parts = []

    def load_base(self, parts: list[bytes]) -> None:
        raise NotImplementedError


def _halves(words: array[int]) -> array[int]:
    """The low and high halves of 64-bit words, in turn."""
    halves = array("I")
    halves.frombytes(words.tobytes())
    if sys.byteorder == "big":
        halves[0::2], halves[1::2] = halves[1::2], halves[0::2]
    return halves


def _part(variable: bytes, w6: int) -> bytes:
    offset = w6 & _LOW32
    return variable[offset : offset + (w6 >> 32)]


def skip(w6: int, prefix: int) -> int:
    """The extent of what follows a prefix."""
    return (w6 & _LOW32) + prefix | ((w6 >> 32) - prefix) << 32
