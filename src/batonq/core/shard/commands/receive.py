"""The Receive command: leases on the next messages of a queue, in the order that ready_order.py decides.

An expired message is never leased, even if more messages expire at once than expiry.py has recorded so far.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.commands import Leases, Receive
from batonq.core.records import LeaseFlag, State, Type, encode_notes
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.effects.message_runs import FIRST_LEASE, MessageRuns
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.returns import Returns
from batonq.core.shard.state.attempts import ATTEMPT_WINDOW_MS
from batonq.core.shard.state.columns import NIL, delta_ms
from batonq.core.shard.state.group_locks import lock
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import BatonError, OverLimit

_VISIBLE, _IN_FLIGHT = int(State.VISIBLE), int(State.IN_FLIGHT)
_LEASED = int(Type.LEASED)
_IN_FLIGHT_FULL = (
    "The queue's limit of messages in flight is reached. Delete messages, or wait until their leases expire."
)


class ReceiveCommands:
    given_up = 0  # expired or exhausted messages that the current receives have found, in total

    def __init__(
        self, messages: Messages, expiry: Expiry, records: MessageRecords, runs: MessageRuns, returns: Returns
    ) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.attempts = messages.attempts
        self.expiry = expiry
        self.records = records
        self.runs = runs
        self.returns = returns

    def receive(self, commands: Sequence[Receive], now: int) -> list[Leases | BatonError]:
        """Lease messages of one queue for requests that arrived together, in their order. All requests have the same
        visibility timeout.

        Raises QueueDoesNotExist. A request gets OverLimit as its outcome if too many messages are in flight.
        """
        now = self.expiry.begin(now)
        self.given_up = 0
        queue = self.messages.queue_state(commands[0].queue)
        if not queue.fifo and queue.gate is None:
            wanted = sum([command.max_messages for command in commands])
            front = self._front(queue, min(wanted, queue.policy.in_flight_max - queue.in_flight), now)
            if front:
                found = self._lease_front(queue, front, commands, now)
                full = queue.in_flight >= queue.policy.in_flight_max
                return [leases if leases or not full else OverLimit(_IN_FLIGHT_FULL) for leases in found]
        self.given_up = 0
        outcomes: list[Leases | BatonError] = []
        for command in commands:
            try:
                outcomes.append(self._receive(queue, command, now))
            except OverLimit as problem:
                outcomes.append(problem)
        return outcomes

    def receive_at(self, command: Receive, now: int) -> Leases:
        """Lease messages for one request, at a time that `begin` or `pass_time` returned. Use it for many requests
        in a row.

        If the queue has more messages to examine than one receive may, it is in `woken` afterwards. Raises OverLimit.
        """
        self.given_up = 0
        queue = self.messages.queue_state(command.queue)
        if not queue.fifo and queue.gate is None:
            front = self._front(queue, min(command.max_messages, queue.policy.in_flight_max - queue.in_flight), now)
            if front:
                return self._lease_front(queue, front, (command,), now)[0]
        self.given_up = 0
        return self._receive(queue, command, now)

    def _receive(self, queue: QueueState, command: Receive, now: int) -> Leases:
        policy = queue.policy
        deadline = now + (policy.visibility_ms if command.visibility_ms is None else command.visibility_ms)
        attempt = command.attempt
        if attempt:
            again = self._receive_again(queue, attempt, deadline, now)
            if again:
                return self._leases_of(again, now, deadline)
            if not queue.fifo or self.attempts.full(now):
                attempt = ""  # decided here, so that the records say which attempts are remembered
        wanted = command.max_messages
        if queue.gate is not None:
            wanted = queue.gate.allows(wanted, now)
            if wanted <= 0:
                self.messages.wait_for_pace(queue, now)
                return Leases(now, deadline)
        room = policy.in_flight_max - queue.in_flight
        if room <= 0:
            if queue.fifo:
                return Leases(now, deadline)
            raise OverLimit(_IN_FLIGHT_FULL)
        if not queue.visible:
            return Leases(now, deadline)
        wanted = min(wanted, room)
        if not queue.fifo:
            slots = self._lease_standard(queue, wanted, now, deadline, command.holder)
        else:
            slots = self._choose_fifo(queue, wanted, now)
            queue.ready.in_flight_total += len(slots)
            w6 = self.frame.put(encode_notes(command.holder, attempt)) if slots else 0
            self._lease(queue, slots, now, deadline, command.holder, w6, int(LeaseFlag.ATTEMPT) if attempt else 0)
        if queue.gate is not None and queue.gate.pace is not None:
            queue.gate.pace.take(len(slots), now)
        leases = self._leases_of(slots, now, deadline)
        if attempt and slots:
            self.attempts.put(queue.number, attempt, now + ATTEMPT_WINDOW_MS, tuple(leases.claims()))
        return leases

    def _lease_standard(self, queue: QueueState, wanted: int, now: int, deadline: int, holder: str) -> list[int]:
        """Lease messages that are chosen one at a time, because each choice depends on the previous one; returns
        their slots.
        """
        ready, messages, gate = queue.ready, self.messages, queue.gate
        ageing_ms = queue.policy.ageing_ms
        slots: list[int] = []
        w6 = leased = 0

        def lease_chosen() -> None:
            nonlocal w6, leased
            if leased < len(slots):
                w6 = w6 or self.frame.put(encode_notes(holder, ""))
                self._lease(queue, slots[leased:], now, deadline, holder, w6, 0)
                leased = len(slots)

        while len(slots) < wanted:
            slot = ready.next_standard(ageing_ms) if gate is None else gate.next_standard(ready, ageing_ms)
            if slot == NIL:
                break
            if self._is_over(queue, slot, now):
                self.given_up += 1
                if self.given_up > self.journal.limits.given_up_max:
                    messages.woken.add(queue.number)
                    break
                lease_chosen()
                self._put_away(queue, slot, now)
                continue
            group = ready.remove(slot)
            if group:
                messages.loose_groups[slot] = group
            ready.lease_began(group)
            slots.append(slot)
        lease_chosen()
        return slots

    def _lease_front(
        self, queue: QueueState, slots: Sequence[int], commands: Sequence[Receive], now: int
    ) -> list[Leases]:
        """Lease the front of a queue that has no choice to make, as one run, in the order of the requests.

        These are first leases, so no message at the front of a fresh line can have exhausted its receives.
        """
        columns = self.columns
        frame = self.frame
        holders: list[tuple[str, int]] = []
        left = len(slots)
        for command in commands:
            count = min(command.max_messages, left)
            holders.append((command.holder, count))
            left -= count
        visibility_ms = commands[0].visibility_ms
        deadline = now + (queue.policy.visibility_ms if visibility_ms is None else visibility_ms)
        notes = [frame.put(encode_notes(holder, "")) if count else 0 for holder, count in holders]
        position = frame.number << 16 | len(frame.rows) >> 3
        priority = columns.priority[slots[0]]
        w0 = _LEASED | priority << 16 | queue.number << 32
        if isinstance(slots, range):
            first, end = slots.start, slots.stop
            sequences, lasts = columns.sequence[first:end], columns.last[first:end]
            positions, extents = columns.position[first:end], columns.extent[first:end]
            sents = columns.sent[first:end]
        else:
            sequences = array("Q", [columns.sequence[slot] for slot in slots])
            lasts = array("Q", [columns.last[slot] for slot in slots])
            positions = array("Q", [columns.position[slot] for slot in slots])
            extents = array("Q", [columns.extent[slot] for slot in slots])
            sents = array("Q", [columns.sent[slot] for slot in slots])
        # The rows start as copies of the shared values; the columns that differ are then written over them.
        rows = array("Q", (w0, 0, now, deadline, FIRST_LEASE, 0, notes[0], 0)) * len(slots)
        rows[1::8] = sequences
        rows[5::8] = lasts
        if len(notes) > 1:
            at = 0
            for note, (_, count) in zip(notes, holders, strict=True):
                rows[at + 6 : at + 8 * count : 8] = array("Q", (note,)) * count
                at += 8 * count
        rows[7::8] = array("Q", [*slots])
        frame.extend(rows)
        self.runs.on_first_leases(queue, slots, now, deadline, position, holders)
        self.messages.latencies.received_first(queue.number, sents, now)
        overlays = [self.messages.overlays.get(slot, ()) for slot in slots] if self._overlaid(slots) else ()
        leases = Leases(
            now, deadline, slots, sequences, positions, extents, sents, priority=priority, overlays=overlays
        )
        if len(holders) == 1:
            return [leases]
        parts: list[Leases] = []
        start = 0
        for _, count in holders:
            parts.append(leases.part(start, start + count))
            start += count
        return parts

    def _overlaid(self, slots: Sequence[int]) -> bool:
        """Whether any of these messages has a lineage overlay."""
        return bool(self.messages.overlays) and not self.messages.overlays.keys().isdisjoint(slots)

    def _leases_of(self, slots: Sequence[int], now: int, deadline: int) -> Leases:
        """The current leases of messages, whatever the state of each message."""
        columns = self.columns
        sents = [columns.sent[slot] for slot in slots]
        return Leases(
            now,
            deadline,
            slots,
            [columns.sequence[slot] for slot in slots],
            [columns.position[slot] for slot in slots],
            [columns.extent[slot] for slot in slots],
            sents,
            priorities=[columns.priority[slot] for slot in slots],
            epochs=[columns.epoch[slot] for slot in slots],
            counts=[columns.count[slot] for slot in slots],
            firsts_ms=[
                sent + delta_ms(columns.first_received[slot] - 1) for slot, sent in zip(slots, sents, strict=True)
            ],
            overlays=[self.messages.overlays.get(slot, ()) for slot in slots] if self._overlaid(slots) else (),
        )

    def _choose_fifo(self, queue: QueueState, wanted: int, now: int) -> list[int]:
        """Choose messages from the front of one group, then of the next. A message that is not VISIBLE ends its
        group's turn. The groups are locked, because the caller leases their first messages.
        """
        columns = self.columns
        lines = self.lines
        chosen: list[int] = []
        gate = queue.gate
        priority_min = 0 if gate is None else gate.priority_min
        while len(chosen) < wanted:
            if gate is None:
                lane = queue.ready.best_lane(queue.policy.ageing_ms)
                if lane is None:
                    break
                line = lane.quiet
            else:
                found = gate.next_group(queue.ready, queue.policy.ageing_ms)
                if found is None:
                    break
                lane, line = found
            slot = lines.head[line]
            if self._is_over(queue, slot, now):
                self.given_up += 1
                if self.given_up > self.journal.limits.given_up_max:
                    self.messages.woken.add(queue.number)
                    break
                self._put_away(queue, slot, now)
                continue
            while slot != NIL and len(chosen) < wanted and columns.state[slot] == _VISIBLE:
                if columns.priority[slot] < priority_min or self._is_over(queue, slot, now):
                    break  # a message that is over is removed once it is the head
                chosen.append(slot)
                slot = columns.line_next[slot]
            lock(queue.ready, lane, line)
        return chosen

    def _is_over(self, queue: QueueState, slot: int, now: int) -> bool:
        """Whether a VISIBLE message may no longer be leased, because it has expired or exhausted its receives."""
        return self.columns.expires[slot] <= now // 1000 or self.messages.exhausted(queue, slot)

    def _put_away(self, queue: QueueState, slot: int, now: int) -> None:
        """Handle a message that may no longer be leased: it expires, is dead-lettered, or becomes DEAD. Expiry comes
        first if both reasons apply.
        """
        if self.columns.expires[slot] <= now // 1000:
            self.returns.expire(slot, now)
        else:
            self.returns.give_up(queue, slot, now)

    def _front(self, queue: QueueState, wanted: int, now: int) -> Sequence[int]:
        """The next messages of a standard queue, if there is no choice to make and none of them has expired."""
        front = queue.ready.front(wanted) if wanted > 0 else ()
        return () if front and self._any_expired(front, now) else front

    def _any_expired(self, slots: Sequence[int], now: int) -> bool:
        """Whether any of these messages has expired. That can happen because one step ends a bounded number of
        timers.
        """
        expires = self.columns.expires
        if isinstance(slots, range):
            return min(expires[slots.start : slots.stop]) <= now // 1000
        return min([expires[slot] for slot in slots]) <= now // 1000

    def _lease(
        self, queue: QueueState, slots: Sequence[int], now: int, deadline: int, holder: str, w6: int, flags: int
    ) -> None:
        """Lease messages that have been taken out of the ready order."""
        if not slots:
            return
        columns, frame = self.columns, self.frame
        epochs, counts, sequences, lasts = columns.epoch, columns.count, columns.sequence, columns.last
        priorities = columns.priority
        w0 = _LEASED | flags << 8 | queue.number << 32
        auxiliary = ATTEMPT_WINDOW_MS << 32 if flags else 0
        position = frame.number << 16 | len(frame.rows) >> 3
        words: list[int] = []
        for slot in slots:
            lease = epochs[slot] + 1 | counts[slot] + 1 << 32
            words += (
                w0 | priorities[slot] << 16,
                sequences[slot],
                now,
                deadline,
                lease,
                lasts[slot],
                w6,
                slot | auxiliary,
            )
        frame.extend(array("Q", words))
        self.runs.on_leases(queue, slots, now, deadline, position, holder)
        self.messages.latencies.received(queue.number, columns, slots, now)

    def _receive_again(self, queue: QueueState, attempt: str, deadline: int, now: int) -> list[int]:
        """The slots of the messages that an earlier receive with this attempt id got, after extending their leases."""
        known = self.attempts.get(queue.number, attempt, now)
        if known is None:
            return []
        columns = self.columns
        for slot, sequence, epoch in known.leases:
            if columns.sequence[slot] != sequence or columns.epoch[slot] != epoch or columns.state[slot] != _IN_FLIGHT:
                return []
            if columns.until[slot] <= now:
                return []  # the lease has expired, but its record is not written yet
        for slot, _, _ in known.leases:
            flags = int(LeaseFlag.ATTEMPT)
            position = self.messages.write(Type.EXTENDED, queue.number, slot, now, until=deadline, flags=flags)
            self.records.on_extended(slot, deadline, position, True)
        return [slot for slot, _, _ in known.leases]
