"""The effect of runs of records, one column at a time.

A run is several records of one type for one queue: new messages, first leases of the messages at the front of a lane,
or deletes of current leases. The effect is the same as applying the records one by one (`message_records.py`). Only the
bookkeeping is shared, and adjacent slots are written as slices. `tests/core` compares the two ways.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.records import State
from batonq.core.shard.state.columns import COUNT_MAX, NIL, counted, halves_of, pack_delta
from batonq.core.shard.state.group_locks import lock_or_unlock
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.timers import NO_TIMER

FIRST_LEASE = 1 | 1 << 32  # w4: epoch and count
_FREE, _DELAYED, _VISIBLE, _IN_FLIGHT = map(int, (State.FREE, State.DELAYED, State.VISIBLE, State.IN_FLIGHT))
RUN_MAX = 4096  # the constants below are sliced to the length of a run; longer runs build their own
_ZEROS_I = array("I", [0]) * RUN_MAX
_ZEROS_H = array("H", [0]) * RUN_MAX
FREES = _ZEROS_B = array("B", [_FREE]) * RUN_MAX
_ONES_I = array("I", [1]) * RUN_MAX
_ONES_H = array("H", [1]) * RUN_MAX
_NILS = array("I", [NIL]) * RUN_MAX
_VISIBLES = array("B", [_VISIBLE]) * RUN_MAX
IN_FLIGHTS = array("B", [_IN_FLIGHT]) * RUN_MAX
_NO_TIMERS = array("Q", [NO_TIMER]) * RUN_MAX


class MessageRuns:
    def __init__(self, messages: Messages) -> None:
        self.journal = messages.journal
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.timers = messages.timers

    def on_sends(
        self,
        queue: QueueState,
        slots: Sequence[int],
        sequences: array[int],
        time: int,
        expires: array[int],
        priorities: array[int],
        position: int,
        extents: array[int],
        size: int,
        visibles: array[int] | None = None,
        groups: array[int] | None = None,
        maxima: Sequence[int] = (),
    ) -> None:
        """Apply new messages with consecutive sequences and positions. The caller has taken the slots off the free
        list.

        A column that is None or empty has one value for all: VISIBLE at once, no group, or no maximum of their own.
        """
        count = len(slots)
        if isinstance(slots, range) and count <= RUN_MAX:
            times = array("Q", (time,)) * count
            positions = counted("Q", range(position, position + count))
            self.fill_range(queue, slots, sequences, times, expires, priorities, positions, extents)
        else:
            self._fill_slots(queue, slots, sequences[0], time, expires, priorities, position, extents)
        if maxima:
            self.messages.maxima.update((slot, maximum) for slot, maximum in zip(slots, maxima, strict=True) if maximum)
        if groups is not None:
            self.messages.count_groups(queue, groups, position)
        if queue.fifo or visibles is not None or groups is not None:
            self._enter_each(queue, slots, time, visibles, groups)
        else:
            self.enter_ready(queue, slots, priorities)
        self.count_sends(queue, count, size, sequences[-1] + 1)
        if queue.retained is not None:
            queue.retained.extend(range(position, position + count), time)

    def enter_ready(self, queue: QueueState, slots: Sequence[int], priorities: array[int]) -> None:
        """Add new messages of a standard queue to the ready order. They have no group and are VISIBLE at once."""
        queue.visible += len(slots)
        self.messages.woken.add(queue.number)
        self.messages.filled.add(queue.number)
        priority = priorities[0]
        if len(priorities) == priorities.count(priority):
            if isinstance(slots, range) and len(slots) <= RUN_MAX:
                queue.ready.add_run(counted("I", slots), priority)
            else:
                queue.ready.add_slots(slots, priority)
            return
        for slot, own in zip(slots, priorities, strict=True):
            queue.ready.add(slot, 0, own, False)

    def _enter_each(
        self,
        queue: QueueState,
        slots: Sequence[int],
        time: int,
        visibles: array[int] | None,
        groups: array[int] | None,
    ) -> None:
        groups = groups if groups is not None else array("Q", bytes(8 * len(slots)))
        if queue.fifo and visibles is None:
            lines, ready, number = self.lines, queue.ready, queue.number
            for slot, group in zip(slots, groups, strict=True):
                line = lines.find_or_open(number, group, 0)
                lines.append(line, slot)
                if lines.head[line] == slot:  # otherwise the group stays eligible or locked, as before
                    lock_or_unlock(ready, line)
            queue.visible += len(slots)
            self.messages.woken.add(number)
            self.messages.filled.add(number)
            return
        untils = visibles if visibles is not None else array("Q", (time,)) * len(slots)
        for slot, group, visible_ms in zip(slots, groups, untils, strict=True):
            self.messages.join_group(queue, slot, group)
            if visible_ms <= time:
                self.messages.enter(queue, slot, _VISIBLE, time)
            else:
                self.messages.enter(queue, slot, _DELAYED, visible_ms)

    def count_sends(self, queue: QueueState, count: int, size: int, next_sequence: int) -> None:
        queue.sent += count
        queue.bytes += size
        queue.sent_bytes += size
        if self.journal.next_sequence < next_sequence:
            self.journal.next_sequence = next_sequence

    def fill_range(
        self,
        queue: QueueState,
        slots: range,
        sequences: array[int],
        times: array[int],
        expires: array[int],
        priorities: array[int],
        positions: array[int],
        extents: array[int],
    ) -> None:
        """Fill the columns of new messages in adjacent slots, and append them to their queue's arrival order."""
        columns = self.columns
        count = len(slots)
        first, end = slots.start, slots.stop
        used_before = first < columns.used
        if end > columns.used:
            columns.use(first, end)
        if used_before:
            columns.epoch[first:end] = columns.first_received[first:end] = _ZEROS_I[:count]
            columns.count[first:end] = _ZEROS_H[:count]
            columns.doomed[first:end] = _ZEROS_B[:count]
        columns.sequence[first:end] = sequences
        columns.position[first:end] = columns.last[first:end] = positions
        columns.extent[first:end] = extents
        columns.until[first:end] = columns.sent[first:end] = times
        columns.expires[first:end] = expires
        columns.queue[first:end] = array("I", (queue.number,)) * count
        columns.priority[first:end] = priorities
        columns.state[first:end] = _VISIBLES[:count]
        self.timers.arm_run(slots, expires)
        run = counted("I", slots)
        columns.queue_next[first : end - 1] = run[1:]
        columns.queue_next[end - 1] = NIL
        columns.queue_previous[first + 1 : end] = run[:-1]
        tail = queue.tail
        columns.queue_previous[first] = tail
        if tail == NIL:
            queue.head = first
        else:
            columns.queue_next[tail] = first
        queue.tail = end - 1

    def _fill_slots(
        self,
        queue: QueueState,
        slots: Sequence[int],
        sequence: int,
        time: int,
        expires: array[int],
        priorities: array[int],
        position: int,
        extents: Sequence[int],
    ) -> None:
        """Fill the columns of new messages in any slots, and append them to their queue's arrival order."""
        columns = self.columns
        sequences, positions, lasts, extent_column = columns.sequence, columns.position, columns.last, columns.extent
        untils, sents, expiries, queues = columns.until, columns.sent, columns.expires, columns.queue
        priority_column, states, epochs, counts = columns.priority, columns.state, columns.epoch, columns.count
        firsts, doomed, expiry_timers = columns.first_received, columns.doomed, columns.expiry_timer
        forward, backward = columns.queue_next, columns.queue_previous
        number = queue.number
        tail = queue.tail
        for slot, extent, expires_s, priority in zip(slots, extents, expires, priorities, strict=True):
            if slot >= columns.used:
                columns.use(slot, slot + 1)
            sequences[slot] = sequence
            positions[slot] = lasts[slot] = position
            extent_column[slot] = extent
            untils[slot] = sents[slot] = time
            expiries[slot] = expires_s
            queues[slot] = number
            priority_column[slot] = priority
            states[slot] = _VISIBLE
            epochs[slot] = counts[slot] = firsts[slot] = doomed[slot] = 0
            if expires_s < expiry_timers[slot]:
                self.timers.arm_expiries((slot,), expires_s)
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

    def on_first_leases(
        self,
        queue: QueueState,
        slots: Sequence[int],
        time: int,
        deadline: int,
        position: int,
        holders: Sequence[tuple[str, int]],
    ) -> None:
        """Apply first leases to the messages at the front of a lane's fresh line. `holders` gives each holder and
        its number of messages.
        """
        count = len(slots)
        priority = self.columns.priority[slots[0]]
        if isinstance(slots, range) and count <= RUN_MAX:
            self._lease_range(slots, time, deadline, position)
        else:
            self._lease_slots(slots, time, deadline, position)
        at = 0
        for holder, some in holders:
            self.messages.holders.update(dict.fromkeys(slots[at : at + some], holder))
            at += some
        queue.ready.drop_front(priority, slots)
        queue.ready.in_flight_total += count
        queue.visible -= count
        queue.in_flight += count
        queue.received += count

    def _lease_range(self, slots: range, time: int, deadline: int, position: int) -> None:
        columns = self.columns
        count = len(slots)
        first, end = slots.start, slots.stop
        sents = columns.sent[first:end]
        if sents == array("Q", (sents[0],)) * count:
            delta = pack_delta(time, sents[0])
            columns.leased[first:end] = array("I", (delta,)) * count
            columns.first_received[first:end] = array("I", (delta + 1,)) * count
        else:
            deltas = [pack_delta(time, sent) for sent in sents]
            columns.leased[first:end] = array("I", deltas)
            columns.first_received[first:end] = array("I", [delta + 1 for delta in deltas])
        columns.epoch[first:end] = _ONES_I[:count]
        columns.count[first:end] = _ONES_H[:count]
        columns.last[first:end] = counted("Q", range(position, position + count))
        columns.state[first:end] = IN_FLIGHTS[:count]
        columns.until[first:end] = deadlines = array("Q", (deadline,)) * count
        columns.line[first:end] = _NILS[:count]
        timers = columns.timer[first:end]
        if timers == _NO_TIMERS[:count]:
            columns.timer[first:end] = deadlines
            self.timers.leases.push_run(deadline, slots)
        elif max(timers) > deadline:
            self.timers.arm_leases(slots, deadline)

    def _lease_slots(self, slots: Sequence[int], time: int, deadline: int, position: int) -> None:
        columns = self.columns
        epochs, counts, lasts, sents = columns.epoch, columns.count, columns.last, columns.sent
        leased, firsts, states, untils = columns.leased, columns.first_received, columns.state, columns.until
        lines = columns.line
        for slot in slots:
            epochs[slot] = counts[slot] = 1
            lasts[slot] = position
            leased[slot] = delta = pack_delta(time, sents[slot])
            firsts[slot] = delta + 1
            states[slot] = _IN_FLIGHT
            untils[slot] = deadline
            lines[slot] = NIL
            position += 1
        self.timers.arm_leases(slots, deadline)

    def on_leases(
        self, queue: QueueState, slots: Sequence[int], time: int, deadline: int, position: int, holder: str
    ) -> None:
        """Apply leases to messages that have been taken out of the ready order."""
        columns = self.columns
        epochs, counts, lasts, sents = columns.epoch, columns.count, columns.last, columns.sent
        leased, firsts, states, untils = columns.leased, columns.first_received, columns.state, columns.until
        for slot in slots:
            epochs[slot] += 1
            if counts[slot] < COUNT_MAX:
                counts[slot] += 1
            lasts[slot] = position
            leased[slot] = delta = pack_delta(time, sents[slot])
            if not firsts[slot]:
                firsts[slot] = delta + 1
            states[slot] = _IN_FLIGHT
            untils[slot] = deadline
            position += 1
        self.timers.arm_leases(slots, deadline)
        self.messages.holders.update(dict.fromkeys(slots, holder))
        count = len(slots)
        queue.visible -= count
        queue.in_flight += count
        queue.received += count

    def on_acknowledged(self, queue: QueueState, slots: Sequence[int]) -> None:
        """Apply deletes by the holders of messages that are IN_FLIGHT and `plain`."""
        columns = self.columns
        for notes in self.messages.notes:
            if notes and not notes.keys().isdisjoint(slots):
                for slot in slots:
                    notes.pop(slot, None)
        if queue.fifo:
            for slot in slots:
                lock_or_unlock(queue.ready, self.lines.unlink(slot))
        count = len(slots)
        run = array("I", slots)
        if isinstance(slots, range) and count <= RUN_MAX and self._are_neighbours(run):
            first, end = slots.start, slots.stop
            total = sum(halves_of(columns.extent[first:end])[1::2])
            self.messages.unlink(queue, columns.queue_previous[first], columns.queue_next[end - 1])
            columns.state[first:end] = FREES[:count]
        else:
            total = 0
            for slot in slots:
                self.messages.unlink(queue, columns.queue_previous[slot], columns.queue_next[slot])
                total += columns.extent[slot] >> 32
                columns.state[slot] = _FREE
        holders = self.messages.holders
        for slot in slots:
            del holders[slot]
        columns.free += run
        if len(columns.free) > 2 * columns.used + 64:
            columns.rebuild_free()
        queue.bytes -= total
        queue.in_flight -= count
        queue.ready.in_flight_total -= count
        queue.deleted += count

    def _are_neighbours(self, run: array[int]) -> bool:
        """Whether messages in adjacent slots are also adjacent in their queue's arrival order."""
        return self.columns.queue_next[run[0] : run[-1]] == run[1:]
