"""Reading a shard without changing it: messages, queues, and what a receive would find."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from batonq.core.commands import (
    Counters,
    CurrentLease,
    Departing,
    ExactCounters,
    Failure,
    Lease,
    Leases,
    MessageView,
    Place,
)
from batonq.core.records import State
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.columns import NIL, delta_ms
from batonq.core.shard.state.delivery_gate import DeliveryGate
from batonq.core.shard.state.lines import NO_RING
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_search import QueueSearch
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.retained import Retained
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.spread import Hint, parse, takes
from batonq.errors import NotRetained
from batonq.queue_attributes import RETAIN, mention

LOOK_MAX = 64  # messages that are examined for the oldest VISIBLE one
DELAY_NOTICED_MS = 60_000  # a shorter delay of a message that was received before counts as part of its age


class BusyGroup(NamedTuple):
    waiting: int  # messages of the group that wait; in a FIFO queue, all of them
    slot: int  # of the first of them, or NIL
    share: float  # of the messages that the queue got lately
    position: int  # of a record of one of its messages, which may be no longer retained


class Views:
    def __init__(self, messages: Messages, transfers: Transfers, search: QueueSearch, schedules: ScheduleBook) -> None:
        self.number = messages.journal.number
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.transfers = transfers
        self.search = search
        self.schedules = schedules

    def holds_moved(self, number: int, now: int) -> bool:
        """Whether the shard has messages or schedules that belong to another shard since their queue grew, or history
        of a queue that has left it.
        """
        queue = self.messages.queue_state(number)
        spread = queue.policy.spread
        if not spread:
            return False
        if any(self._is_foreign(schedule.group, queue) for schedule in self.schedules.of_queue(number)):
            return True
        if not takes(spread, self.number):
            if queue.retained is not None:
                queue.retained.end_old(now)
            return queue.messages > 0 or bool(queue.retained)  # the queue is leaving this shard
        if not queue.fifo:
            return queue.policy.dedup_lives and queue.messages > 0  # deduplication keys apply while their messages live
        lines, there = self.lines, parse(spread)
        return any(
            lines.queue[line] == number
            and lines.key[line]
            and lines.head[line] != NIL
            and there.of_hash(lines.group(line, fifo=True)) != self.number
            for line in range(len(lines.key))
        )

    def _is_foreign(self, group: str, queue: QueueState) -> bool:
        """Whether the messages of a schedule belong to another shard."""
        spread = queue.policy.spread
        return parse(spread).of_key(group) != self.number if queue.fifo else not takes(spread, self.number)

    def place(self, slot: int) -> Place:
        """Where the payload of the message in a slot is."""
        extent = self.columns.extent[slot]
        position = self.columns.position[slot]
        return Place(position, extent & 0xFFFFFFFF, extent >> 32, tuple(self.messages.overlays.get(slot, ())))

    def has(self, slot: int, sequence: int) -> bool:
        """Whether a slot still holds the message with this sequence."""
        columns = self.columns
        return slot < columns.used and columns.sequence[slot] == sequence and columns.state[slot] != State.FREE

    def retained_of(self, number: int, now: int) -> Retained:
        """The retained history of a queue. Raises QueueDoesNotExist, NotRetained."""
        queue = self.messages.queue_state(number)
        if queue.retained is None:
            raise NotRetained(
                f"Queue {queue.policy.name} does not retain its history. Set {mention(RETAIN)} on the queue; messages "
                "that are sent from then on are retained."
            )
        queue.retained.end_old(now)
        return queue.retained

    def is_used(self, slot: int) -> bool:
        """Whether a slot holds any message."""
        return self.columns.state[slot] != State.FREE

    def sequence_at(self, slot: int) -> int:
        return self.columns.sequence[slot]

    def state_at(self, slot: int) -> int:
        return self.columns.state[slot]

    def sent_at(self, slot: int) -> int:
        """When the message in a slot was sent, in milliseconds."""
        return self.columns.sent[slot]

    def next_in_queue(self, slot: int) -> int:
        """The slot of the message that arrived next in the same queue, or NIL."""
        return self.columns.queue_next[slot]

    def newest(self, number: int, limit: int) -> list[tuple[int, int]]:
        """Slot and sequence of the newest messages of a queue, the newest first."""
        columns = self.columns
        slot = self.messages.queue_state(number).tail
        found: list[tuple[int, int]] = []
        while slot != NIL and len(found) < limit:
            found.append((slot, columns.sequence[slot]))
            slot = columns.queue_previous[slot]
        return found

    def leased_slots(self, limit: int) -> list[int]:
        """The slots of messages in flight, of all queues."""
        return list(islice(self.messages.holders, limit))

    def lease_at(self, slot: int) -> CurrentLease | None:
        """The current lease of the message in a slot; None if nobody holds it."""
        holder = self.messages.holders.get(slot)
        if holder is None:
            return None
        columns = self.columns
        leased_ms = columns.sent[slot] + delta_ms(columns.leased[slot])
        return CurrentLease(columns.queue[slot], holder, leased_ms, columns.until[slot])

    def last_record(self, slot: int) -> int:
        """The position of the last record of the message in a slot. Each record names the one before it."""
        return self.columns.last[slot]

    def failure_of(self, slot: int) -> Failure | None:
        """The last failed attempt of the message in a slot."""
        return self.messages.failures.get(slot)

    def failures_of(self, leases: Leases) -> dict[int, Failure]:
        """Earlier failed attempts of leased messages that are still there, by slot."""
        if not self.messages.failures:
            return {}
        sequence = self.columns.sequence
        return {
            slot: self.messages.failures[slot]
            for slot, own in zip(leases.slots, leases.sequences, strict=True)
            if slot in self.messages.failures and sequence[slot] == own
        }

    def was_edited_by(self, slot: int, job: int) -> bool:
        """Whether a job, by its key, has edited the message in a slot and not moved it yet."""
        return bool(job) and self.messages.edited.get(slot) == job

    def departing(self, slot: int) -> Departing:
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        fifo, origin = queue.fifo, queue.number | self.number << 32
        if queue.policy.topic:
            fifo, _ = self.transfers.fanout.facts_of(slot)
            _, _, to, _ = self.transfers.owed_to[slot]
            origin = self.messages.topics.origin_of(queue.number, self.messages.fanned[slot][0], to)
        return Departing(
            queue.number,
            fifo,
            columns.priority[slot],
            columns.sent[slot],
            columns.count[slot],
            self.messages.redriven.get(slot, 0),
            self.messages.maxima.get(slot, 0) or self.messages.kept_maxima.get(slot, 0),
            origin,
        )

    def queue_name(self, number: int) -> str:
        """The name of a queue; empty if the shard does not have the queue."""
        queue = self.queues.get(number)
        return queue.policy.name if queue is not None else ""

    def numbers_from(self, number: int) -> int:
        """The offset added to this shard's sequences where messages of the queue are shown: see Spread."""
        queue = self.queues.get(number)
        spread = queue.policy.spread if queue is not None else ""
        return parse(spread).numbers_from(self.number) if spread else 0

    def hint(self, number: int) -> Hint:
        """What a receive would find in a queue. Only the next message is examined."""
        queue = self.messages.queue_state(number)
        if queue.gate is not None:
            return self._hint_through(queue.gate, queue)
        lane = queue.ready.best_lane(queue.policy.ageing_ms)
        if lane is None or (queue.fifo and queue.in_flight >= queue.policy.in_flight_max):
            return Hint(0)
        return Hint(queue.visible, lane.priority, queue.ready.since(lane))

    def _hint_through(self, gate: DeliveryGate, queue: QueueState) -> Hint:
        """What a receive would find in a queue whose deliveries are restricted."""
        now, ageing_ms = self.messages.journal.last_time_ms, queue.policy.ageing_ms
        allowed = gate.allows(queue.visible, now)
        if not allowed or (queue.fifo and queue.in_flight >= queue.policy.in_flight_max):
            self.messages.wait_for_pace(queue, now)
            return Hint(0)
        columns = self.columns
        if queue.fifo:
            found = gate.next_group(queue.ready, ageing_ms)
            slot = self.lines.head[found[1]] if found is not None else NIL
        elif gate.group:
            slot = gate.next_standard(queue.ready, ageing_ms)
        else:
            lane = queue.ready.best_lane(ageing_ms, gate.priority_min)
            return Hint(0) if lane is None else Hint(allowed, lane.priority, queue.ready.since(lane))
        return Hint(0) if slot == NIL else Hint(allowed, columns.priority[slot], columns.until[slot])

    def is_paced(self, number: int) -> bool:
        """Whether a queue's cap on deliveries holds its messages back now."""
        queue = self.messages.queue_state(number)
        gate = queue.gate
        if gate is None or gate.paused or gate.pace is None:
            return False
        return queue.visible > 0 and not gate.pace.available(self.messages.journal.last_time_ms)

    def oldest(self, number: int, limit: int) -> list[MessageView]:
        """The oldest messages of a queue, in any state."""
        return self.views(self.messages.queue_state(number).head, limit)

    def counters(self, number: int) -> Counters:
        return self.messages.queue_state(number).counters(self.oldest_sent(number), self.oldest_visible(number))

    def exact_counters(self, number: int) -> ExactCounters:
        """A queue's counters, and the position of the record that is written next: they count all before it."""
        frame = self.messages.frame
        position = frame.number << 16 | frame.row_count
        return self.messages.queue_state(number).exact(position, self.counters(number))

    def oldest_sent(self, number: int) -> int:
        """When the oldest message of a queue was sent, in milliseconds; 0 if the queue is empty or not known."""
        queue = self.queues.get(number)
        return self.columns.sent[queue.head] if queue is not None and queue.head != NIL else 0

    def _waits_since(self, queue: QueueState, slot: int) -> int:
        """When a VISIBLE message was sent, or when the delay that it was sent with ended."""
        columns = self.columns
        sent_ms = columns.sent[slot]
        if not columns.epoch[slot] and not columns.count[slot]:
            return columns.until[slot]
        ended_ms = columns.expires[slot] * 1000 - queue.policy.retention_ms
        if ended_ms - sent_ms < DELAY_NOTICED_MS or not columns.first_received[slot]:
            return sent_ms
        return min(ended_ms, sent_ms + delta_ms(columns.first_received[slot] - 1))

    def oldest_visible(self, number: int) -> int:
        """When the oldest VISIBLE message of a queue was sent, or when its own delay ended, in milliseconds; 0 if there
        is none.

        Exact if one of the first messages in arrival order is VISIBLE. Otherwise the time is that of the oldest among
        the messages that are next in their lane, because no more than LOOK_MAX messages are examined.
        """
        queue = self.messages.queue_state(number)
        if not queue.visible:
            return 0
        columns = self.columns
        slot = queue.head
        for _ in range(LOOK_MAX):
            if slot == NIL or columns.state[slot] == State.VISIBLE:
                break
            slot = columns.queue_next[slot]
        if slot != NIL and columns.state[slot] == State.VISIBLE:
            return self._waits_since(queue, slot)
        head = self.lines.head
        return min(
            (
                self._waits_since(queue, head[line])
                for lane in queue.ready.lanes.values()
                for line in (lane.fresh, lane.returned, lane.quiet, lane.noisy)
                if line != NIL
            ),
            default=0,
        )

    def busiest_groups(self, number: int, limit: int) -> list[BusyGroup]:
        """The message groups of a queue with the most messages lately, the busiest first. The cost does not depend on
        the number of messages or groups.
        """
        queue = self.messages.queue_state(number)
        busy = self.messages.busy_groups.get(number)
        found = busy.busiest(limit) if busy is not None else []
        return [BusyGroup(*self._waiting_of(queue, group), share, position) for group, share, position in found]

    def counted_groups(self, number: int) -> int:
        """How many messages the shares of `busiest_groups` are of."""
        busy = self.messages.busy_groups.get(number)
        return busy.total if busy is not None else 0

    def _waiting_of(self, queue: QueueState, group: int) -> tuple[int, int]:
        """How many messages of a group wait or, in a FIFO queue, exist; and the slot of the first of them."""
        lines = self.lines
        priorities = (0,) if queue.fifo else tuple(queue.ready.lanes)
        found = [lines.find(queue.number, group, priority) for priority in priorities]
        found = [line for line in found if line != NIL and lines.head[line] != NIL]
        return sum(lines.count[line] for line in found), min((lines.head[line] for line in found), default=NIL)

    def group_waiting(self, slot: int) -> int:
        """How many messages the FIFO group of the message in a slot has."""
        line = self.columns.line[slot]
        return self.lines.count[line] if line != NIL else 0

    def higher_priority(self, slot: int) -> tuple[int, bool]:
        """How many messages of higher priority than this one can be received, and whether all were counted: at most
        LOOK_MAX groups of each priority are examined.
        """
        queue, lines = self.queues[self.columns.queue[slot]], self.lines
        count, complete = 0, True
        for priority, lane in queue.ready.lanes.items():
            if priority <= self.columns.priority[slot]:
                continue
            count += sum(lines.count[line] for line in (lane.fresh, lane.returned) if line != NIL)
            for start in (lane.quiet, lane.noisy):
                line = start
                for _ in range(LOOK_MAX):
                    if line == NIL:
                        break
                    count += lines.count[line]
                    line = lines.ring_next[line]
                    if line == start:
                        break
                else:
                    complete = False
        return count, complete

    def blocked_groups(self, start: int, count: int) -> tuple[list[int], int | None]:
        """The queue of each FIFO group with messages that wait because the group's first message is not VISIBLE.

        Examines `count` lines from `start`. Returns the queues, and where to go on; None: all lines were examined.
        """
        lines = self.lines
        end = start + count
        found = [
            queue
            for key, queue, waiting, ring in zip(
                lines.key[start:end], lines.queue[start:end], lines.count[start:end], lines.ring[start:end], strict=True
            )
            if waiting > 1 and ring == NO_RING and key
        ]
        return found, end if end < len(lines.key) else None

    def peek(self, number: int, after_sequence: int, limit: int) -> list[MessageView]:
        """Messages in arrival order, whatever their state, without changing them."""
        slot, found = self.search.seek(number, after_sequence)
        while not found:
            slot, found = self.search.seek(number, after_sequence, slot, self.columns.sequence[slot])
        return self.views(slot, limit)

    def views(self, slot: int, limit: int) -> list[MessageView]:
        """The message in a slot (none for NIL) and the messages of its queue that arrived after it."""
        views: list[MessageView] = []
        while slot != NIL and len(views) < limit:
            views.append(self.view(slot))
            slot = self.columns.queue_next[slot]
        return views

    def view(self, slot: int) -> MessageView:
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        lease = self._lease_view(slot)
        failure = self.messages.failures.get(slot)
        _, _, moves_to, moves_for = self.transfers.owed_to.get(slot, (0, 0, 0, 0))
        if queue.policy.topic and not moves_to and slot in self.messages.fanned:
            moves_to = self.messages.topics.destination_of(queue.number, self.messages.fanned[slot][0])
        if columns.state[slot] == State.DELAYED:
            moves_for = columns.doomed[slot]
        return MessageView(
            slot=slot,
            sequence=lease.sequence,
            state=columns.state[slot],
            until_ms=lease.deadline_ms,
            epoch=lease.epoch,
            receive_count=lease.receive_count,
            sent_ms=lease.sent_ms,
            first_received_ms=lease.first_received_ms if columns.first_received[slot] else 0,
            expires_ms=columns.expires[slot] * 1000,
            priority=lease.priority,
            position=lease.position,
            offset=lease.offset,
            length=lease.length,
            overlays=lease.overlays,
            holder=self.messages.holders.get(slot, ""),
            error_class=failure.error_class if failure else "",
            reason=failure.reason if failure else "",
            first_failure_ms=failure.first_ms if failure else 0,
            last_failure_ms=failure.last_ms if failure else 0,
            maximum=self.messages.maxima.get(slot, 0) or queue.policy.max_receives,
            ahead=self._ahead(queue, slot),
            moves_to=moves_to,
            moves_for=moves_for,
            refusals=self.transfers.refusals.get(slot, 0),
            origin=self.messages.origins.get(slot, 0),
        )

    def _ahead(self, queue: QueueState, slot: int) -> int:
        """The state of the first message of a FIFO group, if another message than this one is first; otherwise 0."""
        line = self.columns.line[slot]
        if not queue.fifo or line == NIL or self.lines.head[line] == slot:
            return 0
        return self.columns.state[self.lines.head[line]]

    def _lease_view(self, slot: int) -> Lease:
        columns = self.columns
        sent = columns.sent[slot]
        extent = columns.extent[slot]
        return Lease(
            slot,
            columns.sequence[slot],
            columns.epoch[slot],
            columns.count[slot],
            columns.until[slot],
            sent,
            sent + delta_ms(columns.first_received[slot] - 1) if columns.first_received[slot] else sent - 1,
            columns.priority[slot],
            columns.position[slot],
            extent & 0xFFFFFFFF,
            extent >> 32,
            self.messages.overlays.get(slot, ()) if self.messages.overlays else (),
        )
