"""What shards should do, in plain objects and lists: written from the contract, with no thought for speed.

A command is given to the shard under test first, then to the model, together with the reply. Where the contract leaves
a choice open (who is next in a standard queue, which group of a FIFO queue, which messages a receive finds used up on
its way), the model looks at what the shard chose (`Sight`) and asserts that it was allowed to; everything else it works
out itself. `messages` must then be what the shard shows.

What time brings comes in this order: delays end, leases run out, messages expire, refused transfers are tried again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Protocol

from batonq.core.commands import Accepted, Claim, Job, Lease
from batonq.core.ids import AWAY, message_id
from batonq.core.limits import DEFAULT_LIMITS
from batonq.core.payload import Payload
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, State
from batonq.errors import (
    BatonError,
    DeduplicationConflict,
    IdempotencyConflict,
    InvalidInput,
    JobConflict,
    LeaseLost,
    MessageGone,
    MessageHeld,
    NotOwner,
    OverLimit,
    QueueDoesNotExist,
    QueuePaused,
    VisibilityTooLong,
)
from tests.support import ask

FOREVER_MS = (1 << 64) - 1
MINUTE_S = 60
PACE_AHEAD_MS = 100  # how far deliveries may run ahead of a queue's cap
TWELVE_HOURS_MS = 12 * 3_600_000
ATTEMPT_MS = 5 * 60_000
REQUEST_MS = 2 * 60_000
ONCE_MS = 150_000  # of the tests
KEYS_SLACK_S = 128  # keys whose windows differ are not forgotten exactly in order: a full table may stay full so long
PRODUCER_IDLE_MS = 10_000  # of the tests
RUNNING = ("RUNNING", "PAUSED", "CANCELLING")


class Sight(Protocol):
    """What the shard under test shows after the command."""

    def sequences(self, queue: int, uid: str) -> list[int]:
        """The messages of a queue that were first sent as `uid`."""

    def state(self, queue: int, sequence: int) -> State | None: ...

    def entry_number(self, sequence: int) -> int:
        """Under which number a message is OWED; 0: it is not."""

    def remembers_attempt(self, queue: int, attempt: str) -> bool: ...


def uid_of(message: ask.Message | Payload) -> str:
    """What tells a message from all others: its trace, else the digest that it has instead of its body's."""
    return message.trace or message.body_md5.hex()


@dataclass
class Past:
    """What a dead letter keeps."""

    shown_id: str = ""
    first_queue: int = 0
    first_id: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    attempts: int = 0
    error_class: str = ""
    reason: str = ""
    source_queue: int = 0


@dataclass
class Owed:
    shard: int
    number: int
    queue: int
    reason: Reason


@dataclass(eq=False)
class Message:
    uid: str
    sequence: int
    queue: int
    sent_ms: int
    expires_s: int
    group: str = ""
    priority: int = 0
    maximum: int = 0
    kept_maximum: int = 0  # of a dead letter: it counts again when it is redriven
    redriven_by: str = ""  # the job that moved it here
    state: State = State.VISIBLE
    until_ms: int = 0  # VISIBLE, OWED: since; DELAYED: visible at; IN_FLIGHT: deadline
    leases: int = 0
    uncharged: int = 0  # leases that nobody got
    receives: int = 0
    first_received_ms: int = 0
    leased_ms: int = 0
    holder: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    error_class: str = ""
    reason: str = ""
    past: Past = field(default_factory=Past)
    came_from: tuple[int, int] | None = None  # shard and queue that a redrive without a destination takes it to
    owed: Owed | None = None
    was_dead: bool = False
    refused_for: Reason | None = None  # DELAYED because its destination refused it
    refusals: int = 0
    look_s: int = 0  # when its retention is looked at next


@dataclass
class Dedup:
    sequence: int
    window_end_s: int
    living: Message | None
    body: bytes


@dataclass
class Request:
    """One with an Idempotency-Key: what it said, what each of its messages was answered, and until when that counts."""

    content: str
    expires_s: int
    answers: dict[int, tuple[Accepted, int]] = field(default_factory=dict)
    run: bool = False  # its messages are remembered together

    def entries(self, now_s: int) -> int:
        """How many entries of the table of requests it takes."""
        parts = 0 if self.run else sum(until_s > now_s for _, until_s in self.answers.values())
        return parts + 2 * (self.expires_s > now_s)


@dataclass
class Producer:
    """What a producer sent to one queue: the message of each number, the highest number, when it is forgotten."""

    sequences: dict[int, int] = field(default_factory=dict)
    last: int = -1
    expires_s: int = 0


@dataclass
class Totals:
    sent: int = 0
    received: int = 0
    deleted: int = 0
    returned: int = 0
    expired_leases: int = 0
    expired_messages: int = 0
    dead_lettered: int = 0
    arrived: int = 0
    late_deletes: int = 0
    moved: int = 0
    expired_moved: int = 0


@dataclass
class Queue:
    policy: QueuePolicy
    closed: bool = False
    dedup: dict[tuple[str, str], Dedup] = field(default_factory=dict)
    attempts: dict[str, tuple[int, list[Message]]] = field(default_factory=dict)  # id → expiry, messages
    totals: Totals = field(default_factory=Totals)
    next_ms: Fraction | None = None  # when its cap allows the next delivery, but for how far they may run ahead

    def lets_through(self, message: Message) -> bool:
        """Whether the queue may deliver the message at all, as long as it is set so."""
        policy = self.policy
        return message.priority >= policy.priority_min and policy.only_group in ("", message.group)

    def allowed(self, now: int) -> int | None:
        """How many deliveries the queue's cap allows now; None: it has none."""
        rate = self.policy.deliveries_per_s
        if not rate:
            return None
        if self.next_ms is None:
            self.next_ms = Fraction(now + PACE_AHEAD_MS)
        return max(0, floor((now + PACE_AHEAD_MS - max(self.next_ms, Fraction(now))) * rate / 1000) + 1)

    def delivered(self, count: int, now: int) -> None:
        if self.next_ms is not None:
            self.next_ms = max(self.next_ms, Fraction(now)) + Fraction(1000 * count, self.policy.deliveries_per_s)


