"""The Send command. New requests that arrive together and carry only bodies are written as one run of records. For
any other request the shard decides per message, then writes the accepted messages as columns.

A repeated request gets the answer of the first one. A request is recognised by the hash of the name that an SDK gave it
(remembered for two minutes), by its Idempotency-Key (remembered for hours), or by its producer's numbers:

- One table holds both kinds of names, with a separate limit for each kind. If all messages of a named request were
  accepted, the table stores the request as one run. If only some were accepted, the table stores each accepted message.
- If the table holds too many SDK names, the oldest one is forgotten early. If it holds too many Idempotency-Keys, a
  request with a new key is refused, because a key must be remembered for its promised time.
- An Idempotency-Key is stored under two hashes: one of the name, one of the name and the content. A known name with
  different content is a conflict. A message that was a duplicate by its deduplication id counts as accepted, because
  the shard may forget that id before it forgets the request.
- A producer's messages need no names: see producers.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from batonq.core.commands import Accepted, Once, Send, Sent
from batonq.core.ids import AWAY, key_hash, message_id
from batonq.core.payload import bare_parts, content_mark_of, head_of
from batonq.core.records import SentFlag, Type
from batonq.core.shard.columns import counted, joined
from batonq.core.shard.dedup import FOREVER_S, Known
from batonq.core.shard.jobs import Jobs
from batonq.core.shard.producers import RUN_MAX, Produced
from batonq.core.shard.queue_state import QueueState
from batonq.core.spread import parse, takes
from batonq.errors import (
    BatonError,
    DeduplicationConflict,
    IdempotencyConflict,
    InvalidInput,
    NotOwner,
    OverLimit,
)
from batonq.priorities import NORMAL_PRIORITY

REQUEST_WINDOW_MS = 120_000  # after this time an SDK no longer retries a request
INVOCATION_WINDOW_S = REQUEST_WINDOW_MS // 1000
ONCE_WINDOW_MIN_MS = 128_000  # a window this long marks an Idempotency-Key; SDK names have shorter ones
BYTE_MAX = 255  # a record stores each of these values in one byte
GROUPS_CACHED = 65_536
_SHARD_FULL = "The shard's limit of stored messages is reached. Receive and delete some."
_NOT_TAKEN = "The shard had no room for this message when the request was first made. Send it in a new request."
_ELSEWHERE = "The message's key belongs to another shard now, because the queue was moved or got more shards. Retry."
_KEYS_FULL = (
    "The shard's limit of remembered Idempotency-Keys is reached. Send without a key, or retry when keys have expired."
)
PRODUCER_WAITS = (
    "An earlier message of this producer was refused, or the limit of producers is reached. Send again from that "
    "message on."
)
_NEW, _DUPLICATE = 1, 2  # an accepted message of a partly accepted request: a run of one, or a duplicate
_SENT, _REQUESTED, _PRODUCED = int(Type.SENT), int(Type.REQUESTED), int(Type.PRODUCED)
_FIFO, _DEDUPLICATED = int(SentFlag.FIFO), int(SentFlag.DEDUPLICATED)
_DEDUPLICATED_LIVES = _DEDUPLICATED | int(SentFlag.DEDUP_LIVES)

Results = list[Accepted | BatonError]


@lru_cache(maxsize=GROUPS_CACHED)
def group_hash(group: str) -> int:
    """The hash that identifies a message group within a shard; 0 for no group."""
    return key_hash(group) if group else 0


class SendCommands(Jobs):
    def send(self, commands: Sequence[Send], now: int) -> list[Sent]:
        """Send the messages of several requests to one queue; returns one outcome per request. Raises
        QueueDoesNotExist.
        """
        now = self.begin(now)
        queue = self.queue_state(commands[0].queue)
        takes_runs = self._takes_runs(queue)
        outcomes: list[Sent] = []
        run: list[Send] = []
        names: set[int] = set()
        for command in commands:
            request = command.request
            bare = takes_runs and command.bodies and command.is_bare and request not in names
            if bare and (not request or self._is_new(queue, request, now)):
                run.append(command)
                if request:
                    names.add(request)
                continue
            if run:
                outcomes += self._send_run(queue, run, now)
                run = []
                names.clear()
            outcomes.append(self._send_named(queue, command, now))
        if run:
            outcomes += self._send_run(queue, run, now)
        return outcomes

    def _is_new(self, queue: QueueState, request: int, now: int) -> bool:
        """Whether the request name is unknown and this shard accepts its messages without a key."""
        return self.requests.get(request, now // 1000) is None and not self._is_special(queue, request, None)

    def _send_run(self, queue: QueueState, commands: Sequence[Send], now: int) -> list[Sent]:
        """Write the bare messages of several new requests as one run. If the shard has no room for all, try each
        request on its own.
        """
        first = self._write_bare(queue, commands, now)
        if not first:
            if len(commands) > 1:
                return [sent for command in commands for sent in self._send_run(queue, [command], now)]
            return [self._refuse(commands[0], OverLimit(_SHARD_FULL))]
        outcomes: list[Sent] = []
        for command in commands:
            count = len(command.bodies)
            if command.request:
                self._remember(queue.number, command.request, first, count, now)
            outcomes.append(Sent(self.number, first, count))
            first += count
        return outcomes

    def _send_named(self, queue: QueueState, command: Send, now: int) -> Sent:
        if command.once is not None:
            return self._send_once(queue, command, command.once, now)
        if command.request:
            return self._send_requested(queue, command, now)
        return self._take(queue, command, now)

    def _take(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Accept messages, without regard to the name of their request."""
        if not command.bodies:
            return Sent(self.number, 0, 0)
        if command.producer:
            return self._send_numbered(queue, command, now)
        return self._send_rows(queue, command, now)

    def _refuse(self, command: Send, problem: BatonError) -> Sent:
        count = len(command.bodies)
        return Sent(self.number, 0, count, [problem] * count)

    def _each(self, results: Sequence[Accepted | BatonError], replayed: bool = False) -> Sent:
        return Sent(self.number, 0, len(results), results, replayed)

    def _again(self, sequence: int) -> Accepted:
        return Accepted(sequence, message_id(self.number, sequence), True)

    # --- requests named by an SDK ----------------------------------------------------------------------

    def _send_requested(self, queue: QueueState, command: Send, now: int) -> Sent:
        """A repeated request gets the answer of the first one. Messages without a key are accepted only by the
        request's home shard, unless AWAY is set.

        A request without messages asks whether the request is known: the answer has a result if it is, and none if it
        is not. If such a request has AWAY set and is unknown, this shard refuses its messages from then on.
        """
        request, count = command.request, len(command.bodies)
        known = self.requests.get(request, now // 1000)
        if not count:
            if known is None and request & AWAY:
                self._remember(queue.number, request, 0, 0, now)
            return self._each([self._again(known.sequence)] if known is not None and known.sequence else [])
        if known is not None and known.fingerprint == count:
            queue.duplicates += count
            return self._each([self._again(known.sequence + at) for at in range(count)])
        fifo = queue.fifo
        if self._is_special(queue, request, known):
            keyed = [at for at in range(count) if command.key_at(at, fifo)]
            if len(keyed) < count:
                unkeyed = self._unkeyed(queue, request, known, now)
                return self._take_keyed(queue, command, keyed, now, unkeyed)
        before = self.next_sequence
        sent = self._take(queue, command, now)
        taken = self.next_sequence - before
        if taken == count:
            self._remember(queue.number, request, before, count, now)
        elif taken:
            self._remember_parts(queue, command, sent.each, now)
        return sent

    def _take_keyed(
        self,
        queue: QueueState,
        command: Send,
        keyed: Sequence[int],
        now: int,
        unkeyed: Callable[[int], Accepted | BatonError],
    ) -> Sent:
        """Accept the messages that have a key, which identifies them. `unkeyed` gives the result of each other
        message by its index.
        """
        taken = dict(zip(keyed, self._take(queue, command.pick(keyed), now).results(), strict=True))
        return self._each([taken[at] if at in taken else unkeyed(at) for at in range(len(command.bodies))])

    def _unkeyed(
        self, queue: QueueState, request: int, known: Known | None, now: int
    ) -> Callable[[int], Accepted | BatonError]:
        """The result of a message without a key, for a repeated request that was partly accepted, or for one that
        this shard does not accept.
        """

        def told(at: int) -> Accepted | BatonError:
            if known is None or not known.sequence:
                return NotOwner(_ELSEWHERE)
            part = self.requests.get(part_of(request, at), now // 1000)
            if part is None:  # the sender was told that it was refused, or another shard has the message
                return OverLimit(_NOT_TAKEN)
            queue.duplicates += 1
            return self._again(part.sequence)

        return told

    def _remember_parts(
        self, queue: QueueState, command: Send, results: Sequence[Accepted | BatonError], now: int
    ) -> None:
        """Remember which messages without a key were accepted, for a partly accepted request.

        The record of the request comes before the records of its parts, so that the request is never known without
        them.
        """
        taken = {
            at: result.sequence
            for at, result in enumerate(results)
            if isinstance(result, Accepted) and not command.key_at(at, queue.fifo)
        }
        if taken:
            self._remember(queue.number, command.request, min(taken.values()), 0, now)
        for at, sequence in taken.items():
            self._remember(queue.number, part_of(command.request, at), sequence, 1, now)

    def _is_special(self, queue: QueueState, request: int, known: Known | None) -> bool:
        """Whether messages without a key need more than a plain send: the request was partly accepted before, or
        another shard accepts them.
        """
        if known is not None:
            return not known.fingerprint
        spread = queue.policy.spread
        return bool(spread) and 0 < request < AWAY and parse(spread).of_hash(request) != self.number

    def _remember(self, number: int, key: int, first_sequence: int, count: int, now: int) -> None:
        """Remember an SDK's request by the hash of its name. `count` 0 means that the request was partly accepted;
        with `first_sequence` 0 too, this shard does not accept it. At the limit, the oldest name is forgotten early.
        """
        requests = self.requests
        if requests.count(INVOCATION_WINDOW_S) >= self.limits.invocations_max:
            oldest = requests.oldest(INVOCATION_WINDOW_S)
            if oldest and oldest != key:
                self._request(number, oldest, 0, 0, now, 0)
        self._request(number, key, first_sequence, count, now, now + REQUEST_WINDOW_MS)

    def _request(self, number: int, key: int, first_sequence: int, count: int, now: int, until: int) -> None:
        self.frame.add(_REQUESTED | number << 32, first_sequence, now, until, count, key, 0, 0)
        self.requests.put(key, first_sequence, -(-until // 1000), count, now // 1000)

    # --- requests with an Idempotency-Key --------------------------------------------------------------

    def _send_once(self, queue: QueueState, command: Send, once: Once, now: int) -> Sent:
        """Send a request with an Idempotency-Key. The command may have no messages here: then the shard stores only
        the name, for a request whose messages go to other shards.
        """
        number, count = queue.number, len(command.bodies)
        name = key_hash(number, "once", once.name)
        request = key_hash(number, "once", once.name, once.content)
        known = self.requests.get(request, now // 1000)
        if known is not None and known.fingerprint:
            queue.duplicates += count
            return self._each([self._as_first(known.sequence + at) for at in range(count)], replayed=True)
        if known is None:
            problem: BatonError | None = None
            if self.requests.get(name, now // 1000) is not None:
                problem = IdempotencyConflict()
            elif self.requests.full(now // 1000, self.limits.requests_max, INVOCATION_WINDOW_S):
                problem = OverLimit(_KEYS_FULL)
            if problem is not None:
                return self._refuse(command, problem) if count else self._each([problem])
        parts = [part_of(request, at) for at in range(count)] if known is not None else []
        taken = {at: found for at, key in enumerate(parts) if (found := self.requests.get(key, now // 1000))}
        queue.duplicates += len(taken)
        fresh = iter(self._take(queue, command.pick([at for at in range(count) if at not in taken]), now).results())
        results = [self._part_as_first(taken[at]) if at in taken else next(fresh) for at in range(count)]
        run = _run_of(results)
        if run and not taken:
            self._remember_once(number, (name, request), run, count, now, once.window_ms)
            return self._each(results)
        accepted = {at: result for at, result in enumerate(results) if isinstance(result, Accepted) and at not in taken}
        if known is None and (accepted or not count):
            first = next((result.sequence for result in accepted.values()), 0)
            self._remember_once(number, (name, request), first, 0, now, once.window_ms)
        for at, result in accepted.items():
            kind = _DUPLICATE if result.duplicate else _NEW
            self._remember_once(number, (part_of(request, at),), result.sequence, kind, now, once.window_ms)
        return self._each(results, replayed=bool(taken))

    def _as_first(self, sequence: int) -> Accepted:
        """The same answer as the first time."""
        return Accepted(sequence, message_id(self.number, sequence), False)

    def _part_as_first(self, part: Known) -> Accepted:
        """The same answer as the first time, for one message of a partly accepted request."""
        if part.fingerprint != _DUPLICATE:
            return self._as_first(part.sequence)
        return Accepted(part.sequence, message_id(self.number, part.sequence) if part.sequence else "", True)

    def _remember_once(
        self, number: int, keys: Sequence[int], sequence: int, count: int, now: int, window_ms: int
    ) -> None:
        until = now + max(window_ms, ONCE_WINDOW_MIN_MS)
        for key in keys:
            self._request(number, key, sequence, count, now, until)

    # --- messages numbered by a producer ---------------------------------------------------------------

    def _send_numbered(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Send messages that their producer has numbered, in runs of consecutive numbers."""
        turn = _ProducerTurn(producer_key(queue.number, command.producer))
        numbers = command.numbers
        results: Results = []
        start = 0
        while start < len(numbers):
            end = start + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
                end += 1
            results += self._send_consecutive(queue, command.pick(range(start, end)), now, turn)
            start = end
        return self._each(results)

    def _send_consecutive(self, queue: QueueState, command: Send, now: int, turn: _ProducerTurn) -> Results:
        """Send consecutively numbered messages, skipping those that were accepted before.

        After a retryable refusal, all later messages of the request are refused too. If a later number were accepted,
        the refused message would look like a duplicate when it is sent again. For the same reason, after a message that
        has moved to another shard, only messages that have moved too get that answer.
        """
        key, numbers = turn.key, command.numbers
        known = self.producers.get(key, now // 1000)
        old = 0 if known is None else min(max(known.last - numbers[0] + 1, 0), len(numbers))
        results: Results = []
        if known is not None:
            queue.duplicates += old
            results += [self._taken_before(known, number) for number in numbers[:old]]
        command = command.pick(range(old, len(numbers)))
        numbers = command.numbers
        count = len(numbers)
        if not count:
            return results
        if queue.policy.spread and self._producer_is_elsewhere(queue, command):
            turn.moved = True
            return results + [NotOwner(_ELSEWHERE)] * count
        waits = turn.moved and not self._has_moved(queue, command, 0, now)
        if turn.refused or waits or self._no_producer_more(key, now):
            turn.refused = True
            return results + [OverLimit(PRODUCER_WAITS)] * count
        if not command.has_columns and self._takes_runs(queue):
            first = self._write_bare(queue, [command], now)
            if first:
                self._produced(queue.number, key, numbers[-1], first + count - 1, count, now)
                return [*results, *Sent(self.number, first, count).results()]
            turn.refused = True
            return results + [OverLimit(_SHARD_FULL)] * count
        return results + self._send_one_by_one(queue, command, now, turn)

    def _send_one_by_one(self, queue: QueueState, command: Send, now: int, turn: _ProducerTurn) -> Results:
        results: Results = []
        last: Accepted | None = None
        number = run = 0
        for at, own in enumerate(command.numbers):
            if turn.refused or (turn.moved and not self._has_moved(queue, command, at, now)):
                turn.refused = True
                results.append(OverLimit(PRODUCER_WAITS))
                continue
            (result,) = self._send_rows(queue, command.pick([at]), now).results()
            results.append(result)
            if isinstance(result, Accepted):
                follows = last is not None and (own, result.sequence) == (number + 1, last.sequence + 1)
                run = run + 1 if follows else 1
                number, last = own, result
            elif isinstance(result, NotOwner):
                turn.moved = True
            elif result.retryable:
                turn.refused = True
        if last is not None:
            self._produced(queue.number, turn.key, number, last.sequence, run, now)
        return results

    def _taken_before(self, known: Produced, number: int) -> Accepted:
        back = known.last - number
        if back >= known.run:
            return Accepted(0, "", True)
        return self._again(known.message - back)

    def _no_producer_more(self, key: int, now: int) -> bool:
        now_s = now // 1000
        return self.producers.full(now_s, self.limits.producers_max) and self.producers.get(key, now_s) is None

    def _produced(self, queue: int, key: int, number: int, sequence: int, run: int, now: int) -> None:
        expires_s = -(-(now + self.producer_idle_ms) // 1000)
        run = min(run, RUN_MAX)
        self.frame.add(_PRODUCED | queue << 32, sequence, now, number, run, key, 0, expires_s << 32)
        self.producers.put(key, number, sequence, run, expires_s, now // 1000)

    def _producer_is_elsewhere(self, queue: QueueState, command: Send) -> bool:
        """Whether another shard owns all of these messages, when only the producer decides the shard."""
        if queue.fifo or any(command.dedup_ids):
            return False
        return self._belongs_elsewhere(queue, command, 0)

    def _belongs_elsewhere(self, queue: QueueState, command: Send, at: int) -> bool:
        """Whether the key of a new message belongs to another shard since the queue grew."""
        if queue.fifo:
            return self.has_moved(queue, group_hash(command.groups[at] if command.groups else "") or key_hash(""))
        key = command.key_at(at, fifo=False)
        if not key:
            return not takes(queue.policy.spread, self.number)
        return parse(queue.policy.spread).of_key(key) != self.number

    def _has_moved(self, queue: QueueState, command: Send, at: int, now: int) -> bool:
        """Whether this shard would refuse a message because it belongs to another shard: the message is unknown
        here, and so is not a duplicate.
        """
        key = self._dedup_key(queue, command, at)
        known = bool(key) and self._known_by_id(queue, key, now) is not None
        return not known and self._belongs_elsewhere(queue, command, at)

    def _known_by_id(self, queue: QueueState, key: int, now: int) -> Known | None:
        """The message with this deduplication id, or None. Ids that a purge has forgotten are not found. An
        exception is a message that survived the purge (on its way to another shard) and whose id lives as long as the
        message.
        """
        known = self.dedup.get(key, now // 1000)
        if known is None or (known.sequence < queue.forgotten_below and known.expires_s != FOREVER_S):
            return None
        return known

    # --- writing ---------------------------------------------------------------------------------------

    def _takes_runs(self, queue: QueueState) -> bool:
        """Whether messages with only a body are accepted without a decision per message."""
        policy = queue.policy
        if queue.fifo or policy.delay_ms or policy.messages_max or policy.bytes_max:
            return False
        return takes(policy.spread, self.number)

    def _write_bare(self, queue: QueueState, commands: Sequence[Send], now: int) -> int:
        """Write messages with only a body as one run; returns the first sequence, or 0 if the shard is full."""
        columns = self.columns
        count = sum([len(command.bodies) for command in commands])
        slots = columns.take_run(count)
        if slots[-1] >= self.limits.slots_max and self._living() + count > self.limits.slots_max:
            columns.give_back_run(slots)
            return 0
        frame = self.frame
        lengths = array("I")
        for command in commands:
            parts, header_bytes = bare_parts(command, now)
            frame.parts += parts
            lengths.extend([header_bytes + length for length in map(len, command.bodies)])
        expires_s = -(-(now + queue.policy.retention_ms) // 1000)
        # The rows start as copies of the shared values; the columns that differ are then written over them.
        rows = array("Q", (_SENT | NORMAL_PRIORITY << 16 | queue.number << 32, 0, now, now, 0, 0, 0, 0)) * count
        expires = array("I", (expires_s,)) * count
        priorities = array("B", (NORMAL_PRIORITY,)) * count
        return self._write(queue, slots, rows, lengths, now, expires, priorities, None, None, None)

    def _send_rows(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Send messages of any kind: decide per message, then write the accepted messages as columns."""
        columns, policy, bodies = self.columns, queue.policy, command.bodies
        count, now_s = len(bodies), now // 1000
        slots = columns.take_run(count)
        room = count
        if slots[-1] >= self.limits.slots_max:
            below = sum([slot < self.limits.slots_max for slot in slots])
            room = max(below, self.limits.slots_max - self._living())
        first = self.next_sequence
        results: Results = []
        places: list[int] = []
        heads: list[bytes] = []
        keys: list[int] = []
        size = 0
        limited = bool(policy.messages_max or policy.bytes_max)
        priorities, maxima, spread = command.priorities, command.max_receives, policy.spread
        for at, body in enumerate(bodies):
            if (priorities and not 0 <= priorities[at] <= BYTE_MAX) or (maxima and not 0 <= maxima[at] <= BYTE_MAX):
                text = f"The maximum number of receives and the priority of a message must be 0 to {BYTE_MAX}."
                results.append(InvalidInput(text))
                continue
            key = self._dedup_key(queue, command, at)
            mark = 0
            if key:
                mark = content_mark_of(command, at)
                known = self._known_by_id(queue, key, now)
                if known is not None:
                    results.append(self._deduplicated(queue, known, command, at, mark))
                    continue
                if self.dedup.full(now_s, self.limits.dedup_entries_max):
                    text = "The limit of remembered deduplication keys is reached. Retry later, or shorten the window."
                    results.append(OverLimit(text))
                    continue
            if spread and self._belongs_elsewhere(queue, command, at):
                results.append(NotOwner(_ELSEWHERE))
                continue
            head = head_of(command, at, now)
            if limited:
                full = self._full(queue, len(head) + len(body), len(places), size)
                if full:
                    results.append(OverLimit(full))
                    continue
            taken = len(places)
            if taken >= room:
                results.append(OverLimit(_SHARD_FULL))
                continue
            sequence = first + taken
            if key:
                self._on_dedup(queue, slots[taken], sequence, now, key, mark, policy.dedup_lives)
            places.append(at)
            heads.append(head)
            keys.append(key)
            size += len(head) + len(body)
            results.append(Accepted(sequence, message_id(self.number, sequence), False))
        if len(places) < count:
            columns.give_back_run(slots[len(places) :])
            slots = slots[: len(places)]
        if places:
            self._write_rows(queue, command.pick(places), slots, heads, keys, now)
        return Sent(self.number, first, count) if len(places) == count else self._each(results)

    def _deduplicated(
        self, queue: QueueState, known: Known, command: Send, at: int, mark: int
    ) -> Accepted | BatonError:
        if command.strict and command.strict[at] and known.fingerprint != mark:
            return DeduplicationConflict()
        queue.duplicates += 1
        return self._again(known.sequence)

    def _write_rows(
        self,
        queue: QueueState,
        command: Send,
        slots: Sequence[int],
        heads: Sequence[bytes],
        keys: Sequence[int],
        now: int,
    ) -> None:
        """Write accepted messages, in the order of their slots."""
        policy, bodies = queue.policy, command.bodies
        count = len(bodies)
        parts = [b""] * (2 * count)
        parts[0::2] = heads
        parts[1::2] = bodies
        self.frame.parts += parts
        lengths = array("I", [len(head) + len(body) for head, body in zip(heads, bodies, strict=True)])
        w0 = _SENT | (_FIFO << 8 if queue.fifo else 0) | queue.number << 32
        rows = array("Q", (w0 | NORMAL_PRIORITY << 16, 0, now, now, 0, 0, 0, 0)) * count
        priorities = array("B", command.priorities or (NORMAL_PRIORITY,) * count)
        maxima = command.max_receives if any(command.max_receives) else None
        has_keys = any(keys)
        if has_keys or maxima or command.priorities:
            known = (_DEDUPLICATED_LIVES if policy.dedup_lives else _DEDUPLICATED) << 8
            heads_column = [
                w0 | (known if key else 0) | priority << 16 | maximum << 24
                for key, priority, maximum in zip(keys, priorities, maxima or bytes(count), strict=True)
            ]
            rows[0::8] = array("Q", heads_column)
        if has_keys:
            rows[5::8] = array("Q", keys)
        groups = None
        if any(command.groups):
            groups = array("Q", map(group_hash, command.groups))
            rows[4::8] = groups
        delays = [policy.delay_ms if delay is None else delay for delay in command.delays_ms]
        visibles = None
        if any(delays) or (policy.delay_ms and not delays):
            visibles = array("Q", [now + delay for delay in delays] or [now + policy.delay_ms] * count)
            rows[3::8] = visibles
        ttls = [policy.retention_ms if ttl is None else ttl for ttl in command.ttls_ms] or [policy.retention_ms] * count
        expires = array("I", [-(-(when + ttl) // 1000) for when, ttl in zip(rows[3::8], ttls, strict=True)])
        self._write(queue, slots, rows, lengths, now, expires, priorities, visibles, groups, maxima)

    def _write(
        self,
        queue: QueueState,
        slots: Sequence[int],
        rows: array[int],
        lengths: array[int],
        now: int,
        expires: array[int],
        priorities: array[int],
        visibles: array[int] | None,
        groups: array[int] | None,
        maxima: Sequence[int] | None,
    ) -> int:
        """Complete the rows of new messages, whose payloads are already in the frame, and apply them; returns the
        first sequence.
        """
        frame = self.frame
        first, count = self.next_sequence, len(slots)
        position = frame.number << 16 | len(frame.rows) >> 3
        offset = frame.variable_bytes
        offsets = array("I", accumulate(lengths, initial=offset))
        frame.variable_bytes = offsets.pop()
        extents = joined(offsets, lengths)
        sequences = counted("Q", range(first, first + count))
        rows[1::8] = sequences
        rows[6::8] = extents
        rows[7::8] = joined(counted("I", slots) if isinstance(slots, range) else array("I", slots), expires)
        frame.extend(rows)
        size = frame.variable_bytes - offset
        self._on_sends(
            queue, slots, sequences, now, expires, priorities, position, extents, size, visibles, groups, maxima
        )
        return first

    def _living(self) -> int:
        """The number of messages in the shard. Arrivals from other shards are not limited, so slots beyond the limit
        can become free. The limit therefore applies to messages, which are counted only when the next free slot is
        beyond it.
        """
        return sum(queue.messages for queue in self.queues.values())

    def _dedup_key(self, queue: QueueState, command: Send, at: int) -> int:
        """The hash of a message's deduplication id; 0 if it has none."""
        dedup_id = command.dedup_ids[at] if command.dedup_ids else ""
        if not dedup_id:
            return 0
        scope = command.groups[at] if queue.policy.dedup_per_group and command.groups else ""
        return key_hash(queue.number, queue.dedup_generation, scope, dedup_id)


class _ProducerTurn:
    """What has happened so far to a producer's messages in one request."""

    __slots__ = ("key", "moved", "refused")

    def __init__(self, key: int) -> None:
        self.key = key
        self.refused = False
        self.moved = False


def _run_of(results: Sequence[Accepted | BatonError]) -> int:
    """The first sequence if all results are new messages with consecutive sequences; otherwise 0."""
    first = results[0].sequence if results and isinstance(results[0], Accepted) else 0
    for at, result in enumerate(results):
        if not isinstance(result, Accepted) or result.duplicate or result.sequence != first + at:
            return 0
    return first


def part_of(request: int, at: int) -> int:
    """The key of one message of a partly accepted request."""
    return key_hash(request, "part", at)


def producer_key(queue: int, producer: str) -> int:
    return key_hash(queue, "producer", producer)
