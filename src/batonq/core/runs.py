"""What runs of plain records do: the common case of the hot path, and of recovery, a batch at a time.

A run is several records of one kind, of one request, to one standard queue: fresh sends without a group or a dedup key,
first leases of the messages at the front of a lane, acknowledgements of current leases. The effect is that of the
records one by one (`state.py`); only the bookkeeping is shared. `tests/core` compares the two ways.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.columns import DELTA_MAX, NIL
from batonq.core.queuestate import QueueState
from batonq.core.state import ShardState

FIRST_LEASE = 1 | 1 << 32  # w4: epoch and count
_FREE, _VISIBLE, _IN_FLIGHT = 0, 2, 3


class Runs(ShardState):
    def _on_sends(
        self,
        queue: QueueState,
        slots: Sequence[int],
        sequence: int,
        time: int,
        expires_s: int,
        priority: int,
        position: int,
        extents: Sequence[int],
    ) -> None:
        """Messages with consecutive sequences and positions, VISIBLE at once. The slots are free."""
        columns = self.columns
        count = len(slots)
        first = slots[0]
        if first == columns.used and slots[-1] == first + count - 1:
            end = first + count
            columns.reserve(end)
            columns.used = end
            columns.sequence[first:end] = array("Q", range(sequence, sequence + count))
            columns.position[first:end] = columns.last[first:end] = array("Q", range(position, position + count))
            columns.extent[first:end] = array("Q", extents)
            columns.until[first:end] = columns.sent[first:end] = array("Q", (time,)) * count
            columns.expires[first:end] = array("I", (expires_s,)) * count
            columns.queue[first:end] = array("I", (queue.number,)) * count
            columns.priority[first:end] = array("B", (priority,)) * count
            columns.state[first:end] = array("B", (_VISIBLE,)) * count
            self._link_fresh(queue, first, end)
            columns.expiry_timer[first:end] = columns.expires[first:end]
            self.expiries.push_run(expires_s, range(first, end))
            queue.ready.add_run(first, end, priority)
        else:
            self._fill_slots(queue, slots, sequence, time, expires_s, priority, position, extents)
        queue.visible += count
        queue.sent += count
        queue.bytes += sum([extent >> 32 for extent in extents])
        self.woken.add(queue.number)
        if self.next_sequence < sequence + count:
            self.next_sequence = sequence + count

    def _fill_slots(
        self,
        queue: QueueState,
        slots: Sequence[int],
        sequence: int,
        time: int,
        expires_s: int,
        priority: int,
        position: int,
        extents: Sequence[int],
    ) -> None:
        """The same for slots that were used before."""
        columns = self.columns
        sequences, positions, lasts, extent_column = columns.sequence, columns.position, columns.last, columns.extent
        untils, sents, expires, queues = columns.until, columns.sent, columns.expires, columns.queue
        priorities, states, epochs, counts = columns.priority, columns.state, columns.epoch, columns.count
        firsts, doomed, expiry_timers = columns.first_received, columns.doomed, columns.expiry_timer
        forward, backward = columns.queue_next, columns.queue_previous
        number = queue.number
        tail = queue.tail
        due = []
        for slot, extent in zip(slots, extents, strict=True):
            if slot >= columns.used:
                columns.reserve(slot + 1)
                columns.used = slot + 1
            sequences[slot] = sequence
            positions[slot] = lasts[slot] = position
            extent_column[slot] = extent
            untils[slot] = sents[slot] = time
            expires[slot] = expires_s
            queues[slot] = number
            priorities[slot] = priority
            states[slot] = _VISIBLE
            epochs[slot] = counts[slot] = firsts[slot] = doomed[slot] = 0
            if expires_s < expiry_timers[slot]:
                expiry_timers[slot] = expires_s
                due.append(slot)
            backward[slot] = tail
            if tail == NIL:
                queue.head = slot
            else:
                forward[tail] = slot
            tail = slot
            sequence += 1
            position += 1
        forward[tail] = NIL
        queue.tail = tail
        if due:
            self.expiries.push_run(expires_s, due)
        queue.ready.add_slots(slots, priority)

    def _link_fresh(self, queue: QueueState, first: int, end: int) -> None:
        columns = self.columns
        columns.queue_next[first:end] = array("I", range(first + 1, end + 1))
        columns.queue_next[end - 1] = NIL
        columns.queue_previous[first:end] = array("I", range(first - 1, end - 1)) if first else _from_zero(end)
        tail = queue.tail
        columns.queue_previous[first] = tail
        if tail == NIL:
            queue.head = first
        else:
            columns.queue_next[tail] = first
        queue.tail = end - 1

    def _on_first_leases(
        self, queue: QueueState, slots: Sequence[int], time: int, deadline: int, position: int, holder: str
    ) -> None:
        """The messages at the front of a lane's fresh line, which were never leased, go to one holder."""
        columns = self.columns
        epochs, counts, lasts, sents = columns.epoch, columns.count, columns.last, columns.sent
        leased, firsts, states, untils = columns.leased, columns.first_received, columns.state, columns.until
        timers, lines = columns.timer, columns.line
        holders = self.holders
        due = []
        for slot in slots:
            epochs[slot] = counts[slot] = 1
            lasts[slot] = position
            delta = time - sents[slot]
            if not 0 <= delta < DELTA_MAX:
                delta = 0 if delta < 0 else DELTA_MAX - 1
            leased[slot] = delta
            firsts[slot] = delta + 1
            states[slot] = _IN_FLIGHT
            untils[slot] = deadline
            lines[slot] = NIL
            holders[slot] = holder
            if deadline < timers[slot]:
                timers[slot] = deadline
                due.append(slot)
            position += 1
        if due:
            self.leases.push_run(deadline, due)
        count = len(slots)
        queue.ready.drop_front(columns.priority[slots[0]], slots)
        queue.ready.in_flight_total += count
        queue.visible -= count
        queue.in_flight += count
        queue.received += count

    def _on_acknowledged(self, queue: QueueState, slots: Sequence[int]) -> None:
        """Messages of a standard queue, held, ungrouped and without notes, are deleted by their holder."""
        columns = self.columns
        states, lines, extents = columns.state, columns.line, columns.extent
        forward, backward = columns.queue_next, columns.queue_previous
        holders = self.holders
        total = 0
        for slot in slots:
            before, after = backward[slot], forward[slot]
            if before == NIL:
                queue.head = after
            else:
                forward[before] = after
            if after == NIL:
                queue.tail = before
            else:
                backward[after] = before
            total += extents[slot] >> 32
            states[slot] = _FREE
            lines[slot] = NIL
            del holders[slot]
        count = len(slots)
        columns.free.extend(slots)
        if len(columns.free) > 2 * columns.used + 64:
            columns.rebuild_free()
        queue.bytes -= total
        queue.in_flight -= count
        queue.ready.in_flight_total -= count
        queue.deleted += count

    def plain(self, slot: int) -> bool:
        """Is there nothing beside the columns to know about this message?"""
        return not (
            slot in self.tenants
            or slot in self.failures
            or slot in self.maxima
            or slot in self.overlays
            or slot in self.origins
            or slot in self.refusals
            or slot in self.living_keys
            or slot in self.attempt_of
        )


def _from_zero(end: int) -> array[int]:
    return array("I", (NIL, *range(end - 1)))