@dataclass
class ModelJob:
    source: int
    destination: int
    destination_shard: int
    rate: int
    started_ms: int
    to_move: int
    through: int
    only_dead: bool = False
    max_messages: int = 0
    pause_share: float = 1.0
    selective: bool = False
    state: str = "RUNNING"
    moved: int = 0
    died_again: int = 0
    refused: dict[int, int] = field(default_factory=dict)  # sequence of what found its destination full → its leases
    tried: list[int] = field(default_factory=list)  # sequences, each time that they were redriven
    allowance: int = 1


class Model:
    """One shard. `world` finds the others by number."""

    def __init__(self, number: int, world: dict[int, Model]) -> None:
        self.number = number
        self.world = world
        self.queues: dict[int, Queue] = {}
        self.messages: list[Message] = []  # in order of sequence
        self.last_sequence = 0
        self.time_ms = 0
        self.limits = DEFAULT_LIMITS
        self.requests: dict[int, tuple[int, int, int]] = {}  # invocation → first sequence, count, expiry (s)
        self.remembered = 0  # invocations, and parts of them, that were ever remembered
        self.remembered_at: dict[int, int] = {}  # invocation → how many there were when it was
        self.once: dict[tuple[int, str], Request] = {}  # queue, Idempotency-Key → its request
        self.keys: list[Dedup] = []  # every deduplication key that may still count, also those of purged queues
        self.parts: dict[tuple[int, int], tuple[int, int]] = {}  # invocation, place → sequence, expiry (s)
        self.producers: dict[tuple[int, str], Producer] = {}
        self.producer_idle_ms = PRODUCER_IDLE_MS
        self.last_number: dict[int, int] = {}  # destination shard → number of the newest entry
        self.verdicts: dict[tuple[int, int], Reason] = {}  # (source shard, number) → what became of it here
        self.cursor: dict[int, int] = {}
        self.jobs: dict[str, ModelJob] = {}
        self.sight: Sight
        self._asked = 0  # messages of the request that is looked at

    # --- looking -------------------------------------------------------------------------------

    def open_queue(self, number: int) -> Queue:
        queue = self.queues.get(number)
        if queue is None or queue.closed:
            raise QueueDoesNotExist
        return queue

    def of(self, number: int, *states: State) -> list[Message]:
        return [
            message for message in self.messages if message.queue == number and (not states or message.state in states)
        ]

    def exhausted(self, message: Message) -> bool:
        maximum = message.maximum or self.queues[message.queue].policy.max_receives
        return bool(maximum) and message.leases - message.uncharged >= maximum

    def group(self, number: int, group: str) -> list[Message]:
        """A FIFO group's messages in order; dead ones stand aside."""
        members = [message for message in self.of(number) if message.group == group]
        return [message for message in members if message.state is not State.DEAD and not message.was_dead]

    def deliverable(self, number: int, group: str) -> list[Message]:
        """From the front of a FIFO group, all that can be handed out now."""
        front = []
        for message in self.group(number, group):
            held_back = not self.queues[number].lets_through(message)
            if message.state is not State.VISIBLE or self.exhausted(message) or held_back:
                break
            front.append(message)
        return front

    # --- time ----------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.time_ms = now
        for message in self.messages:
            over = message.state is State.DELAYED and message.until_ms <= now
            if over and message.refused_for is None:
                message.state = State.VISIBLE
        leases = [message for message in self.messages if message.state is State.IN_FLIGHT and message.until_ms <= now]
        for message in sorted(leases, key=lambda message: (message.until_ms, message.sequence)):
            policy = self.queues[message.queue].policy
            delay_ms = self._retry_delay(policy, message) if policy.retry_expired else 0
            self.give_back(message, now, now + delay_ms, Reason.EXPIRED)
        self._expire_all(now)
        refused = [message for message in self.messages if message.state is State.DELAYED and message.refused_for]
        for message in sorted(refused, key=lambda message: (message.until_ms, message.sequence)):
            if message.until_ms <= now:
                self._try_again(message, now)
        self._expire_all(now)  # what has just arrived may be too old already

    def _expire_all(self, now: int) -> None:
        old = [message for message in self.messages if message.look_s <= now // 1000]
        for message in sorted(old, key=lambda message: (message.expires_s, message.sequence)):
            self._expire(message, now)

    def _expire(self, message: Message, now: int) -> None:
        now_s = now // 1000
        if message.state is State.OWED:
            message.look_s = max(message.expires_s, now_s + 1)
            return
        policy = self.queues[message.queue].policy
        if policy.expiry_to_dead_letter and policy.dead_letter_queue:
            message.look_s = now_s + MINUTE_S
            self.owe(message, policy.dead_letter_shard, policy.dead_letter_queue, Reason.EXPIRY_DEAD_LETTER, now)
        else:
            self.queues[message.queue].totals.expired_messages += 1
            self._remove(message)

    def _try_again(self, message: Message, now: int) -> None:
        policy = self.queues[message.queue].policy
        assert message.refused_for is not None
        if policy.dead_letter_queue:
            self.owe(message, policy.dead_letter_shard, policy.dead_letter_queue, message.refused_for, now)
        else:
            self.queues[message.queue].totals.returned += 1
            self._die(message)

    # --- sends ---------------------------------------------------------------------------------

    def send(
        self,
        number: int,
        sends: Sequence[ask.Message],
        now: int,
        invocation: int,
        replies: Sequence[Accepted | BatonError],
        forgotten: bool = False,
    ) -> None:
        """`forgotten`: the shard did not know the invocation."""
        queue = self.open_queue(number)
        until_s = -(-(now + REQUEST_MS) // 1000)
        known = self.requests.get(invocation)
        if not invocation or (known is not None and known[2] <= now // 1000):
            known = None
        if known is not None and forgotten:
            later = self.remembered - self.remembered_at[invocation]
            assert later >= self.limits.sdk_names_max, "a request is forgotten, and few came after it"
            known = None
        if not sends:
            assert list(replies) == ([self._known(known[0])] if known is not None and known[0] else [])
            if known is None and invocation & AWAY:
                self._remember(invocation, 0, 0, until_s)
            return
        if known is not None and known[1] == len(sends):
            expected = [self._known(known[0] + i) for i in range(known[1])]
            assert list(replies) == expected, "a repeated request gets the first one's answer"
            return
        unkeyed = [
            at
            for at, send in enumerate(sends)
            if not (send.group if queue.policy.fifo else send.dedup_id or send.producer)
        ]
        again = known is not None and not known[1] and bool(unkeyed)
        before = self.last_sequence
        refused: set[str] = set()
        self._asked = len(sends)
        for at, (send, reply) in enumerate(zip(sends, replies, strict=True)):
            if again and at in unkeyed:
                self._repeated(invocation, at, now, reply)
            elif send.producer:
                self._send_numbered(queue, send, now, reply, refused)
            else:
                self._send(queue, send, now, reply)
        if not invocation or again or self.last_sequence == before:
            return
        if self.last_sequence == before + len(sends):
            self._remember(invocation, before + 1, len(sends), until_s)
            return
        taken = {at: reply.sequence for at in unkeyed if isinstance(reply := replies[at], Accepted)}
        if taken:
            self._remember(invocation, min(taken.values()), 0, until_s)
        for at, sequence in taken.items():
            self.remembered += 1
            self.parts[invocation, at] = (sequence, until_s)

    def _remember(self, invocation: int, first: int, count: int, until_s: int) -> None:
        self.remembered += 1
        self.remembered_at[invocation] = self.remembered
        self.requests[invocation] = (first, count, until_s)
        self.parts = {key: part for key, part in self.parts.items() if key[0] != invocation}

    def send_once(
        self,
        number: int,
        sends: Sequence[ask.Message],
        now: int,
        name: str,
        content: str,
        reply: tuple[Sequence[Accepted | BatonError], bool],
    ) -> None:
        """By a request with an Idempotency-Key: each message that was taken is answered as it was the first time."""
        queue = self.open_queue(number)
        replies, known = reply
        now_s = now // 1000
        until_s = -(-(now + ONCE_MS) // 1000)
        request = self.once.get((number, name))
        if request is not None and request.expires_s <= now_s:
            request = None
        if request is not None and request.content != content:
            assert not known and all(isinstance(one, IdempotencyConflict) for one in replies)
            return
        entries = sum(other.entries(now_s) for other in self.once.values())
        if (
            request is None
            and entries >= self.limits.idempotency_keys_max
            and all(isinstance(r, OverLimit) for r in replies)
        ):
            assert not known
            return
        answers = {} if request is None else dict(request.answers)
        assert known == bool(answers)
        fresh: dict[int, tuple[Accepted, int]] = {}
        before = self.last_sequence
        self._asked = len(sends)
        for at, (send, one) in enumerate(zip(sends, replies, strict=True)):
            if at in answers:
                assert one == answers[at][0], "a named request is answered as the first time"
                continue
            self._send(queue, send, now, one)
            if isinstance(one, Accepted):
                fresh[at] = (one, until_s)
        if request is not None:
            request.answers.update(fresh)
        elif fresh:
            run = self.last_sequence == before + len(sends)
            self.once[number, name] = Request(content, until_s, fresh, run)

    def _known(self, sequence: int) -> Accepted:
        return Accepted(sequence, message_id(self.number, sequence), True)

    def _repeated(self, invocation: int, at: int, now: int, reply: Accepted | BatonError) -> None:
        """A message without a key, of a request that was taken in part, or that another shard takes."""
        sequence, until_s = self.parts.get((invocation, at), (0, 0))
        if not self.requests[invocation][0]:
            assert isinstance(reply, NotOwner)
        elif until_s > now // 1000:
            assert reply == self._known(sequence)
        else:
            assert isinstance(reply, OverLimit)

    def _send_numbered(
        self, queue: Queue, send: ask.Message, now: int, reply: Accepted | BatonError, refused: set[str]
    ) -> None:
        """Numbers that are not above the producer's last are repetitions; after a refusal the rest must wait."""
        key = (queue.policy.queue, send.producer)
        known = self.producers.get(key)
        if known is None or known.expires_s <= now // 1000:
            known = Producer()
        number = send.producer_sequence
        if number <= known.last:
            first = known.sequences.get(number, 0)
            original = Accepted(first, message_id(self.number, first), True)
            if number == known.last:
                assert reply == original, "the last number's message is known"
            assert reply in (original, Accepted(0, "", True))
        elif send.producer in refused:
            assert isinstance(reply, OverLimit)
        elif known.last < 0 and self._producers_are_full(now) and isinstance(reply, OverLimit):
            refused.add(send.producer)
        else:
            self._send(queue, send, now, reply)
            if isinstance(reply, Accepted):
                known.sequences[number], known.last = reply.sequence, number
                known.expires_s = -(-(now + self.producer_idle_ms) // 1000)
                self.producers[key] = known
            elif reply.retryable:
                refused.add(send.producer)

    def _producers_are_full(self, now: int) -> bool:
        living = [producer for producer in self.producers.values() if producer.expires_s > now // 1000]
        return len(living) >= self.limits.producers_max

    def _keys_are_full(self, now: int) -> bool:
        horizon_s = now // 1000 - KEYS_SLACK_S
        self.keys = [key for key in self.keys if key.living is not None or key.window_end_s > horizon_s]
        return len(self.keys) >= self.limits.dedup_entries_max

    def _send(self, queue: Queue, send: ask.Message, now: int, reply: Accepted | BatonError) -> None:
        policy = queue.policy
        key = (send.group if policy.dedup_per_group else "", send.dedup_id)
        known = queue.dedup.get(key) if send.dedup_id else None
        if known is not None and (known.living is not None or now // 1000 < known.window_end_s):
            if send.strict_content and known.body != send.body:
                assert isinstance(reply, DeduplicationConflict)
            else:
                assert reply == Accepted(known.sequence, message_id(self.number, known.sequence), True)
            return
        if policy.paused in ("sends", "both"):
            no_key = isinstance(reply, OverLimit) and send.dedup_id and self._keys_are_full(now)
            assert isinstance(reply, QueuePaused) or no_key
            return
        if policy.messages_max and len(self.of(policy.queue)) >= policy.messages_max:
            assert isinstance(reply, OverLimit)
            return
        if isinstance(reply, OverLimit):
            no_slot = len(self.messages) + self._asked > self.limits.slots_max
            assert no_slot or (send.dedup_id and self._keys_are_full(now)), "a message is refused, and there is room"
            return
        self.last_sequence += 1
        sequence = self.last_sequence
        assert reply == Accepted(sequence, message_id(self.number, sequence), False)
        visible_ms = now + (policy.delay_ms if send.delay_ms is None else send.delay_ms)
        lives_ms = policy.retention_ms if send.ttl_ms is None else send.ttl_ms
        message = Message(
            uid=uid_of(send),
            sequence=sequence,
            queue=policy.queue,
            sent_ms=now,
            expires_s=-(-(visible_ms + lives_ms) // 1000),
            group=send.group,
            priority=send.priority,
            maximum=send.max_receives,
            state=State.VISIBLE if visible_ms <= now else State.DELAYED,
            until_ms=visible_ms,
        )
        message.look_s = message.expires_s
        self.messages.append(message)
        queue.totals.sent += 1
        if send.dedup_id:
            window_end_s = now // 1000 if policy.dedup_lives else -(-(now + policy.dedup_window_ms) // 1000)
            queue.dedup[key] = Dedup(sequence, window_end_s, message if policy.dedup_lives else None, send.body)
            self.keys.append(queue.dedup[key])

    # --- receives ------------------------------------------------------------------------------

    def receive(
        self,
        number: int,
        wanted: int,
        visibility_ms: int | None,
        now: int,
        holder: str,
        attempt: str,
        leases: Sequence[Lease] | BatonError,
    ) -> None:
        queue = self.open_queue(number)
        policy = queue.policy
        deadline = now + (policy.visibility_ms if visibility_ms is None else visibility_ms)
        expires_ms, held = queue.attempts.get(attempt, (0, []))
        if attempt and policy.fifo and expires_ms > now:
            assert not isinstance(leases, BatonError)
            assert [(lease.sequence, lease.epoch) for lease in leases] == [(m.sequence, m.leases) for m in held]
            for message, lease in zip(held, leases, strict=True):
                message.until_ms = deadline
                self._check_lease(message, lease)
            return
        if policy.paused in ("delivery", "both"):
            assert leases == [], "a paused queue delivers"
            return
        allowed = queue.allowed(now)
        if allowed is not None:
            wanted = min(wanted, allowed)
            if not wanted:
                assert leases == [], "a queue delivers above its cap"
                return
        room = policy.in_flight_max - len(self.of(number, State.IN_FLIGHT))
        if room <= 0:
            assert leases == [] if policy.fifo else isinstance(leases, OverLimit)
            return
        assert not isinstance(leases, BatonError)
        wanted = min(wanted, room)
        spent = [message for message in self.of(number, State.VISIBLE) if self.exhausted(message)]
        found = sum(self.sight.state(number, message.sequence) is not State.VISIBLE for message in spent)
        assert found <= self.limits.given_up_max
        stopped = found == self.limits.given_up_max  # there may have been more, and others behind them
        given_up = self._give_up(queue, now, len(leases) < wanted and not stopped)
        taken = [self.find(number, lease.sequence) for lease in leases]
        queue.delivered(len(taken), now)
        if policy.fifo:
            # A group counts by its first message, and may have had another one when it was compared.
            by_priority = not policy.ageing_ms and not given_up
            self._check_fifo(number, taken, len(taken) if stopped else wanted, by_priority)
        else:
            self._check_standard(number, taken, len(taken) if stopped else wanted, given_up)
        for message, lease in zip(taken, leases, strict=True):
            message.state, message.until_ms, message.holder = State.IN_FLIGHT, deadline, holder
            message.leases += 1
            message.receives += 1
            message.leased_ms = now
            message.first_received_ms = message.first_received_ms or now
            queue.totals.received += 1
            self._check_lease(message, lease)
        if attempt and policy.fifo and taken and self._remembers_attempt(number, attempt, now):
            queue.attempts[attempt] = (now + ATTEMPT_MS, taken)

    def _remembers_attempt(self, number: int, attempt: str, now: int) -> bool:
        """Whether a new attempt is remembered; when there are many, that is the shard's to say."""
        held = [expires_ms for queue in self.queues.values() for expires_ms, _ in queue.attempts.values()]
        remembers = self.sight.remembers_attempt(number, attempt)
        assert remembers or sum(expires_ms > now for expires_ms in held) >= self.limits.attempts_max
        return remembers

    def _check_lease(self, message: Message, lease: Lease) -> None:
        shown = (lease.epoch, lease.receive_count, lease.deadline_ms, lease.sent_ms, lease.first_received_ms)
        assert shown == (
            message.leases,
            message.receives,
            message.until_ms,
            message.sent_ms,
            max(message.first_received_ms, message.sent_ms),
        )
        assert lease.priority == message.priority

    def _give_up(self, queue: Queue, now: int, all_looked_at: bool) -> bool:
        """Messages that have no receive left go when a receive finds them; which it finds is open. Did any?"""
        number, policy = queue.policy.queue, queue.policy
        spent = [message for message in self.of(number, State.VISIBLE) if self.exhausted(message)]
        if policy.fifo:  # only the first of a group can be found
            spent = [message for message in spent if self.group(number, message.group)[0] is message]
        found = [m for m in spent if self.sight.state(number, m.sequence) is not State.VISIBLE]
        assert all(map(queue.lets_through, found)), "a message that may not be delivered is looked at"
        spent = [message for message in spent if queue.lets_through(message)]
        assert all(self.sight.state(number, message.sequence) is not State.IN_FLIGHT for message in found)
        if all_looked_at:
            assert found == spent, "there was room for more, so all were looked at"

        def arrived(message: Message) -> tuple[int, int]:
            new = self._arrivals(policy.dead_letter_shard, policy.dead_letter_queue, message.uid)
            return (new[0] if new else FOREVER_MS, self.sight.entry_number(message.sequence))

        for message in sorted(found, key=arrived):
            if policy.dead_letter_queue:
                self.owe(message, policy.dead_letter_shard, policy.dead_letter_queue, Reason.DEAD_LETTER, now)
            else:
                queue.totals.returned += 1
                self._die(message)
            if policy.fifo:  # the next of its group may be found before the first of another
                self._give_up(queue, now, all_looked_at)
                break
        return bool(found)

    def _check_standard(self, number: int, taken: list[Message], wanted: int, given_up: bool) -> None:
        ageing_ms = self.queues[number].policy.ageing_ms
        through = self.queues[number].lets_through
        ready = [m for m in self.of(number, State.VISIBLE) if not self.exhausted(m) and through(m)]
        # One that was given up counted for its lane while it was there, however old it was.
        plain = not given_up and not any(m.group or self.exhausted(m) for m in self.of(number, State.VISIBLE))
        for message in taken:
            assert message in ready, "only a VISIBLE message with a receive left can be leased"
            if not ageing_ms:
                assert message.priority == max(other.priority for other in ready)
            elif plain:
                since = {m.priority: min(o.until_ms for o in ready if o.priority == m.priority) for m in ready}
                best = min(since, key=lambda priority: (since[priority] - priority * ageing_ms, -priority))
                assert message.priority == best
            ready.remove(message)
        assert len(taken) == wanted or not ready, "nothing that could be had is held back"

    def _check_fifo(self, number: int, taken: list[Message], wanted: int, by_priority: bool) -> None:
        """One group in order, then the next; a group ends where its front does."""
        groups = dict.fromkeys(message.group for message in self.of(number))
        open_groups = {group: front for group in groups if (front := self.deliverable(number, group))}
        rest = taken
        while rest:
            assert rest[0].group in open_groups, "a group that is locked gives nothing"
            front = open_groups.pop(rest[0].group)
            assert rest[: len(front)] == front[: len(rest)], "a group comes in order, from its front"
            if by_priority and open_groups:
                assert front[0].priority >= max(other[0].priority for other in open_groups.values())
            rest = rest[len(front) :]
        assert len(taken) == wanted or not open_groups, "nothing that could be had is held back"

    # --- receipts ------------------------------------------------------------------------------

    def find(self, number: int, sequence: int) -> Message:
        (message,) = (m for m in self.messages if m.queue == number and m.sequence == sequence)
        return message

    def standing(self, number: int, claim: Claim, now: int) -> tuple[str, Message | None]:
        for message in self.of(number):
            if message.sequence == claim.sequence:
                if message.leases != claim.epoch or message.state is State.OWED:
                    return "superseded", message
                held = message.state is State.IN_FLIGHT and message.until_ms > now
                return ("held" if held else "lapsed"), message
        return "gone", None

    def delete(
        self, number: int, claims: Sequence[Claim], now: int, strict: bool, results: Sequence[BatonError | None]
    ) -> None:
        queue = self.open_queue(number)
        for claim, result in zip(claims, results, strict=True):
            standing, message = self.standing(number, claim, now)
            strict_rule = strict or queue.policy.strict_receipts
            acts = standing == "held" or (standing == "lapsed" and not strict_rule and not queue.policy.fifo)
            expected: type[BatonError] | None = None
            if standing in ("lapsed", "superseded") and (strict_rule or queue.policy.fifo):
                expected = LeaseLost
            elif standing == "gone" and strict_rule:
                expected = MessageGone
            assert type(result) is (expected or type(None)), f"a delete with a receipt that is {standing}"
            if acts and message is not None:
                queue.totals.deleted += 1
                queue.totals.late_deletes += standing == "lapsed"
                self._remove(message)

    def change(
        self,
        number: int,
        changes: Sequence[tuple[Claim, int]],
        now: int,
        strict: bool,
        results: Sequence[BatonError | None],
    ) -> None:
        queue = self.open_queue(number)
        for (claim, visibility_ms), result in zip(changes, results, strict=True):
            standing, message = self.standing(number, claim, now)
            expected: type[BatonError] | None = None
            if standing == "gone":
                expected = MessageGone
            elif standing != "held" and (strict or queue.policy.strict_receipts or queue.policy.fifo):
                expected = LeaseLost
            elif standing == "held" and message is not None:
                if visibility_ms and now + visibility_ms > message.leased_ms + TWELVE_HOURS_MS:
                    expected = VisibilityTooLong
                elif visibility_ms:
                    self._end_attempt(message)
                    message.until_ms = now + visibility_ms
                else:
                    self.give_back(message, now, now, Reason.RELEASED)
            assert type(result) is (expected or type(None)), f"a change with a receipt that is {standing}"

    def nack(self, number: int, nacks: Sequence[ask.Nack], now: int, results: Sequence[BatonError | None]) -> None:
        queue = self.open_queue(number)
        for nack, result in zip(nacks, results, strict=True):
            standing, message = self.standing(number, nack.claim, now)
            if standing == "held" and message is not None:
                by_policy = 0 if nack.untried else self._retry_delay(queue.policy, message)
                delay_ms = by_policy if nack.delay_ms is None else nack.delay_ms
                if delay_ms > queue.policy.retention_ms or (nack.untried and nack.dead_letter):
                    assert isinstance(result, InvalidInput)
                    continue
                if nack.untried:
                    assert result is None
                    self._untried(queue, message, now, now + delay_ms)
                    continue
                assert result is None
                visible_ms = now + delay_ms
                self.give_back(
                    message, now, visible_ms, Reason.NACK, nack.error_class, nack.reason, dead_letter=nack.dead_letter
                )
            else:
                assert type(result) is (MessageGone if standing == "gone" else LeaseLost)

    @staticmethod
    def _retry_delay(policy: QueuePolicy, message: Message) -> int:
        """Schedules without jitter are all that these tests use."""
        if not policy.retry:
            return 0
        delays = json.loads(policy.retry)["delaysSeconds"]
        attempt = message.leases - message.uncharged
        delay_ms: int = 1000 * delays[min(attempt, len(delays)) - 1]
        return min(delay_ms, policy.retention_ms)

    def undelivered(self, number: int, claims: Sequence[Claim], now: int) -> None:
        """Nobody got these messages: they are back, and it was no receive."""
        queue = self.open_queue(number)
        for claim in claims:
            standing, message = self.standing(number, claim, now)
            if standing == "held" and message is not None:
                self._untried(queue, message, now, now)

    def _untried(self, queue: Queue, message: Message, now: int, visible_ms: int) -> None:
        self._end_attempt(message)
        message.holder = ""
        message.state = State.VISIBLE if visible_ms <= now else State.DELAYED
        message.until_ms = visible_ms
        message.uncharged += 1
        message.receives -= 1
        if not message.receives:
            message.first_received_ms = 0
        queue.totals.returned += 1

    # --- the end of a lease, and of a message ----------------------------------------------------

    def give_back(
        self,
        message: Message,
        now: int,
        visible_ms: int,
        reason: Reason,
        error_class: str = "",
        text: str = "",
        *,
        dead_letter: bool = False,
    ) -> None:
        queue = self.queues[message.queue]
        policy = queue.policy
        self._end_attempt(message)
        message.holder = ""
        queue.totals.returned += 1
        queue.totals.expired_leases += reason is Reason.EXPIRED
        if reason is not Reason.RELEASED:
            message.first_failure_ms = message.first_failure_ms or now
            message.last_failure_ms = now
            if error_class or text:
                message.error_class, message.reason = error_class, text
        message.state = State.VISIBLE if visible_ms <= now else State.DELAYED
        message.until_ms = visible_ms
        if dead_letter or (policy.dead_letter_on_failure and self.exhausted(message)):
            if policy.dead_letter_queue:
                self.owe(message, policy.dead_letter_shard, policy.dead_letter_queue, Reason.DEAD_LETTER, now)
            else:
                self._die(message)

    def _die(self, message: Message) -> None:
        message.state, message.until_ms, message.refused_for = State.DEAD, FOREVER_MS, None
        self._died_again(message.redriven_by)
        message.redriven_by = ""
        self._end_life(message)

    def _end_life(self, message: Message) -> None:
        for known in self.keys:
            if known.living is message:
                known.living = None

    def _end_attempt(self, message: Message) -> None:
        attempts = self.queues[message.queue].attempts
        for attempt in [attempt for attempt, (_, held) in attempts.items() if message in held]:
            del attempts[attempt]

    def _remove(self, message: Message) -> None:
        self._end_attempt(message)
        self._end_life(message)
        self.messages.remove(message)

    # --- between queues and shards ---------------------------------------------------------------

    def _arrivals(self, shard: int, queue: int, uid: str) -> list[int]:
        """Messages of this uid that the destination shows and its model does not know yet."""
        if shard != self.number:
            return []
        known = {message.sequence for message in self.messages}
        return [sequence for sequence in self.sight.sequences(queue, uid) if sequence not in known]

    def owe(self, message: Message, shard: int, queue: int, reason: Reason, now: int) -> None:
        self._end_attempt(message)
        message.holder = ""
        message.was_dead = message.state is State.DEAD
        message.refused_for = None
        number = self.last_number.get(shard, 0) + 1
        self.last_number[shard] = number
        message.state, message.until_ms, message.owed = State.OWED, now, Owed(shard, number, queue, reason)
        if shard == self.number:
            verdict = self._take_in(message, self, now)
            self.settle(shard, number, verdict, now)

    def _take_in(self, message: Message, source: Model, now: int) -> Reason:
        """The destination's answer to an entry; `message` is the source's."""
        assert message.owed is not None
        queue = self.queues.get(message.owed.queue)
        if queue is None or queue.closed:
            return Reason.REFUSED_NO_QUEUE
        if queue.policy.fifo != source.queues[message.queue].policy.fifo:
            return Reason.REFUSED_TYPE
        home = source is self and message.owed.queue == message.queue  # it takes the room that it leaves
        if queue.policy.paused in ("sends", "both") and not home:
            return Reason.REFUSED_PAUSED
        full = queue.policy.messages_max and len(self.of(message.owed.queue)) >= queue.policy.messages_max
        if full and not home:
            return Reason.REFUSED_FULL
        reason = message.owed.reason
        redriven = reason is Reason.REDRIVE
        sent_ms = now if redriven or queue.policy.fifo else message.sent_ms
        start_ms = now if reason is Reason.EXPIRY_DEAD_LETTER else sent_ms
        self.last_sequence += 1
        arrived = Message(
            uid=message.uid,
            sequence=self.last_sequence,
            queue=message.owed.queue,
            sent_ms=sent_ms,
            expires_s=-(-(start_ms + queue.policy.retention_ms) // 1000),
            group=message.group,
            priority=message.priority,
            maximum=(message.maximum or message.kept_maximum) if redriven else 0,
            kept_maximum=0 if redriven else message.maximum or message.kept_maximum,
            redriven_by=source.active_job(message.queue) if redriven else "",
            until_ms=now,
            receives=0 if redriven else message.receives,
            came_from=None if redriven else (source.number, message.queue),
            past=source._past(message),
        )
        arrived.look_s = arrived.expires_s
        self.messages.append(arrived)
        queue.totals.arrived += 1
        if reason is Reason.DEAD_LETTER:
            self._died_again(message.redriven_by)
        return Reason.ACCEPTED

    def active_job(self, number: int) -> str:
        active = [job_id for job_id, job in self.jobs.items() if job.source == number and job.state in RUNNING]
        return active[0] if active else ""

    def redriving(self, number: int) -> list[Message]:
        """Messages of a queue that are on their way back."""
        return [m for m in self.of(number, State.OWED) if m.owed and m.owed.reason is Reason.REDRIVE]

    def _died_again(self, job_id: str) -> None:
        if job_id in self.jobs:
            self.jobs[job_id].died_again += 1

    def _past(self, message: Message) -> Past:
        """What a message that leaves this queue takes along."""
        assert message.owed is not None
        own_id = message_id(self.number, message.sequence)
        past = message.past
        redriven = message.owed.reason is Reason.REDRIVE
        error = message if message.error_class or message.reason else past
        return Past(
            shown_id="" if redriven else past.shown_id or own_id,
            first_queue=past.first_queue or message.queue,
            first_id=past.first_id or own_id,
            first_failure_ms=past.first_failure_ms or message.first_failure_ms,
            last_failure_ms=message.last_failure_ms or past.last_failure_ms,
            attempts=past.attempts if redriven and not message.was_dead else message.receives or past.attempts,
            error_class=error.error_class,
            reason=error.reason,
            source_queue=past.source_queue if redriven else message.queue,
        )

    def settle(self, shard: int, number: int, verdict: Reason, now: int) -> None:
        """The destination's answer is known at the source; one that was settled before changes nothing."""
        for message in self.messages:
            if message.owed is not None and (message.owed.shard, message.owed.number) == (shard, number):
                self._settle(message, verdict, now)
                return

    def _settle(self, message: Message, verdict: Reason, now: int) -> None:
        assert message.owed is not None
        reason, queue = message.owed.reason, self.queues[message.queue]
        jobs = [job for job in self.jobs.values() if job.source == message.queue and job.state in RUNNING]
        if verdict is Reason.ACCEPTED:
            if reason is Reason.REDRIVE:
                for job in jobs:
                    job.moved += 1
                    job.refused.pop(message.sequence, None)
            else:
                queue.totals.dead_lettered += 1
                queue.totals.expired_messages += reason is Reason.EXPIRY_DEAD_LETTER
                queue.totals.expired_moved += reason is Reason.EXPIRY_DEAD_LETTER
            queue.totals.moved += 1
            self._remove(message)
            if queue.closed and not self.of(message.queue):
                del self.queues[message.queue]
            return
        message.owed = None
        if message.was_dead:
            self._die(message)
        elif reason is Reason.REDRIVE:
            message.state, message.until_ms = State.VISIBLE, now
        else:
            message.state, message.refused_for = State.DELAYED, reason
            message.until_ms = now + min(1_000 << min(message.refusals, 16), 300_000)
            message.refusals += 1
        message.was_dead = False
        for job in jobs if reason is Reason.REDRIVE else ():
            if verdict in (Reason.REFUSED_FULL, Reason.REFUSED_PAUSED):
                job.refused[message.sequence] = message.leases
            else:
                job.state = "FAILED"

    def arrive(self, source: Model, number: int, now: int) -> Reason:
        """An entry of the channel from another shard: the next, or one that was seen before."""
        if number <= self.cursor.get(source.number, 0):
            return self.verdicts[source.number, number]
        assert number == self.cursor.get(source.number, 0) + 1
        owed = [m for m in source.messages if m.owed and (m.owed.shard, m.owed.number) == (self.number, number)]
        self.cursor[source.number] = number
        self.verdicts[source.number, number] = self._take_in(owed[0], source, now)
        return self.verdicts[source.number, number]

    # --- an operator ---------------------------------------------------------------------------------

    def operator(
        self,
        what: str,
        number: int,
        sequence: int,
        to: tuple[int, int] | None,
        now: int,
        reply: BatonError | None,
    ) -> None:
        """A message is named, and deleted, edited or retried; `to` is a shard and a queue."""
        queue = self.open_queue(number)
        message = next((message for message in self.of(number) if message.sequence == sequence), None)
        if message is None:
            assert isinstance(reply, MessageGone)
        elif message.state in (State.IN_FLIGHT, State.OWED):
            assert isinstance(reply, MessageHeld)
        elif what == "delete":
            assert reply is None
            queue.totals.deleted += 1
            self._remove(message)
        elif what == "retry":
            self._retry(queue, message, to, now, reply)
        else:
            assert reply is None

    def _retry(
        self, queue: Queue, message: Message, to: tuple[int, int] | None, now: int, reply: BatonError | None
    ) -> None:
        number = message.queue
        if to is None and message.state is State.DEAD:
            to = (self.number, number)
        if to is not None:
            if self.active_job(number):
                assert isinstance(reply, JobConflict)
                return
            target = self.queues.get(to[1])
            if to[0] == self.number and to[1] != number:
                full = target and target.policy.messages_max and len(self.of(to[1])) >= target.policy.messages_max
                expected: type[BatonError] | None = OverLimit if full else None
                if target and target.policy.paused in ("sends", "both"):
                    expected = QueuePaused
                if target is None or target.closed or target.policy.fifo != queue.policy.fifo:
                    expected = InvalidInput
                assert type(reply) is (expected or type(None))
            if reply is None:
                self.owe(message, *to, Reason.REDRIVE, now)
            return
        assert reply is None
        if message.state is State.DELAYED and message.refused_for:
            self._try_again(message, now)
        elif message.state is State.DELAYED:
            message.state, message.until_ms = State.VISIBLE, now
            queue.totals.returned += 1

    # --- control -----------------------------------------------------------------------------------

    def set_policy(self, policy: QueuePolicy) -> None:
        if policy.queue in self.queues:
            self.queues[policy.queue].policy = policy
            if not policy.deliveries_per_s:
                self.queues[policy.queue].next_ms = None
        else:
            self.queues[policy.queue] = Queue(policy)

    def purge(self, number: int, through: int, reply: tuple[int, bool]) -> None:
        """One step of the removal of messages up to a sequence, the oldest first."""
        queue = self.queues[number]
        count, final = reply
        meant = [m for m in self.of(number) if m.state is not State.OWED and m.sequence <= through]
        assert count == min(len(meant), self.limits.purge_step_max)
        for message in meant[:count]:
            self._remove(message)
        queue.totals.deleted += count
        assert final or count == self.limits.purge_step_max, "a purge stops early"
        if not final:
            return
        assert count == len(meant)
        queue.dedup = {
            key: known for key, known in queue.dedup.items() if known.sequence > through or known.living is not None
        }
        if queue.closed and not self.of(number):
            del self.queues[number]

    def restart(self, grace_ms: int, timers_kept: bool) -> None:
        for message in self.messages:
            if message.state is State.IN_FLIGHT:
                message.until_ms += grace_ms
            if not timers_kept:
                message.look_s = message.expires_s
        for job in self.jobs.values():
            job.allowance += 1
        for queue in self.queues.values():
            queue.next_ms = None  # a new owner does not know what was delivered last

    # --- jobs --------------------------------------------------------------------------------------

    def start_job(self, job: Job, now: int) -> None:
        to_move = len(self.of(job.source, State.DEAD) if job.only_dead else self.of(job.source))
        self.jobs[job.id] = ModelJob(
            job.source,
            job.destination,
            job.destination_shard,
            job.rate_per_s,
            now,
            to_move,
            self.last_sequence,
            job.only_dead,
            job.max_messages,
            job.pause_share,
            bool(job.selection),
        )

    def redrive(self, number: int, sequence: int, now: int) -> None:
        """A running job has moved this message."""
        (job,) = (job for job in self.jobs.values() if job.source == number and job.state == "RUNNING")
        message = self.find(number, sequence)
        assert message.state in ((State.DEAD,) if job.only_dead else (State.VISIBLE, State.DEAD))
        assert sequence <= job.through
        job.tried.append(sequence)
        under_way = [m for m in self.of(number, State.OWED) if m.owed and m.owed.reason is Reason.REDRIVE]
        assert not job.max_messages or job.moved + len(under_way) < job.max_messages, "a job takes more than it may"
        assert len(job.tried) <= job.allowance + job.rate * (now - job.started_ms) / 1000, (
            "a job is faster than its rate"
        )
        if job.destination:
            self.owe(message, job.destination_shard, job.destination, Reason.REDRIVE, now)
        else:
            assert message.came_from is not None or message.state is State.DEAD
            self.owe(message, *(message.came_from or (self.number, number)), Reason.REDRIVE, now)

    def end_step(self, states: dict[str, str]) -> None:
        """After a step of the jobs: each is in the state that it should be in."""
        for job_id, job in self.jobs.items():
            if job.state not in RUNNING:
                assert states.get(job_id, job.state) == job.state, "an ended job stays as it is, or is forgotten"
                continue
            state = states[job_id]
            if state == job.state:
                continue
            queue = self.queues.get(job.source)
            under_way = [m for m in self.of(job.source, State.OWED) if m.owed and m.owed.reason is Reason.REDRIVE]
            if job.state in ("RUNNING", "PAUSED") and (queue is None or queue.closed):
                assert state == "FAILED"
            elif state == "PAUSED":
                assert job.state == "RUNNING" and job.died_again > job.pause_share, "a job pauses for nothing"
            else:
                assert state == ("CANCELLED" if job.state == "CANCELLING" else "COMPLETED")
                assert not under_way, "a job ends when all that it moved has arrived"
                if job.max_messages and job.moved >= job.max_messages:
                    assert job.moved == job.max_messages
                elif state == "COMPLETED":
                    for message in self.of(job.source, State.VISIBLE):
                        assert job.refused.get(message.sequence) != message.leases, "a job forgot what was refused"
                    waiting = () if job.only_dead or job.selective else self.of(job.source, State.VISIBLE)
                    for message in waiting:
                        theirs = message.sequence <= job.through and (job.destination or message.came_from)
                        if theirs and message.until_ms <= job.started_ms:
                            assert message.sequence in job.tried, "a job left something behind"
            job.state = state


def worlds(count: int) -> dict[int, Model]:
    world: dict[int, Model] = {}
    for number in range(count):
        world[number] = Model(number, world)
    return world
