"""Publishing: a Send to a topic. Each message is written once, and one copy per matching subscription points at it.

A copy for a queue of this shard becomes a message of that queue at once. A copy for a queue of another shard, or one
that its queue refuses, waits in the topic (moves/fanout.py). All records of a request are in one frame, so either all
copies of its messages are owed or none is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from operator import add, or_

from batonq.core.commands import Accepted, Send, Sent
from batonq.core.ids import key_hash, message_id
from batonq.core.limits import COMMAND_ROWS_MAX
from batonq.core.payload import (
    Attribute,
    Envelope,
    content_marks,
    decode_attributes,
    envelopes_of,
    is_unsafe,
    payload_parts,
    stored_keys,
)
from batonq.core.policy import MISSING_QUEUE
from batonq.core.records import FRAME_ROWS_MAX, Reason, SentFlag, Type
from batonq.core.shard.commands.new_messages import (
    NOT_STORABLE,
    SHARD_FULL,
    UNSAFE,
    NewMessages,
    Results,
    column_of,
    group_hash,
    is_storable,
    outcome,
)
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.fanout import HOPELESS, FanOut, line_key
from batonq.core.shard.moves.transfers import REFUSED_BACKOFF_MS
from batonq.core.shard.state.columns import NIL, counted, halves_of, joined
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.topics import TopicState
from batonq.core.spread import takes
from batonq.core.topics.message_values import BodyValues, Paths, body_values
from batonq.core.topics.subscription import Subscription
from batonq.errors import BatonError, InvalidInput, OverLimit, TopicDoesNotExist
from batonq.priorities import NORMAL_PRIORITY

COPY_ROWS = 2  # records per copy at most: Sent, Owed
PUBLISH_ROWS_MAX = 20_480  # records of the messages and copies of one request: a message for 10,000 other queues fits
ROWS_LEFT = 2_048  # of the frame for what follows the copies: Requested, Produced
ROLL_ROWS = FRAME_ROWS_MAX // 2  # a request to a topic begins in a frame with at most so many records
_NO_TIMES = (
    "A message that is published to a topic has no delay and no time to live of its own. Set those of the subscribed "
    "queues."
)
_TOO_MANY = "The request has too many copies for one frame of the log. Publish this message in a request of its own."
_SENT, _PUBLISHED = int(Type.SENT), int(Type.PUBLISHED)
_FANNED, _FIFO, _WAITING = int(SentFlag.FANNED), int(SentFlag.FIFO), int(SentFlag.WAITING)
_DEDUPLICATED, _STORED = int(SentFlag.DEDUPLICATED), int(SentFlag.STORED)

assert PUBLISH_ROWS_MAX + COMMAND_ROWS_MAX // 2 < FRAME_ROWS_MAX - ROLL_ROWS


class _Batch:
    """Accepted messages whose payloads and Published records are in the frame, as columns. A column that no message
    uses is empty.
    """

    __slots__ = ("groups", "heads", "maxima", "plain", "priorities", "row", "sequence", "stored", "whole")

    def __init__(
        self,
        row: int,
        sequence: int,
        heads: array[int],
        priorities: array[int],
        maxima: Sequence[int],
        groups: Sequence[int],
        stored: Sequence[str],
        plain: array[int],
        whole: array[int],
    ) -> None:
        self.row = row  # index of the first Published record in the frame; the others follow
        self.sequence = sequence  # of the first message
        self.heads = heads  # flag, priority and maximum of receives, as in w0
        self.priorities = priorities
        self.maxima = maxima
        self.groups = groups
        self.stored = stored  # keys of bodies that are in the payload store
        self.plain = plain  # extents of the payloads
        self.whole = whole  # extents of the envelopes and payloads

    def pick(self, places: Sequence[int]) -> _Batch:
        """The columns that copies need, of only these messages."""
        return _Batch(
            self.row,
            self.sequence,
            array("Q", [self.heads[at] for at in places]),
            array("B", [self.priorities[at] for at in places]),
            [self.maxima[at] for at in places] if self.maxima else (),
            [self.groups[at] for at in places] if self.groups else (),
            [self.stored[at] for at in places] if self.stored else (),
            array("Q", [self.plain[at] for at in places]),
            array("Q", [self.whole[at] for at in places]),
        )


class Publishing:
    def __init__(
        self,
        messages: Messages,
        expiry: Expiry,
        runs: MessageRuns,
        records: MessageRecords,
        arrivals: Arrivals,
        fanout: FanOut,
        new_messages: NewMessages,
    ) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.dedup = messages.dedup
        self.topics = messages.topics
        self.expiry = expiry
        self.runs = runs
        self.records = records
        self.arrivals = arrivals
        self.fanout = fanout
        self.new_messages = new_messages
        new_messages.publishing = self

    # --- subscriptions -----------------------------------------------------------------------------------

    def set_subscription(
        self, topic: int, number: int, subscription: Subscription | None, version: int, now: int
    ) -> None:
        """Add, change or (None) remove a subscription of a topic."""
        now = self.expiry.begin(now)
        self.messages.queue_state(topic)
        if topic not in self.topics.states:
            raise TopicDoesNotExist
        w6 = self.frame.put(subscription.encode()) if subscription is not None else 0
        head = Type.SUBSCRIPTION_SET | topic << 32
        self.frame.add(head, version, now, int(subscription is None), number, 0, w6, 0)
        self.topics.on_subscription(topic, number, subscription)

    # --- publishing --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a request to a topic. Its records must not be in several frames, so they get enough of one."""
        if self.frame.row_count > ROLL_ROWS:
            self.frame.roll()

    def publish(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Decide about each message, then write those that are accepted and their copies."""
        topic = self.topics.states[queue.number]
        count = len(command.bodies)
        first = self.journal.next_sequence
        keys = self.dedup.keys_of(queue, command)
        marks = content_marks(command) if keys else ()
        storable = is_storable(command)
        timed = has_times(command)
        results: Results = []
        places: list[int] = []
        matches: list[Sequence[int]] = []
        room = self._room()
        rows_left = self._rows_left()
        for at in range(count):
            problem: BatonError | None = None
            if not storable and not is_storable(command.pick([at])):
                problem = InvalidInput(NOT_STORABLE)
            elif timed and has_times(command.pick([at])):
                problem = InvalidInput(_NO_TIMES)
            key = keys[at] if keys else 0
            if problem is None and key:
                known = self.dedup.known(queue, key, now)
                if known is not None:
                    results.append(self.new_messages.deduplicated(queue, known, command, at, marks[at]))
                    continue
                problem = self.new_messages.no_key_more(key, now)
            if problem is None and command.contents and is_unsafe(command.contents[at]):
                problem = InvalidInput(UNSAFE)
            matching = self._matching(topic, command, at) if problem is None else ()
            needed = 1 + COPY_ROWS * len(matching)
            if problem is None and len(matching) > room:
                problem = OverLimit(SHARD_FULL)
            if problem is None and needed > rows_left:
                problem = OverLimit(_TOO_MANY)
            if problem is not None:
                results.append(problem)
                continue
            sequence = first + len(places)
            if key:
                self.dedup.put(queue, NIL, sequence, now, key, marks[at], False)
            room -= len(matching)
            rows_left -= needed
            places.append(at)
            matches.append(matching)
            results.append(Accepted(sequence, message_id(self.number, sequence), False))
        if places:
            kept = [keys[at] for at in places] if keys else []
            batch = self._write(queue, topic, [command.pick(places)], kept, matches, now)
            self._copy(queue, topic, batch, matches, now)
        return Sent(self.number, first, count) if len(places) == count else outcome(self.number, results)

    def publish_run(self, queue: QueueState, commands: Sequence[Send], now: int) -> int:
        """Publish the messages of several requests, none of which has a deduplication id or a delay. Returns the first
        sequence, or 0 if the frame or the shard has no room for all of them.
        """
        topic = self.topics.states[queue.number]
        first = self.journal.next_sequence
        matches = [self._matching(topic, command, at) for command in commands for at in range(len(command.bodies))]
        copies = sum(map(len, matches))
        self.begin()
        rows_left = self._rows_left()
        if copies > self._room() or len(matches) + COPY_ROWS * copies > rows_left:
            return 0
        batch = self._write(queue, topic, commands, (), matches, now)
        self._copy(queue, topic, batch, matches, now)
        return first

    def _rows_left(self) -> int:
        """How many more records a request may write for its messages and copies."""
        return min(PUBLISH_ROWS_MAX, FRAME_ROWS_MAX - ROWS_LEFT - self.frame.row_count)

    def _room(self) -> int:
        """How many more messages the shard may hold. They are counted only if that may matter."""
        slots_max = self.journal.limits.slots_max
        free = slots_max - self.columns.used
        return free if free > FRAME_ROWS_MAX else slots_max - self.messages.living()

    @staticmethod
    def _matching(topic: TopicState, command: Send, at: int) -> Sequence[int]:
        """The subscriptions that get a message."""
        if not topic.filtered:
            return topic.index.matching({}, _no_body)
        content = _Content(command, at)
        return topic.index.matching(content.attributes, content.body_values)

    def _write(
        self,
        queue: QueueState,
        topic: TopicState,
        commands: Sequence[Send],
        keys: Sequence[int],
        matches: Sequence[Sequence[int]],
        now: int,
    ) -> _Batch:
        """Write the payloads and Published records of accepted messages."""
        frame, count = self.frame, len(matches)
        first = self.journal.next_sequence
        sequences = range(first, first + count)
        envelopes = self._envelopes(queue, topic, commands, sequences, now)
        lengths: list[int] = []
        for command in commands:
            parts, sizes = payload_parts(command, now)
            if envelopes:
                parts = _interleaved(envelopes[len(lengths) : len(lengths) + len(sizes)], parts)
            frame.parts += parts
            lengths += sizes
        before = [*map(len, envelopes)] if envelopes else [0] * count
        sums = [*map(add, before, lengths)]
        offsets = array("I", accumulate(sums, initial=frame.variable_bytes))
        frame.variable_bytes = offsets.pop()
        whole = joined(offsets, array("I", sums))
        plain = joined(array("I", map(add, offsets, before)), array("I", lengths)) if envelopes else whole
        priorities = array("B", column_of(commands, "priorities", NORMAL_PRIORITY) or [NORMAL_PRIORITY] * count)
        maxima, stored = column_of(commands, "max_receives", 0), stored_keys(commands)
        groups = [*map(group_hash, column_of(commands, "groups", ""))]
        heads = array("Q", [priority << 16 for priority in priorities])
        if any(maxima) or any(stored):
            none = [0] * count
            heads = array(
                "Q",
                [
                    head | maximum << 24 | (_STORED << 8 if key else 0)
                    for head, maximum, key in zip(heads, maxima or none, stored or none, strict=True)
                ],
            )
        w0 = _PUBLISHED | (_FIFO << 8 if queue.fifo else 0) | queue.number << 32
        row = frame.row_count
        rows = array("Q", (0, 0, now, 0, 0, 0, 0, 0)) * count
        rows[0::8] = array("Q", [w0 | head for head in heads])
        rows[1::8] = counted("Q", sequences)
        rows[3::8] = array("Q", map(len, matches))
        rows[6::8] = whole
        rows[7::8] = array("Q", [length << 32 for length in before])
        if any(groups):
            rows[4::8] = array("Q", groups)
        if keys:
            known = [_DEDUPLICATED << 8 if key else 0 for key in keys]
            rows[0::8] = array("Q", map(or_, rows[0::8], known))
            rows[5::8] = array("Q", keys)
        frame.extend(rows)
        self.records.on_published(queue.number, first, count, sum(rows[3::8]), 0)
        return _Batch(
            row,
            first,
            heads,
            priorities,
            maxima if any(maxima) else (),
            groups if any(groups) else (),
            stored if any(stored) else (),
            plain,
            whole,
        )

    def _envelopes(
        self, queue: QueueState, topic: TopicState, commands: Sequence[Send], sequences: range, now: int
    ) -> list[bytes]:
        """The envelope of each message; none if all subscriptions have raw delivery."""
        if not topic.enveloped:
            return []
        subjects = column_of(commands, "subjects", "")
        told = Envelope(queue.number, self.number, 0, now, topic.arn, "")
        if not any(subjects):
            return envelopes_of(told, sequences)
        return [
            envelopes_of(told._replace(subject=subject), [sequence])[0]
            for subject, sequence in zip(subjects, sequences, strict=True)
        ]

    def _copy(
        self, queue: QueueState, topic: TopicState, batch: _Batch, matches: Sequence[Sequence[int]], now: int
    ) -> None:
        """Write the copies, subscription by subscription, so that the copies for one queue are a run."""
        if all(matching == matches[0] for matching in matches):
            for number in matches[0]:
                self._copy_to(queue, topic.subscriptions[number], batch, range(len(matches)), now)
            return
        chosen: dict[int, list[int]] = {}
        for at, matching in enumerate(matches):
            for number in matching:
                chosen.setdefault(number, []).append(at)
        for number in sorted(chosen):
            self._copy_to(queue, topic.subscriptions[number], batch, chosen[number], now)

    def _copy_to(
        self, queue: QueueState, subscription: Subscription, batch: _Batch, places: Sequence[int], now: int
    ) -> None:
        target = self.queues.get(subscription.queue)
        if target is not None and not queue.fifo and self._takes_all(subscription, target):
            if len(places) == 1:
                self._send_one(target, subscription, batch, places[0], now)
            elif len(places) == len(batch.heads):
                self._send_run(target, subscription, batch, now)
            else:
                self._send_run(target, subscription, batch.pick(places), now)
            return
        for at in places:
            self._copy_one(queue, subscription, batch, at, now)

    def _takes_all(self, subscription: Subscription, target: QueueState) -> bool:
        """Whether a queue of this shard accepts copies without a decision about each."""
        policy = target.policy
        if target.fifo or policy.messages_max or policy.bytes_max:
            return False
        if not (takes(subscription.spread, self.number) if subscription.spread else subscription.shard == self.number):
            return False
        return self.arrivals.acceptance(target, subscription.fifo, 0) == Reason.ACCEPTED

    def _copy_one(self, queue: QueueState, subscription: Subscription, batch: _Batch, at: int, now: int) -> None:
        group, line, sequence = batch.groups[at] if batch.groups else 0, 0, batch.sequence + at
        if queue.fifo:
            ordered = subscription.fifo
            line = line_key(subscription.number, group) if ordered else key_hash(sequence, subscription.number)
            if ordered and self.lines.find(queue.number, line, 0) != NIL:
                self._keep(queue, subscription, batch, at, line, now, now)
                return
        if subscription.queue == MISSING_QUEUE:
            self._refuse(queue, subscription, batch, at, line, Reason.REFUSED_NO_QUEUE, now)
            return
        shard = self.fanout.transfers.place(
            subscription.queue, subscription.shard, subscription.spread, subscription.fifo, group, sequence
        )
        if shard != self.number:
            slot = self._keep(queue, subscription, batch, at, line, now, now)
            self.fanout.transfers.owe(slot, shard, subscription.queue, Reason.FANOUT, now)
            return
        target = self.queues.get(subscription.queue)
        size = (batch.plain if subscription.raw else batch.whole)[at] >> 32
        verdict = self.arrivals.acceptance(target, subscription.fifo, size, group if subscription.fifo else None)
        if verdict == Reason.ACCEPTED and target is not None:
            self._send_one(target, subscription, batch, at, now)
        else:
            self._refuse(queue, subscription, batch, at, line, verdict, now)

    def _refuse(
        self,
        queue: QueueState,
        subscription: Subscription,
        batch: _Batch,
        at: int,
        line: int,
        verdict: Reason,
        now: int,
    ) -> None:
        """A queue of this shard does not accept a copy. The copy waits in the topic: for a retry, or, for a moment, on
        its way to the dead-letter queue. Without a possible destination it is not written at all.
        """
        dead_letter = subscription.dead_letter_queue not in (0, MISSING_QUEUE)
        if verdict in HOPELESS and not dead_letter:
            self.fanout.alarm(queue, subscription, verdict)
            self.frame.rows[(batch.row + at << 3) + 3] += 1 << 32
            self.topics.states[queue.number].dropped += 1
            return
        soon = dead_letter or verdict == Reason.REFUSED_MOVED
        self._keep(queue, subscription, batch, at, line, now, now + (1 if soon else REFUSED_BACKOFF_MS))

    def _keep(
        self,
        queue: QueueState,
        subscription: Subscription,
        batch: _Batch,
        at: int,
        line: int,
        now: int,
        visible_ms: int,
    ) -> int:
        """Write a copy that waits in the topic; returns its slot."""
        expires_s = -(-(now + queue.policy.retention_ms) // 1000)
        flags = _FANNED | _WAITING | (_FIFO if queue.fifo else 0)
        slot = self._add(queue, flags, subscription, batch, at, line, now, visible_ms, expires_s)
        group = batch.groups[at] if batch.groups else 0
        self.records.on_waiting(queue, slot, subscription.number, group, visible_ms > now)
        return slot

    def _send_one(self, target: QueueState, subscription: Subscription, batch: _Batch, at: int, now: int) -> None:
        """Write a copy into a queue of this shard."""
        visible_ms = now + target.policy.delay_ms
        expires_s = -(-(visible_ms + target.policy.retention_ms) // 1000)
        flags = _FANNED | (_FIFO if target.fifo else 0)
        group = batch.groups[at] if batch.groups else 0
        self._add(target, flags, subscription, batch, at, group, now, visible_ms, expires_s)

    def _add(
        self,
        queue: QueueState,
        flags: int,
        subscription: Subscription,
        batch: _Batch,
        at: int,
        group: int,
        now: int,
        visible_ms: int,
        expires_s: int,
    ) -> int:
        """Write and apply the Sent record of one copy; returns its slot."""
        slot = self.columns.allocate()
        sequence = self.journal.next_sequence
        w6 = (batch.plain if subscription.raw else batch.whole)[at]
        w0 = _SENT | flags << 8 | batch.heads[at] | queue.number << 32
        tail = slot | expires_s << 32
        position = self.frame.add(w0, sequence, now, visible_ms, group, subscription.number, w6, tail)
        maximum = batch.maxima[at] if batch.maxima else 0
        self.records.on_sent(
            queue, slot, sequence, now, visible_ms, group, expires_s, batch.priorities[at], maximum, position, w6
        )
        if batch.stored and batch.stored[at]:
            self.messages.stored.put(queue, slot, batch.stored[at], now)
        return slot

    def _send_run(self, target: QueueState, subscription: Subscription, batch: _Batch, now: int) -> None:
        """Write a copy of each message into a standard queue of this shard, as columns."""
        frame, policy, count = self.frame, target.policy, len(batch.heads)
        sequence = self.journal.next_sequence
        visible_ms = now + policy.delay_ms
        expires = array("I", (-(-(visible_ms + policy.retention_ms) // 1000),)) * count
        slots = self.columns.take_run(count)
        position = frame.number << 16 | frame.row_count
        w0 = _SENT | _FANNED << 8 | target.number << 32
        rows = array("Q", (0, 0, now, visible_ms, 0, subscription.number, 0, 0)) * count
        rows[0::8] = array("Q", [w0 | head for head in batch.heads])
        sequences = rows[1::8] = counted("Q", range(sequence, sequence + count))
        extents = rows[6::8] = batch.plain if subscription.raw else batch.whole
        rows[7::8] = joined(counted("I", slots) if isinstance(slots, range) else array("I", slots), expires)
        groups = array("Q", batch.groups) if batch.groups else None
        if groups is not None:
            rows[4::8] = groups
        frame.extend(rows)
        self.runs.on_sends(
            target,
            slots,
            sequences,
            now,
            expires,
            batch.priorities,
            position,
            extents,
            sum(halves_of(extents)[1::2]),
            array("Q", (visible_ms,)) * count if visible_ms > now else None,
            groups,
            batch.maxima,
        )
        for slot, key in zip(slots, batch.stored, strict=False):
            if key:
                self.messages.stored.put(target, slot, key, now)


def has_times(command: Send) -> bool:
    """Whether a message of the request has a delay or a time to live of its own."""
    return any(command.delays_ms) or any(command.ttls_ms)


def _interleaved(envelopes: Sequence[bytes], parts: list[bytes]) -> list[bytes]:
    """The parts of each message after its envelope."""
    count = len(envelopes)
    each = len(parts) // count
    together = [b""] * (count + len(parts))
    together[0 :: each + 1] = envelopes
    for at in range(each):
        together[at + 1 :: each + 1] = parts[at::each]
    return together


class _Content:
    """What filters see of a message. Nothing is decoded that no filter asks for."""

    def __init__(self, command: Send, at: int) -> None:
        self._command = command
        self._at = at

    @cached_property
    def attributes(self) -> dict[str, Attribute]:
        encoded = self._command.attributes[self._at] if self._command.attributes else b""
        return {attribute.name: attribute for attribute in decode_attributes(encoded)}

    def body_values(self, paths: Paths) -> BodyValues:
        return body_values(self._command.bodies[self._at], paths)


def _no_body(paths: Paths) -> BodyValues:
    """Not called: no subscription has a filter."""
    raise AssertionError(paths)
