"""Reading a shard without changing it: messages, queues, and what a receive would find."""

from __future__ import annotations

from itertools import islice

from batonq.core.commands import Counters, CurrentLease, Departing, Failure, Lease, Leases, MessageView, Place
from batonq.core.records import State
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.lines import NO_RING
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_search import QueueSearch
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.spread import Hint, parse, takes

LOOK_MAX = 64  # messages that are examined for the oldest VISIBLE one


class Views:
    def __init__(self, messages: Messages, transfers: Transfers, search: QueueSearch) -> None:
        self.number = messages.journal.number
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.transfers = transfers
        self.search = search

    def holds_moved(self, number: int) -> bool:
        """Whether the shard has messages whose group or key belongs to another shard since their queue grew."""
        queue = self.messages.queue_state(number)
        spread = queue.policy.spread
        if not spread:
            return False
        if not takes(spread, self.number):
            return queue.messages > 0  # the queue is leaving this shard
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

    def place(self, slot: int) -> Place:
        """Where the payload of the message in a slot is."""
        extent = self.columns.extent[slot]
        position = self.columns.position[slot]
        return Place(position, extent & 0xFFFFFFFF, extent >> 32, tuple(self.messages.overlays.get(slot, ())))

    def has(self, slot: int, sequence: int) -> bool:
        """Whether a slot still holds the message with this sequence."""
        columns = self.columns
        return slot < columns.used and columns.sequence[slot] == sequence and columns.state[slot] != State.FREE

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
        leased_ms = columns.sent[slot] + columns.leased[slot]
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
        return Departing(
            queue.number,
            queue.fifo,
            columns.priority[slot],
            columns.sent[slot],
            columns.count[slot],
            self.messages.redriven.get(slot, 0),
            self.messages.maxima.get(slot, 0) or self.messages.kept_maxima.get(slot, 0),
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
        lane = queue.ready.best_lane(queue.policy.ageing_ms)
        if lane is None or (queue.fifo and queue.in_flight >= queue.policy.in_flight_max):
            return Hint(0)
        return Hint(queue.visible, lane.priority, queue.ready.since(lane))

    def counters(self, number: int) -> Counters:
        return self.messages.queue_state(number).counters(self.oldest_sent(number))

    def oldest_sent(self, number: int) -> int:
        """When the oldest message of a queue was sent, in milliseconds; 0 if the queue is empty or not known."""
        queue = self.queues.get(number)
        return self.columns.sent[queue.head] if queue is not None and queue.head != NIL else 0

    def oldest_visible(self, number: int) -> int:
        """When the oldest VISIBLE message of a queue was sent, in milliseconds; 0 if there is none.

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
            return columns.sent[slot]
        head, sent = self.lines.head, columns.sent
        return min(
            (
                sent[head[line]]
                for lane in queue.ready.lanes.values()
                for line in (lane.fresh, lane.returned, lane.quiet, lane.noisy)
                if line != NIL
            ),
            default=0,
        )

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
            sent + columns.first_received[slot] - 1,
            columns.priority[slot],
            columns.position[slot],
            extent & 0xFFFFFFFF,
            extent >> 32,
            self.messages.overlays.get(slot, ()) if self.messages.overlays else (),
        )
