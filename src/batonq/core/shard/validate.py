"""Every invariant of a shard, as assertions. `validate()` runs after each step in tests.

The main invariants: a message has at most one holder, and only while it is IN_FLIGHT; only VISIBLE messages can be
leased; a running lease has a timer, so the message returns; a deduplication key names one message; an OWED message is
on exactly one channel; epochs only rise; a message that entered a queue was deleted, expired, was moved, or is there.
The others check that every index agrees with the columns.
"""

from __future__ import annotations

from collections import Counter

from batonq.core.policy import PAUSES_SENDS
from batonq.core.records import Reason, State
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.delivery_gate import gate_of
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.lines import NO_RING
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.shard.state.timers import EXPIRY_RETRY_S


class Validation:
    def __init__(
        self,
        messages: Messages,
        transfers: Transfers,
        jobs: JobBook,
        numbered: NumberedSends,
        requests: RememberedRequests,
        schedules: ScheduleBook,
    ) -> None:
        self.journal = messages.journal
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.timers = messages.timers
        self.attempts = messages.attempts
        self.dedup = messages.dedup
        self.transfers = transfers
        self.jobs = jobs
        self.numbered = numbered
        self.requests = requests
        self.schedules = schedules

    def validate(self) -> None:
        columns = self.columns
        live = [slot for slot in range(columns.used) if columns.state[slot]]
        sequences = [columns.sequence[slot] for slot in live]
        assert len(sequences) == len(set(sequences)), "two messages have one sequence"
        assert all(sequence < self.journal.next_sequence for sequence in sequences), "a sequence was not given out"
        free = set(columns.free)
        assert all(slot in free for slot in range(columns.used) if not columns.state[slot]), "a slot is lost"
        by_queue: dict[int, list[int]] = {number: [] for number in self.queues}
        for slot in live:
            by_queue[columns.queue[slot]].append(slot)
            self._validate_message(slot)
        self._validate_names()
        for number, slots in by_queue.items():
            self._validate_queue(self.queues[number], slots)
        self._validate_transfers(live)
        self.messages.stored.validate({*live})
        self._validate_topics(live)
        self.jobs.validate()
        self.schedules.validate(number for number, queue in self.queues.items() if not queue.closed)
        self.dedup.table.validate()
        self.requests.table.validate()
        self.numbered.producers.validate(self.journal.next_sequence)
        for slot, (key, _) in self.dedup.living.items():
            known = self.dedup.table.get(key, 0)
            assert known is not None and known.sequence == columns.sequence[slot], "a living key names another message"

    def _validate_names(self) -> None:
        """Tables by queue or by job name only existing ones: no entry is left of a queue or job that is gone."""
        queues, lines = self.queues, self.lines
        having = {number for number, queue in queues.items() if queue.visible}
        assert having <= self.messages.filled, "a queue that has something to give is passed over"
        open_lines = set(range(len(lines.key))).difference(lines.free)
        by_queue = {
            "filled": self.messages.filled,
            "woken": self.messages.woken,
            "paced": self.messages.paced.keys(),
            "busy_groups": self.messages.busy_groups.keys(),
            "retaining": self.messages.retaining.keys(),
            "attempts": {queue for queue, _ in self.attempts.by_key},
            "redriving": self.transfers.redriving.keys(),
            "lines": {lines.queue[line] for line in open_lines},
        }
        for name, numbers in by_queue.items():
            assert queues.keys() >= numbers, f"{name} names a queue that is gone"
        assert all(lines.count[line] for line in open_lines), "a line is open and empty"
        assert self.jobs.active.keys() >= self.jobs.pace.keys() | self.jobs.place.keys(), (
            "a job that is over has a pace"
        )
        assert set(self.attempts.of_slot.values()) == self.attempts.by_key.keys(), (
            "an attempt without a lease is remembered"
        )

    def _validate_message(self, slot: int) -> None:
        columns = self.columns
        state = State(columns.state[slot])
        queue = self.queues[columns.queue[slot]]
        held = slot in self.messages.holders
        assert held == (state is State.IN_FLIGHT), f"a message that is {state.name} has {'a' if held else 'no'} holder"
        in_line = columns.line[slot] != NIL
        if queue.fifo:
            assert in_line != (state is State.DEAD) or state is State.OWED, "a FIFO message stands in no line"
        else:
            assert in_line == (state is State.VISIBLE), f"a message that is {state.name} is or is not ready"
        if state is State.IN_FLIGHT:
            assert columns.timer[slot] <= columns.until[slot], "a lease has no timer"
            assert columns.epoch[slot] > 0 and columns.first_received[slot] > 0, "a lease without an epoch"
        looked_at_s = max(columns.expires[slot], self.journal.last_time_ms // 1000 + EXPIRY_RETRY_S)
        assert columns.expiry_timer[slot] <= looked_at_s, "a message will not expire"
        if state is State.DELAYED:
            due = self.timers.delays.next_due()
            waits = slot in self.timers.doomed_due or (due is not None and due <= columns.until[slot])
            assert waits or (queue.closed and queue.policy.topic), "a delay has no timer"
        assert (slot in self.transfers.owed_to) == (state is State.OWED), (
            "an OWED message is on no channel, or another one is"
        )

    def _validate_queue(self, queue: QueueState, slots: list[int]) -> None:
        columns = self.columns
        states = Counter(columns.state[slot] for slot in slots)
        counted = (queue.visible, queue.in_flight, queue.delayed, queue.owed, queue.dead)
        kinds = (State.VISIBLE, State.IN_FLIGHT, State.DELAYED, State.OWED, State.DEAD)
        assert counted == tuple(states[kind] for kind in kinds), "a queue's counters are not its messages'"
        assert (queue.gate is None) == (gate_of(queue.policy) is None), "a queue's gate is not its policy's"
        assert queue.sends_paused == (queue.policy.paused in PAUSES_SENDS), "a queue's pause is not its policy's"
        exact = queue.exact(0, queue.counters(0, 0))
        assert exact.entered == exact.accounted, "messages that entered a queue are unaccounted for"
        assert 0 <= queue.expired_moved <= queue.dead_lettered <= queue.moved, "a queue's moves are miscounted"
        assert queue.bytes == sum(columns.extent[slot] >> 32 for slot in slots), "a queue's bytes are not its messages'"
        order = []
        slot, before = queue.head, NIL
        while slot != NIL:
            assert columns.queue_previous[slot] == before, "the order of arrival is broken"
            order.append(slot)
            slot, before = columns.queue_next[slot], slot
        assert before == queue.tail and sorted(order) == sorted(slots), "the order of arrival misses a message"
        arrival = [columns.sequence[slot] for slot in order]
        assert arrival == sorted(arrival), "messages are not in order of arrival"
        assert queue.ready.in_flight_total == queue.in_flight, "leases are miscounted"
        queue.ready.validate()
        assert self.messages.retaining.get(queue.number) is queue.retained, "retained history is not found"
        assert (queue.retained is not None) == bool(queue.policy.retain_ms and not queue.closed), (
            "a queue retains what it should not, or does not what it should"
        )
        if queue.retained is not None:
            queue.retained.validate()
        for group, reader in (queue.readers or {}).items():
            assert reader.group == group and not queue.closed, "a reader group is found by another name or queue"
            reader.validate()
        self._validate_lines(queue, slots)

    def _validate_lines(self, queue: QueueState, slots: list[int]) -> None:
        columns, lines = self.columns, self.lines
        in_lines = {slot for slot in slots if columns.line[slot] != NIL}
        ringed = self._ringed_lines(queue)
        for line in {columns.line[slot] for slot in in_lines}:
            members = []
            slot, before = lines.head[line], NIL
            while slot != NIL:
                assert columns.line_previous[slot] == before and columns.line[slot] == line, "a line is broken"
                members.append(slot)
                slot, before = columns.line_next[slot], slot
            assert before == lines.tail[line] and len(members) == lines.count[line], "a line is miscounted"
            in_lines.difference_update(members)
            if queue.fifo:
                order = [columns.sequence[slot] for slot in members]
                assert order == sorted(order), "a group is out of order"
                ready = columns.state[members[0]] == State.VISIBLE
                assert (line in ringed) == ready, "a group is open though its head is not VISIBLE, or the reverse"
                if ready:
                    assert lines.priority[line] == columns.priority[members[0]], "a group stands in the wrong lane"
            else:
                assert line in ringed, "a line of ready messages cannot be reached"
        assert not in_lines, "a message is in no line of its queue"

    def _ringed_lines(self, queue: QueueState) -> set[int]:
        """The lines that the ready order can reach."""
        lines = self.lines
        reached: set[int] = set()
        for priority, lane in queue.ready.lanes.items():
            assert lane.priority == priority and not lane.empty, "an empty lane"
            reached.update(line for line in (lane.fresh, lane.returned) if line != NIL)
            for head in (lane.quiet, lane.noisy):
                line = head
                while line != NIL:
                    assert lines.ring[line] != NO_RING and lines.priority[line] == priority, "a ring is broken"
                    assert lines.ring_previous[lines.ring_next[line]] == line, "a ring is broken"
                    reached.add(line)
                    line = lines.ring_next[line]
                    if line == head:
                        break
        return reached

    def _validate_topics(self, live: list[int]) -> None:
        """The messages of a topic are copies that wait, and nothing else is."""
        columns, fanned = self.columns, self.messages.fanned
        self.messages.topics.validate(number for number, queue in self.queues.items() if queue.policy.topic)
        waiting = [slot for slot in live if self.queues[columns.queue[slot]].policy.topic]
        assert sorted(fanned) == waiting, (
            "a copy of a published message has no subscription, or another message has one"
        )
        for slot in waiting:
            queue, state = self.queues[columns.queue[slot]], columns.state[slot]
            retried = state == State.DELAYED and columns.doomed[slot] == Reason.FANOUT
            behind = state == State.VISIBLE and queue.fifo
            assert state == State.OWED or retried or behind, "a copy of a published message waits for nothing"

    def _validate_transfers(self, live: list[int]) -> None:
        columns = self.columns
        on_the_way = []
        for shard, channel in self.transfers.channels.items():
            numbers = list(channel.unsettled)
            in_order = numbers == sorted(numbers)
            assert in_order and all(channel.settled < number <= channel.last for number in numbers), (
                "a channel's entries are out of order, or settled already"
            )
            if not numbers:
                assert channel.settled == channel.last, "a channel is settled further than it went"
            for number, slot in channel.unsettled.items():
                assert self.transfers.owed_to[slot][:2] == (shard, number), "a channel entry names another message"
                on_the_way.append(slot)
        redriving = Counter(
            columns.queue[slot] for slot, owed in self.transfers.owed_to.items() if owed[3] == Reason.REDRIVE
        )
        assert redriving == self.transfers.redriving, "messages that a job has on their way are miscounted"
        owed = [slot for slot in live if columns.state[slot] == State.OWED]
        assert sorted(on_the_way) == sorted(owed), "an OWED message stands on no channel, or on two"
