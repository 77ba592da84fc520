"""A shard: the whole state machine. Each command is decided against the state, writes its records into the open
frame, applies them at once, and returns the outcome. The host releases the outcome when the frame is committed.

Time is an argument, in milliseconds. What is due by then is recorded before any decision. The modules, from the bottom
up: state.py, move_records.py and columnar_apply.py (the effect of records), columnar_replay.py and replay.py (applying
frames), transfer.py (moves out of a queue), timers.py, queue_search.py, arrivals.py (moves into a queue), jobs.py,
send_commands.py, receive_commands.py, receipt_commands.py; in addition persist.py and validate.py.
"""

from __future__ import annotations

from batonq.core.commands import Counters, Departing, Leases, MessageView, Place
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, State, Type
from batonq.core.shard.columns import NIL
from batonq.core.shard.persist import Persist
from batonq.core.shard.queue_state import QueueState
from batonq.core.shard.receipt_commands import ReceiptCommands
from batonq.core.shard.state import Failure
from batonq.core.shard.validate import Validate
from batonq.core.spread import Hint, parse, takes


class Shard(ReceiptCommands, Persist, Validate):
    # --- the frame ---------------------------------------------------------------------------------

    def begin_frame(self, number: int) -> None:
        """Start filling the frame with this number, after the open frame was sealed."""
        self.frame.begin(number)

    def seal(self) -> tuple[bytes, bytes]:
        return self.frame.seal()

    # --- ownership and control -----------------------------------------------------------------------

    def take_ownership(self, epoch: int, base_ms: int, grace_ms: int) -> None:
        """Write the first record of a new owner. Running leases are extended by `grace_ms`."""
        assert epoch > self.epoch, "an owner's epoch is above every one before"
        base_ms = max(base_ms, self.last_time_ms)
        self.frame.add(Type.EPOCH, epoch, base_ms, base_ms, grace_ms, 0, 0, self.format)
        self._on_epoch(epoch, base_ms, grace_ms)

    def set_policy(self, policy: QueuePolicy, now: int) -> None:
        now = self.begin(now)
        w6 = self.frame.put(policy.encode())
        self.frame.add(Type.POLICY_SET | policy.queue << 32, policy.version, now, 0, 0, 0, w6, 0)
        self._on_policy(policy)

    def close_queue(self, number: int, version: int, now: int) -> None:
        """Close a deleted queue: it accepts no more commands. `purge` then removes its messages."""
        now = self.begin(now)
        queue = self.queue_state(number)
        self.frame.add(Type.QUEUE_CLOSED | number << 32, version, now, 0, 0, 0, 0, 0)
        queue.closed = True

    def purge(self, number: int, now: int, through: int | None = None) -> tuple[int, bool]:
        """Do one step of a purge: remove a bounded number of messages, up to sequence `through` (None: all
        messages).

        Returns the number of removed messages and whether the purge is complete; call again until it is. If the queue
        had no messages when its purge began, `through` is 0: nothing is removed, and the purge is complete.
        """
        now = self.begin(now)
        queue = self.queues[number]
        columns = self.columns
        if through is None:
            through = self.next_sequence - 1
        slot = queue.head
        survivor = steps = 0
        while slot != NIL and columns.sequence[slot] <= through and steps < self.limits.purge_step_max:
            survivor = columns.sequence[slot] + 1
            if columns.state[slot] != State.OWED:  # OWED messages stay, so they must not use up the step
                steps += 1
            slot = columns.queue_next[slot]
        final = slot == NIL or columns.sequence[slot] > through
        before = queue.deleted
        w0 = Type.QUEUE_PURGED | Reason.PURGED << 24 | number << 32
        self.frame.add(w0, survivor, now, int(final), steps, through + 1, 0, 0)
        self._on_purged(queue, survivor, now, final, through + 1)
        return queue.deleted - before, final

    @property
    def closing(self) -> list[int]:
        """Closed queues that still have messages or an entry here."""
        return [number for number, queue in self.queues.items() if queue.closed]

    def filled_queues(self) -> list[int]:
        """The queues with VISIBLE messages, in no order. The cost grows with their number."""
        queues = self.queues
        empty = [number for number in self.filled if not queues[number].visible]
        self.filled.difference_update(empty)
        return list(self.filled)

    # --- reading ---------------------------------------------------------------------------------------

    def holds_moved(self, number: int) -> bool:
        """Whether the shard has messages whose group or key belongs to another shard since their queue grew."""
        queue = self.queue_state(number)
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
        return Place(position, extent & 0xFFFFFFFF, extent >> 32, tuple(self.overlays.get(slot, ())))

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

    def failure_of(self, slot: int) -> Failure | None:
        """The last failed attempt of the message in a slot."""
        return self.failures.get(slot)

    def failures_of(self, leases: Leases) -> dict[int, Failure]:
        """Earlier failed attempts of leased messages that are still there, by slot."""
        if not self.failures:
            return {}
        sequence = self.columns.sequence
        return {
            slot: self.failures[slot]
            for slot, own in zip(leases.slots, leases.sequences, strict=True)
            if slot in self.failures and sequence[slot] == own
        }

    def was_edited_by(self, slot: int, job: int) -> bool:
        """Whether a job, by its key, has edited the message in a slot and not moved it yet."""
        return bool(job) and self.edited.get(slot) == job

    def departing(self, slot: int) -> Departing:
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        return Departing(
            queue.number,
            queue.fifo,
            columns.priority[slot],
            columns.sent[slot],
            columns.count[slot],
            self.redriven.get(slot, 0),
            self.maxima.get(slot, 0) or self.kept_maxima.get(slot, 0),
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
        queue = self.queue_state(number)
        lane = queue.ready.best_lane(queue.policy.ageing_ms)
        if lane is None or (queue.fifo and queue.in_flight >= queue.policy.in_flight_max):
            return Hint(0)
        return Hint(queue.visible, lane.priority, queue.ready.since(lane))

    def counters(self, number: int) -> Counters:
        queue = self.queue_state(number)
        return queue.counters(self.columns.sent[queue.head] if queue.head != NIL else 0)

    def peek(self, number: int, after_sequence: int, limit: int) -> list[MessageView]:
        """Messages in arrival order, whatever their state, without changing them."""
        slot, found = self.seek(number, after_sequence)
        while not found:
            slot, found = self.seek(number, after_sequence, slot, self.columns.sequence[slot])
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
        failure = self.failures.get(slot)
        _, _, moves_to, moves_for = self.owed_to.get(slot, (0, 0, 0, 0))
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
            holder=self.holders.get(slot, ""),
            error_class=failure.error_class if failure else "",
            reason=failure.reason if failure else "",
            first_failure_ms=failure.first_ms if failure else 0,
            last_failure_ms=failure.last_ms if failure else 0,
            maximum=self.maxima.get(slot, 0) or queue.policy.max_receives,
            ahead=self._ahead(queue, slot),
            moves_to=moves_to,
            moves_for=moves_for,
            refusals=self.refusals.get(slot, 0),
        )

    def _ahead(self, queue: QueueState, slot: int) -> int:
        """The state of the first message of a FIFO group, if another message than this one is first; otherwise 0."""
        line = self.columns.line[slot]
        if not queue.fifo or line == NIL or self.lines.head[line] == slot:
            return 0
        return self.columns.state[self.lines.head[line]]
