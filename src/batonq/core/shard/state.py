"""A shard's state, and what each record does to it.

The live path, followers and recovery all use the `_on_…` methods below. These methods never choose: every choice is in
the record. Soft state (fairness, job pacing, `woken`, `alarms`, stale and duplicate counters) is not replayed.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from batonq.core.commands import Alarm
from batonq.core.limits import DEFAULT_LIMITS, ShardLimits
from batonq.core.open_frame import OpenFrame
from batonq.core.policy import QueuePolicy
from batonq.core.records import FORMAT_VERSION, PLAIN_VERSION, ArrivedFlag, Reason, State, Type
from batonq.core.shard.channel_end import Incoming
from batonq.core.shard.columns import COUNT_MAX, DELTA_MAX, NIL, Columns
from batonq.core.shard.dedup import FOREVER_S, DedupTable
from batonq.core.shard.job_book import JobBook
from batonq.core.shard.lifecycle import allowed
from batonq.core.shard.producers import Producers
from batonq.core.shard.queue_state import QueueState
from batonq.core.shard.ready_order import Lines
from batonq.core.shard.timer_wheel import Wheel
from batonq.errors import LogCorrupt

FOREVER_MS = (1 << 64) - 1
NO_TIMER = FOREVER_MS
NO_EXPIRY_TIMER = 0xFFFFFFFF
EXPIRY_RETRY_S = 60  # interval at which an expired message that was not yet dead-lettered is checked again
CARRIED_PREFIX = struct.Struct("<BBHIIQQ")  # state, doomed, own maximum, first received, leased, group, sent
EDITED_PREFIX = struct.Struct("<Q")  # key of the job; CARRIED_PREFIX follows
ARRIVED_PREFIX = struct.Struct("<QQ")  # group, origin
ARRIVED_NOTED = struct.Struct("<QQQH")  # with ArrivedFlag.NOTED: group, origin, key of the job, own maximum of receives
PRODUCER_IDLE_MS = 7 * 86_400_000
_UNLIMITED = 1 << 60
_FREE, _DELAYED, _VISIBLE, _IN_FLIGHT, _OWED, _DEAD = map(
    int, (State.FREE, State.DELAYED, State.VISIBLE, State.IN_FLIGHT, State.OWED, State.DEAD)
)


class Failure(NamedTuple):
    first_ms: int
    last_ms: int
    error_class: str
    reason: str


class Attempt(NamedTuple):
    """The leases that a ReceiveRequestAttemptId got. A retry within the window gets the same leases."""

    expires_ms: int
    leases: tuple[tuple[int, int, int], ...]  # slot, sequence, epoch


class Channel:
    """The numbered path from this shard to another: the entries that are owed and not settled yet."""

    __slots__ = ("last", "settled", "unsettled")

    def __init__(self) -> None:
        self.last = 0  # the newest entry's number
        self.settled = 0  # all entries up to this one are settled
        self.unsettled: dict[int, int] = {}  # number → slot, in order


class ShardState:
    def __init__(self, number: int, limits: ShardLimits = DEFAULT_LIMITS) -> None:
        self.number = number
        self.limits = limits
        self.epoch = 0
        self.format = PLAIN_VERSION  # format version of the frames that this shard writes, see records.py
        self.next_sequence = 1
        self.last_time_ms = 0
        self.frame = OpenFrame()
        self.columns = Columns()
        self.lines = Lines(self.columns)
        self.queues: dict[int, QueueState] = {}
        self.leases = Wheel(7, 16)
        self.delays = Wheel(7, 16)
        self.expiries = Wheel(4, 12)
        self.dedup = DedupTable()
        self.requests = DedupTable()
        self.producers = Producers()
        self.attempts: dict[tuple[int, str], Attempt] = {}
        self.attempt_of: dict[int, tuple[int, str]] = {}  # slot → key of its attempt
        self.loose_groups: dict[int, int] = {}  # slot → group, for messages that are in no line
        self.holders: dict[int, str] = {}  # slot in flight → its holder
        self.failures: dict[int, Failure] = {}
        self.maxima: dict[int, int] = {}  # slot → the message's own maximum of receives
        self.kept_maxima: dict[int, int] = {}  # slot of a dead letter → its own maximum, applied again after redrive
        self.redriven: dict[int, int] = {}  # slot → key of the job that moved it here
        self.edited: dict[int, int] = {}  # slot → key of the job that has changed the message and not moved it yet
        self.uncharged: dict[int, int] = {}  # slot → leases not counted as receives: no consumer got the message
        self.overlays: dict[int, tuple[int, ...]] = {}  # slot → positions of the records that hold its lineage overlays
        self.origins: dict[int, int] = {}  # slot of a dead letter → source queue | source shard << 32
        self.living_keys: dict[int, tuple[int, int]] = {}  # slot → dedup key that lives as long as it, window end (s)
        self.refusals: dict[int, int] = {}  # slot → number of refusals by its destination
        self.passed: dict[int, int] = {}  # slot → shard (16 bits) | queue << 16 that its group has moved from
        self.owed_to: dict[int, tuple[int, int, int, int]] = {}  # slot → shard, number, queue, reason
        self.channels: dict[int, Channel] = {}
        self.incoming: dict[int, Incoming] = {}  # source shard → the receiving end of its channel
        self.jobs = JobBook()
        self.redriving: dict[int, int] = {}  # queue → number of its messages that a job has in transfer
        self.doomed_due: dict[int, None] = {}  # refused transfers whose backoff has ended, in order
        # soft
        self.woken: set[int] = set()
        self.filled: set[int] = set()  # every queue with VISIBLE messages, and possibly empty ones
        self.alarms: list[Alarm] = []
        self.job_pace: dict[str, tuple[int, float]] = {}  # job → time of its last step, messages it may move
        self.job_place: dict[str, tuple[int, int]] = {}  # job → slot and sequence to continue from
        self.job_turn = 0
        self.to_examine: dict[str, int] = {}  # job → number of messages that node/ may choose for it
        self.producer_idle_ms = PRODUCER_IDLE_MS  # a setting
        # recovery: records of unknown messages are skipped until the Base that belongs to the first retained frame
        self.before_base = 0
        self.base_parts: list[bytes] = []  # the parts read so far of a Base

    # --- adding a message to its state's indexes and removing it -------------------------------

    def _enter(self, queue: QueueState, slot: int, state: int, until: int) -> None:
        columns = self.columns
        columns.state[slot] = state
        columns.until[slot] = until
        if self.before_base:
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
            self.delays.push(until, slot)
        elif state == _IN_FLIGHT:
            queue.in_flight += 1
            if until < columns.timer[slot]:
                columns.timer[slot] = until
                self.leases.push(until, slot)
        elif state == _OWED:
            queue.owed += 1
        elif state == _DEAD:
            queue.dead += 1
            self._end_life(slot)

    def _refresh_group(self, queue: QueueState, slot: int, state: int) -> None:
        """Update the group of a FIFO message that has a new state: the group may unlock or lock. A DEAD message
        leaves its group's line.
        """
        line = self.columns.line[slot]
        if state == _DEAD and line != NIL:
            self.loose_groups[slot] = self.lines.group(line, True)
            self.lines.unlink(slot)
        if line != NIL:
            queue.ready.refresh(line)

    def _leave(self, queue: QueueState, slot: int, time: int) -> None:
        if self.before_base:
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
            lasted = time - columns.sent[slot] - columns.leased[slot]
            queue.ready.lease_ended(group, lasted if lasted > 0 else 0)
            if slot in self.attempt_of:
                self._end_attempt(self.attempt_of[slot])
        elif state == _DELAYED:
            queue.delayed -= 1
            self.doomed_due.pop(slot, None)
        elif state == _OWED:
            queue.owed -= 1
        elif state == _DEAD:
            queue.dead -= 1

    def _end_attempt(self, key: tuple[int, str]) -> None:
        attempt = self.attempts.pop(key, None)
        if attempt is not None:
            for slot, _, _ in attempt.leases:
                self.attempt_of.pop(slot, None)

    def _insert(
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
        its state with `_enter`.
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
        if sequence >= self.next_sequence:
            self.next_sequence = sequence + 1
        if self.before_base:
            return
        self._append_to_queue(queue, slot)

    def _append_to_queue(self, queue: QueueState, slot: int) -> None:
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
            columns.expiry_timer[slot] = expires_s
            self.expiries.push(expires_s, slot)

    def _remove(self, queue: QueueState, slot: int, time: int) -> None:
        """Remove a message from every index and free its slot."""
        columns = self.columns
        self._leave(queue, slot, time)
        self._drop_notes(slot)
        if not self.before_base:
            if queue.fifo and columns.line[slot] != NIL:
                line = self.lines.unlink(slot)
                queue.ready.refresh(line)
            self._unlink(queue, columns.queue_previous[slot], columns.queue_next[slot])
            queue.bytes -= columns.extent[slot] >> 32
        columns.release(slot)

    def _unlink(self, queue: QueueState, before: int, after: int) -> None:
        """Join the messages before and after removed messages in a queue's arrival order."""
        if before == NIL:
            queue.head = after
        else:
            self.columns.queue_next[before] = after
        if after == NIL:
            queue.tail = before
        else:
            self.columns.queue_previous[after] = before

    def _notes(self) -> tuple[dict[int, Any], ...]:
        """The tables that hold what is known about a message beside its columns. Their entries are simply dropped
        when the message ends.
        """
        return (
            self.loose_groups,
            self.failures,
            self.maxima,
            self.kept_maxima,
            self.redriven,
            self.edited,
            self.uncharged,
            self.overlays,
            self.origins,
            self.refusals,
            self.passed,
            self.owed_to,
        )

    def _drop_notes(self, slot: int) -> None:
        for notes in self._notes():
            if notes:
                notes.pop(slot, None)
        if self.living_keys:
            self._end_life(slot)

    def _end_life(self, slot: int) -> None:
        """Let a deduplication key that lives as long as its message expire with its window, because the message is
        gone or dead.
        """
        if slot in self.living_keys:
            key, window_end_s = self.living_keys.pop(slot)
            self.dedup.end_life(key, self.columns.sequence[slot], window_end_s, self.last_time_ms // 1000)

    def _message(self, slot: int, sequence: int, record: Type) -> QueueState | None:
        """The queue of the message that a record names, after checking that the message's state allows the record."""
        columns = self.columns
        if slot < columns.used and columns.sequence[slot] == sequence and columns.state[slot] != _FREE:
            if not self.before_base and not allowed(columns.state[slot], record):
                state = State(columns.state[slot]).name
                raise LogCorrupt(f"record {record.name} cannot happen to message {sequence}, which is {state}")
            return self.queues[columns.queue[slot]]
        if self.before_base:
            return None
        raise LogCorrupt(f"record {record.name} names message {sequence}, which is not there")

    # --- records of a message's life -----------------------------------------------------------

    def _on_sent(
        self,
        queue: QueueState,
        slot: int,
        sequence: int,
        time: int,
        visible_ms: int,
        group: int,
        expires_s: int,
        priority: int,
        maximum: int,
        position: int,
        w6: int,
    ) -> None:
        self._insert(queue, slot, sequence, position, w6, priority, time, expires_s)
        if maximum:
            self.maxima[slot] = maximum
        self._place(queue, slot, group)
        if visible_ms <= time:
            self._enter(queue, slot, _VISIBLE, time)
        else:
            self._enter(queue, slot, _DELAYED, visible_ms)
        queue.sent += 1

    def _place(self, queue: QueueState, slot: int, group: int) -> None:
        """Store a new message's group: a FIFO message joins its line at once, any other message when it becomes
        VISIBLE.
        """
        if queue.fifo and not self.before_base:
            self.lines.append(self.lines.find_or_open(queue.number, group, 0), slot)
        elif group:
            self.loose_groups[slot] = group

    def _on_dedup(
        self, queue: QueueState, slot: int, sequence: int, time: int, key: int, mark: int, lives: bool
    ) -> None:
        """Store a message's deduplication key. `mark` is the fingerprint of the content."""
        window_end_s = -(-(time + queue.policy.dedup_window_ms) // 1000)
        now_s = time // 1000
        if lives:
            self.living_keys[slot] = (key, window_end_s)
            self.dedup.put(key, sequence, FOREVER_S, mark, now_s)
        else:
            self.dedup.put(key, sequence, window_end_s, mark, now_s)

    def _on_leased(
        self, queue: QueueState, slot: int, time: int, deadline: int, epoch: int, count: int, position: int, holder: str
    ) -> None:
        columns = self.columns
        self._leave(queue, slot, time)
        columns.epoch[slot] = epoch
        columns.count[slot] = min(count, COUNT_MAX)
        columns.last[slot] = position
        delta = time - columns.sent[slot]
        delta = 0 if delta < 0 else delta if delta < DELTA_MAX else DELTA_MAX - 1
        columns.leased[slot] = delta
        if not columns.first_received[slot]:
            columns.first_received[slot] = delta + 1
        self._enter(queue, slot, _IN_FLIGHT, deadline)
        if not self.before_base:
            self.holders[slot] = holder
            queue.ready.lease_began(self.loose_groups.get(slot, 0) if self.loose_groups else 0)
        queue.received += 1

    def _on_extended(self, slot: int, deadline: int, position: int, by_attempt: bool) -> None:
        columns = self.columns
        columns.until[slot] = deadline
        columns.last[slot] = position
        if self.before_base:
            return
        if deadline < columns.timer[slot]:
            columns.timer[slot] = deadline
            self.leases.push(deadline, slot)
        if not by_attempt and slot in self.attempt_of:
            self._end_attempt(self.attempt_of[slot])

    def _on_returned(
        self,
        queue: QueueState,
        slot: int,
        time: int,
        visible_ms: int,
        reason: int,
        position: int,
        error_class: str,
        text: str,
        charged: bool = True,
    ) -> None:
        self._leave(queue, slot, time)
        self.columns.last[slot] = position
        if not charged:
            self._uncharge(slot)
        if visible_ms == FOREVER_MS:
            self._enter(queue, slot, _DEAD, FOREVER_MS)
            self._died_again(self.redriven.pop(slot, 0))
        elif visible_ms <= time:
            self._enter(queue, slot, _VISIBLE, time)
        else:
            self._enter(queue, slot, _DELAYED, visible_ms)
        queue.returned += 1
        if reason == Reason.EXPIRED:
            queue.expired_leases += 1
        if reason == Reason.NACK or reason == Reason.EXPIRED:
            old = self.failures.get(slot)
            first = old.first_ms if old else time
            if old and not error_class and not text:
                error_class, text = old.error_class, old.reason
            self.failures[slot] = Failure(first, time, error_class, text)

    def _uncharge(self, slot: int) -> None:
        """Take back a receive, because no consumer got the message."""
        columns = self.columns
        self.uncharged[slot] = self.uncharged.get(slot, 0) + 1
        if columns.count[slot]:
            columns.count[slot] -= 1
        if not columns.count[slot]:
            columns.first_received[slot] = 0

    def _on_deleted(self, queue: QueueState, slot: int, time: int, reason: int) -> None:
        self._remove(queue, slot, time)
        if reason == Reason.RETENTION:
            queue.expired_messages += 1
        else:
            queue.deleted += 1
        if reason == Reason.LATE_ACK:
            queue.late_deletes += 1

    def _on_attempt(self, queue: int, attempt: str, expires_ms: int, leases: tuple[tuple[int, int, int], ...]) -> None:
        key = (queue, attempt)
        self._end_attempt(key)
        self.attempts[key] = Attempt(expires_ms, leases)
        for slot, _, _ in leases:
            self.attempt_of[slot] = key
        while self.attempts:
            oldest = next(iter(self.attempts))
            if self.attempts[oldest].expires_ms > self.last_time_ms:
                break
            self._end_attempt(oldest)

    def _died_again(self, key: int) -> None:
        job = self.jobs.of_key(key)
        if job is not None:
            job.died_again += 1

    # --- control records -------------------------------------------------------------------------

    def _on_policy(self, policy: QueuePolicy) -> None:
        self._note_format(policy.spread or policy.dead_letter_spread)
        queue = self.queues.get(policy.queue)
        if queue is None:
            self.queues[policy.queue] = QueueState(policy, self.lines)
        else:
            queue.policy = policy

    def _note_format(self, spread: str) -> None:
        """Raise the frame format if the state now concerns a queue on several shards, that is if `spread` is not
        empty.
        """
        if spread:
            self.format = FORMAT_VERSION

    def _on_purged(self, queue: QueueState, survivor: int, time: int, final: bool, forgotten_below: int = 0) -> None:
        """Remove the messages below sequence `survivor`. `final` ends the purge. The shard then forgets the
        deduplication ids of messages below `forgotten_below`, or all ids if that is 0.
        """
        columns = self.columns
        if self.before_base:
            for slot in range(columns.used):
                mine = columns.queue[slot] == queue.number and columns.sequence[slot] < survivor
                if mine and columns.state[slot] not in (_FREE, _OWED):
                    self._remove(queue, slot, time)
            return
        slot = queue.head
        while slot != NIL and columns.sequence[slot] < survivor:
            following = columns.queue_next[slot]
            if columns.state[slot] != _OWED:
                self._remove(queue, slot, time)
                queue.deleted += 1
            slot = following
        if final:
            queue.purge_generation += 1
            if forgotten_below:
                queue.forgotten_below = forgotten_below
            else:
                queue.dedup_generation = queue.purge_generation
            if queue.closed and not queue.messages:
                self._forget_queue(queue.number)

    def _forget_queue(self, number: int) -> None:
        """Remove a deleted queue that has no message left. Nothing in the state names it afterwards (validate.py
        checks that).
        """
        del self.queues[number]
        self.woken.discard(number)
        self.filled.discard(number)

    def _on_epoch(self, epoch: int, base_ms: int, grace_ms: int) -> None:
        self.epoch = epoch
        if base_ms > self.last_time_ms:
            self.last_time_ms = base_ms
        if not grace_ms:
            return
        columns = self.columns
        states = columns.state[: columns.used].tobytes()
        slot = states.find(_IN_FLIGHT)
        while slot >= 0:
            columns.until[slot] += grace_ms
            slot = states.find(_IN_FLIGHT, slot + 1)

    def advance_delays(self, now: int, limit: int = _UNLIMITED) -> None:
        """End at most `limit` delays that are due. This writes no record, because the visible-at time in the log
        implies it.

        Replay ends all due delays, so that a message is VISIBLE there by the time a record depends on it.
        """
        columns = self.columns
        due = self.delays.advance(now, columns.until, limit)
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
                self.doomed_due[slot] = None
                continue
            queue = self.queues[columns.queue[slot]]
            queue.delayed -= 1
            self._enter(queue, slot, _VISIBLE, at)


def arrived_prefix(flags: int) -> int:
    """The length of the prefix before the payload of an Arrived record."""
    return ARRIVED_NOTED.size if flags & ArrivedFlag.NOTED else ARRIVED_PREFIX.size


def decode_notes(variable: bytes) -> tuple[str, str]:
    """Two texts in one variable part: holder and attempt of a lease, or class and text of a failure."""
    length = variable[0] | variable[1] << 8
    return variable[2 : 2 + length].decode(), variable[2 + length :].decode()


def encode_notes(first: str, second: str) -> bytes:
    raw = first.encode()
    return len(raw).to_bytes(2, "little") + raw + second.encode()
