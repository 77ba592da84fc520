"""A shard's messages: their columns, what else is known about each, and the queues, lines and timers that list them.

Records change messages through these methods, which never choose: every choice is in the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from batonq.core.commands import Failure
from batonq.core.policy import QueuePolicy
from batonq.core.records import CARRIED_PREFIX, RETAINING_VERSION, TOPICS_VERSION, State, Type
from batonq.core.shard.lifecycle import allowed
from batonq.core.shard.state.attempts import Attempts
from batonq.core.shard.state.busy_groups import BusyGroups
from batonq.core.shard.state.columns import NIL, Columns, delta_ms
from batonq.core.shard.state.deduplication import Deduplication
from batonq.core.shard.state.group_locks import lock_or_unlock
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.latencies import Latencies
from batonq.core.shard.state.lines import Lines
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.retained import Retained, front_of
from batonq.core.shard.state.stored_payloads import StoredPayloads
from batonq.core.shard.state.timers import Timers
from batonq.core.shard.state.topics import Topics
from batonq.errors import LogCorrupt, QueueDoesNotExist

_UNLIMITED = 1 << 60
_FREE, _DELAYED, _VISIBLE, _IN_FLIGHT, _OWED, _DEAD = map(
    int, (State.FREE, State.DELAYED, State.VISIBLE, State.IN_FLIGHT, State.OWED, State.DEAD)
)


class Messages:
    def __init__(
        self, journal: Journal, columns: Columns, timers: Timers, attempts: Attempts, dedup: Deduplication
    ) -> None:
        self.journal = journal
        self.frame = journal.frame
        self.columns = columns
        self.timers = timers
        self.attempts = attempts
        self.dedup = dedup
        self.lines = Lines(columns)
        self.queues: dict[int, QueueState] = {}
        self.retaining: dict[int, Retained] = {}  # queue → its retained history
        self.topics = Topics()
        self.holders: dict[int, str] = {}  # slot in flight → its holder
        # Notes: what is known about a message beside its columns. An entry is dropped when its message ends.
        self.loose_groups: dict[int, int] = {}  # slot → group, for messages that are in no line
        self.failures: dict[int, Failure] = {}
        self.maxima: dict[int, int] = {}  # slot → the message's own maximum of receives
        self.kept_maxima: dict[int, int] = {}  # slot of a dead letter → its own maximum, applied again after redrive
        self.redriven: dict[int, int] = {}  # slot → key of the job that moved it here
        self.edited: dict[int, int] = {}  # slot → key of the job that has changed the message and not moved it yet
        self.uncharged: dict[int, int] = {}  # slot → leases not counted as receives: no consumer got the message
        self.overlays: dict[int, tuple[int, ...]] = {}  # slot → positions of the records that hold its lineage overlays
        self.fanned: dict[int, tuple[int, int]] = {}  # slot of a copy that waits in its topic → subscription, group
        self.origins: dict[int, int] = {}  # slot of a dead letter → source queue | source shard << 32
        self.stored = StoredPayloads(journal, self.queues)
        self.notes: list[dict[int, Any]] = [
            self.loose_groups,
            self.failures,
            self.maxima,
            self.kept_maxima,
            self.redriven,
            self.edited,
            self.uncharged,
            self.overlays,
            self.origins,
            self.stored.of_slot,
            self.fanned,
        ]  # transfers.py adds its own
        # soft: not replayed
        self.woken: set[int] = set()
        self.filled: set[int] = set()  # every queue with VISIBLE messages, and possibly empty ones
        self.paced: dict[int, int] = {}  # queue whose cap has held back a receive → when its next message may go
        self.latencies = Latencies()
        self.busy_groups: dict[int, BusyGroups] = {}  # of queues with groups

    # --- queues --------------------------------------------------------------------------------------

    def queue_state(self, number: int) -> QueueState:
        queue = self.queues.get(number)
        if queue is None or queue.closed:
            raise QueueDoesNotExist()
        return queue

    def named_queue(self, number: int) -> QueueState:
        """The queue that a record names. Before the Base, a queue's policy may not be known yet."""
        queue = self.queues.get(number)
        if queue is None:
            if not self.journal.before_base:
                raise LogCorrupt(f"record for queue {number}, which this shard does not have")
            queue = self.queues[number] = QueueState(QueuePolicy(number, "", ""), self.lines)
            queue.retained = Retained(0)  # until the Base says what of it is retained
        return queue

    def move_time(self, time: int) -> None:
        """Move to the time of a record that is replayed. Delays that had ended by then end here too."""
        if time > self.journal.last_time_ms:
            self.journal.last_time_ms = time
        if time >= self.timers.delays.due and not self.journal.before_base:
            self.end_delays(time)

    def on_policy(self, policy: QueuePolicy, time: int) -> None:
        self.journal.note_policy(policy)
        if policy.topic:
            self.journal.use_format(TOPICS_VERSION)
            self.topics.on_policy(policy)
        queue = self.queues.get(policy.queue)
        if queue is None:
            queue = self.queues[policy.queue] = QueueState(policy, self.lines)
            if self.journal.before_base:
                queue.retained = Retained(0)
        else:
            queue.set_policy(policy)
        if not self.journal.before_base and (policy.retain_ms or queue.retained is not None):
            self.retain(queue, time)

    def retain(self, queue: QueueState, time: int) -> None:
        """Apply a queue's `retain_ms`. What had ended by the old value does not come back by a longer one."""
        retained = queue.retained
        if retained is not None:
            retained.end_old(time)
        if queue.policy.retain_ms and not queue.closed:
            self.journal.use_format(RETAINING_VERSION)
            if retained is None:
                retained = queue.retained = Retained(queue.policy.retain_ms)
            retained.retain_ms = queue.policy.retain_ms
            self.retaining[queue.number] = retained
        else:
            queue.retained = None
            self.retaining.pop(queue.number, None)

    def on_closed(self, queue: QueueState) -> None:
        """Apply the deletion of a queue. Its messages are removed by a purge; its history ends at once."""
        queue.closed = True
        if not self.journal.before_base:
            queue.retained = queue.readers = None
            self.retaining.pop(queue.number, None)

    def retained_front(self, now: int) -> int:
        """The first frame that retained history needs; above every frame if none is retained."""
        return front_of(self.retaining.values(), now) >> 16

    def _forget_queue(self, number: int) -> None:
        """Remove a deleted queue that has no message left. Nothing in the state names it afterwards (validate.py
        checks that).
        """
        del self.queues[number]
        self.woken.discard(number)
        self.filled.discard(number)
        self.paced.pop(number, None)
        self.latencies.queues.pop(number, None)
        self.busy_groups.pop(number, None)
        self.topics.forget(number)

    def filled_queues(self) -> list[int]:
        """The queues with VISIBLE messages, in no order. The cost grows with their number."""
        queues = self.queues
        empty = [number for number in self.filled if not queues[number].visible]
        self.filled.difference_update(empty)
        return list(self.filled)

    def wait_for_pace(self, queue: QueueState, now: int) -> None:
        """Wake the queue's waiters when its cap allows the next message, if a cap is what holds its messages back."""
        gate = queue.gate
        if gate is None or gate.paused or gate.pace is None or not queue.visible:
            return
        if not gate.pace.available(now):
            self.paced[queue.number] = gate.pace.due_ms(now)

    def wake_paced(self, now: int) -> None:
        """Wake the queues whose caps allow a message again."""
        for number in [number for number, due in self.paced.items() if due <= now]:
            del self.paced[number]
            self.woken.add(number)

    def closing(self) -> list[int]:
        """Closed queues that still have messages or an entry here."""
        return [number for number, queue in self.queues.items() if queue.closed]

    def living(self) -> int:
        """The number of messages in the shard. Arrivals from other shards are not limited, so slots beyond the limit
        can become free. The limit therefore applies to messages, which are counted only when the next free slot is
        beyond it.
        """
        return sum(queue.messages for queue in self.queues.values())

    # --- adding a message to its state's indexes and removing it -------------------------------

    def enter(self, queue: QueueState, slot: int, state: int, until: int) -> None:
        columns = self.columns
        columns.state[slot] = state
        columns.until[slot] = until
        if self.journal.before_base:
            return
        if queue.fifo:
            self._refresh_group(queue, slot, state)
        if state == _VISIBLE:
            queue.visible += 1
            if not queue.fifo:
                group = self.loose_groups.pop(slot, 0) if self.loose_groups else 0
                leased_before = columns.epoch[slot] > 0 or columns.count[slot] > 0
                queue.ready.add(slot, group, columns.priority[slot], leased_before)
            self.woken.add(queue.number)
            self.filled.add(queue.number)
        elif state == _DELAYED:
            queue.delayed += 1
            self.timers.delays.push(until, slot)
        elif state == _IN_FLIGHT:
            queue.in_flight += 1
            self.timers.lease_until(slot, until)
        elif state == _OWED:
            queue.owed += 1
        elif state == _DEAD:
            queue.dead += 1
            self.dedup.end_life(slot)

    def _refresh_group(self, queue: QueueState, slot: int, state: int) -> None:
        """Update the group of a FIFO message that has a new state: the group may unlock or lock. A DEAD message
        leaves its group's line.
        """
        line = self.columns.line[slot]
        if state == _DEAD and line != NIL:
            self.loose_groups[slot] = self.lines.group(line, True)
            self.lines.unlink(slot)
        if line != NIL:
            lock_or_unlock(queue.ready, line)

    def leave(self, queue: QueueState, slot: int, time: int) -> None:
        if self.journal.before_base:
            return
        columns = self.columns
        state = columns.state[slot]
        if state == _VISIBLE:
            queue.visible -= 1
            if not queue.fifo:
                group = queue.ready.remove(slot)
                if group:
                    self.loose_groups[slot] = group
        elif state == _IN_FLIGHT:
            queue.in_flight -= 1
            self.holders.pop(slot, None)
            group = self.loose_groups.get(slot, 0) if self.loose_groups else 0
            lasted = time - columns.sent[slot] - delta_ms(columns.leased[slot])
            queue.ready.lease_ended(group, lasted if lasted > 0 else 0)
            self.attempts.end_of(slot)
        elif state == _DELAYED:
            queue.delayed -= 1
            self.timers.doomed_due.pop(slot, None)
        elif state == _OWED:
            queue.owed -= 1
        elif state == _DEAD:
            queue.dead -= 1

    def insert(
        self,
        queue: QueueState,
        slot: int,
        sequence: int,
        position: int,
        w6: int,
        priority: int,
        sent_ms: int,
        expires_s: int,
    ) -> None:
        """Create a message: its columns, its place in the queue's arrival order, its expiry. The caller then sets
        its state with `enter`.
        """
        columns = self.columns
        columns.take(slot)
        columns.sequence[slot] = sequence
        columns.position[slot] = columns.last[slot] = position
        columns.extent[slot] = w6
        columns.sent[slot] = sent_ms
        columns.expires[slot] = expires_s
        columns.queue[slot] = queue.number
        columns.priority[slot] = priority
        columns.epoch[slot] = columns.count[slot] = columns.first_received[slot] = columns.doomed[slot] = 0
        if sequence >= self.journal.next_sequence:
            self.journal.next_sequence = sequence + 1
        if self.journal.before_base:
            return
        self.append_to_queue(queue, slot)

    def append_to_queue(self, queue: QueueState, slot: int) -> None:
        columns = self.columns
        tail = queue.tail
        columns.queue_previous[slot] = tail
        columns.queue_next[slot] = NIL
        if tail == NIL:
            queue.head = slot
        else:
            columns.queue_next[tail] = slot
        queue.tail = slot
        queue.bytes += columns.extent[slot] >> 32
        expires_s = columns.expires[slot]
        if expires_s < columns.expiry_timer[slot]:
            self.timers.arm_expiry(slot, expires_s)

    def remove(self, queue: QueueState, slot: int, time: int) -> None:
        """Remove a message from every index and free its slot."""
        columns = self.columns
        self.leave(queue, slot, time)
        self.drop_notes(slot)
        if not self.journal.before_base:
            if queue.fifo and columns.line[slot] != NIL:
                line = self.lines.unlink(slot)
                lock_or_unlock(queue.ready, line)
            self.unlink(queue, columns.queue_previous[slot], columns.queue_next[slot])
            queue.bytes -= columns.extent[slot] >> 32
        columns.release(slot)

    def unlink(self, queue: QueueState, before: int, after: int) -> None:
        """Join the messages before and after removed messages in a queue's arrival order."""
        if before == NIL:
            queue.head = after
        else:
            self.columns.queue_next[before] = after
        if after == NIL:
            queue.tail = before
        else:
            self.columns.queue_previous[after] = before

    def drop_notes(self, slot: int) -> None:
        for notes in self.notes:
            if notes:
                notes.pop(slot, None)
        if self.dedup.living:
            self.dedup.end_life(slot)

    def join_group(self, queue: QueueState, slot: int, group: int) -> None:
        """Store a new message's group: a FIFO message joins its line at once, any other message when it becomes
        VISIBLE.
        """
        if queue.fifo and not self.journal.before_base:
            self.lines.append(self.lines.find_or_open(queue.number, group, 0), slot)
        elif group:
            self.loose_groups[slot] = group

    def count_groups(self, queue: QueueState, groups: array[int], position: int) -> None:
        """Count new messages of these groups, whose records begin at a position."""
        busy = self.busy_groups.get(queue.number)
        if busy is None:
            busy = self.busy_groups[queue.number] = BusyGroups()
        busy.add(groups, position)

    def end_delays(self, now: int, limit: int = _UNLIMITED) -> None:
        """End at most `limit` delays that are due. This writes no record, because the visible-at time in the log
        implies it.

        Replay ends all due delays, so that a message is VISIBLE there by the time a record depends on it.
        """
        columns = self.columns
        due = self.timers.delays.advance(now, columns.until, limit)
        if not due:
            return
        ready = [
            (at, columns.sequence[slot], slot)
            for at, slot in due
            if columns.state[slot] == _DELAYED and columns.until[slot] == at
        ]
        ready.sort()
        for at, _, slot in ready:
            if columns.state[slot] != _DELAYED:
                continue  # the wheel had two entries for this message
            if columns.doomed[slot]:
                self.timers.doomed_due[slot] = None
                continue
            queue = self.queues[columns.queue[slot]]
            queue.delayed -= 1
            self.enter(queue, slot, _VISIBLE, at)

    def on_purged(self, queue: QueueState, survivor: int, time: int, final: bool, forgotten_below: int = 0) -> None:
        """Remove the messages below sequence `survivor`. `final` ends the purge. The shard then forgets the
        deduplication ids of messages below `forgotten_below`, or all ids if that is 0.
        """
        columns = self.columns
        if self.journal.before_base:
            for slot in range(columns.used):
                mine = columns.queue[slot] == queue.number and columns.sequence[slot] < survivor
                if mine and columns.state[slot] not in (_FREE, _OWED):
                    self.remove(queue, slot, time)
            return
        slot = queue.head
        while slot != NIL and columns.sequence[slot] < survivor:
            following = columns.queue_next[slot]
            if columns.state[slot] != _OWED:
                self.remove(queue, slot, time)
                queue.deleted += 1
            slot = following
        if final:
            queue.purge_generation += 1
            if forgotten_below:
                queue.forgotten_below = max(queue.forgotten_below, forgotten_below)
            else:
                queue.dedup_generation = queue.purge_generation
            if queue.closed and not queue.messages:
                self._forget_queue(queue.number)

    def on_epoch(self, epoch: int, base_ms: int, grace_ms: int) -> None:
        self.journal.epoch = epoch
        if base_ms > self.journal.last_time_ms:
            self.journal.last_time_ms = base_ms
        if not grace_ms:
            return
        columns = self.columns
        states = columns.state[: columns.used].tobytes()
        slot = states.find(_IN_FLIGHT)
        while slot >= 0:
            columns.until[slot] += grace_ms
            slot = states.find(_IN_FLIGHT, slot + 1)

    # --- what is known about a message ---------------------------------------------------------------

    def expect(self, slot: int, sequence: int, record: Type) -> QueueState | None:
        """The queue of the message that a record names, after checking that the message's state allows the record."""
        columns = self.columns
        if slot < columns.used and columns.sequence[slot] == sequence and columns.state[slot] != _FREE:
            if not self.journal.before_base and not allowed(columns.state[slot], record):
                state = State(columns.state[slot]).name
                raise LogCorrupt(f"record {record.name} cannot happen to message {sequence}, which is {state}")
            return self.queues[columns.queue[slot]]
        if self.journal.before_base:
            return None
        raise LogCorrupt(f"record {record.name} names message {sequence}, which is not there")

    def group_of(self, slot: int) -> int:
        """The group of a message, wherever it is stored at the moment."""
        line = self.columns.line[slot]
        if line == NIL:
            return self.loose_groups.get(slot, 0)
        return self.lines.group(line, self.queues[self.columns.queue[slot]].fifo)

    def exhausted(self, queue: QueueState, slot: int) -> bool:
        """Whether the message has been received as often as it may be in this queue."""
        maximum = self.maxima.get(slot, 0) if self.maxima else 0
        maximum = maximum or queue.policy.max_receives
        if not maximum:
            return False
        free = self.uncharged.get(slot, 0) if self.uncharged else 0
        return self.columns.epoch[slot] - free >= maximum

    def plain(self, slots: Sequence[int]) -> bool:
        """Whether the end of these messages changes nothing beside their columns and notes: no group's fairness counts
        them, no deduplication key lives as long as they do, and no attempt has them.
        """
        for tied in (self.loose_groups, self.dedup.living, self.attempts.of_slot):
            if tied and not tied.keys().isdisjoint(slots):
                return False
        return True

    def live_slots(self) -> list[int]:
        state = self.columns.state
        return [slot for slot in range(self.columns.used) if state[slot]]

    # --- records that hold a message's state -----------------------------------------------------------

    def write(
        self,
        kind: Type,
        queue: int,
        slot: int,
        now: int,
        *,
        until: int = 0,
        flags: int = 0,
        reason: int = 0,
        w6: int = 0,
        w4: int | None = None,
        auxiliary: int = 0,
    ) -> int:
        """Write a record about a message, with the words that most such records share; returns its position."""
        columns = self.columns
        return self.frame.add(
            kind | flags << 8 | columns.priority[slot] << 16 | reason << 24 | queue << 32,
            columns.sequence[slot],
            now,
            until,
            columns.epoch[slot] | columns.count[slot] << 32 if w4 is None else w4,
            columns.last[slot],
            w6,
            slot | auxiliary << 32,
        )

    def carried_prefix(self, slot: int) -> bytes:
        """The prefix of a record that can be a message's first: its state apart from the record's words and the
        payload.
        """
        columns = self.columns
        return CARRIED_PREFIX.pack(
            columns.state[slot],
            columns.doomed[slot],
            self.maxima.get(slot, 0),
            columns.first_received[slot],
            columns.leased[slot],
            self.group_of(slot),
            columns.sent[slot],
        )

    def on_carried(self, slot: int, position: int, extent: int) -> None:
        columns = self.columns
        if not self.journal.before_base:
            queue = self.queues[columns.queue[slot]]
            queue.bytes += (extent >> 32) - (columns.extent[slot] >> 32)
        columns.position[slot] = columns.last[slot] = position
        columns.extent[slot] = extent
        self.overlays.pop(slot, None)

    def on_edited(self, queue: QueueState, slot: int, key: int, position: int, extent: int, payload: bytes) -> None:
        """Apply a change of a message. The Edited record holds the whole new payload with its lineage, and the key of
        the job that changed it; 0: an operator did.
        """
        columns = self.columns
        if not self.journal.before_base:
            queue.bytes += (extent >> 32) - (columns.extent[slot] >> 32)
        columns.position[slot] = columns.last[slot] = position
        columns.extent[slot] = extent
        self.overlays.pop(slot, None)
        self.stored.replace(slot, payload)
        if key:
            self.edited[slot] = key
        else:
            self.edited.pop(slot, None)
