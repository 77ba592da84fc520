"""Requests that are recognised when they are repeated, and get the answer of the first time.

A request is recognised by the hash of the name that an SDK gave it (remembered for two minutes), or by its
Idempotency-Key (remembered for hours). A producer's messages need no names: see numbered_sends.py.

- One table holds both kinds of names, with a separate limit for each kind. If all messages of a named request were
  accepted, the table stores the request as one run. If only some were accepted, the table stores each accepted message.
- If the table holds too many SDK names, the oldest one is forgotten early. If it holds too many Idempotency-Keys, a
  request with a new key is refused, because a key must be remembered for its promised time.
- An Idempotency-Key is stored under two hashes: one of the name, one of the name and the content. A known name with
  different content is a conflict. A message that was a duplicate by its deduplication id counts as accepted, because
  the shard may forget that id before it forgets the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batonq.core.commands import Accepted, Once, Send, Sent
from batonq.core.ids import AWAY, key_hash, message_id
from batonq.core.records import Type
from batonq.core.shard.commands.new_messages import ELSEWHERE, outcome, refused, taken_before
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.state.dedup_table import DedupTable, Known
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.spread import parse
from batonq.errors import BatonError, IdempotencyConflict, NotOwner, OverLimit

SDK_NAME_WINDOW_MS = 120_000  # after this time an SDK no longer retries a request
SDK_NAME_WINDOW_S = SDK_NAME_WINDOW_MS // 1000
ONCE_WINDOW_MIN_MS = 128_000  # a window this long marks an Idempotency-Key; SDK names have shorter ones
_NOT_TAKEN = "The shard had no room for this message when the request was first made. Send it in a new request."
_KEYS_FULL = (
    "The shard's limit of remembered Idempotency-Keys is reached. Send without a key, or retry when keys have expired."
)
_NEW, _DUPLICATE = 1, 2  # an accepted message of a partly accepted request: a run of one, or a duplicate
_REQUESTED = int(Type.REQUESTED)


class RememberedRequests:
    def __init__(self, messages: Messages, numbered: NumberedSends) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.numbered = numbered
        self.table = DedupTable()

    # --- requests named by an SDK ----------------------------------------------------------------------

    def is_new(self, queue: QueueState, request: int, now: int) -> bool:
        """Whether the request name is unknown and this shard accepts its messages without a key."""
        return self.table.get(request, now // 1000) is None and not self.is_special(queue, request, None)

    def send_named(self, queue: QueueState, command: Send, now: int) -> Sent:
        """A repeated request gets the answer of the first one. Messages without a key are accepted only by the
        request's home shard, unless AWAY is set.

        A request without messages asks whether the request is known: the answer has a result if it is, and none if it
        is not. If such a request has AWAY set and is unknown, this shard refuses its messages from then on.
        """
        request, count = command.request, len(command.bodies)
        known = self.table.get(request, now // 1000)
        if not count:
            if known is None and request & AWAY:
                self.remember(queue.number, request, 0, 0, now)
            return outcome(
                self.number, [taken_before(self.number, known.sequence)] if known is not None and known.sequence else []
            )
        if known is not None and known.fingerprint == count:
            queue.duplicates += count
            return outcome(self.number, [taken_before(self.number, known.sequence + at) for at in range(count)])
        fifo = queue.fifo
        if self.is_special(queue, request, known):
            keyed = [at for at in range(count) if command.key_at(at, fifo)]
            if len(keyed) < count:
                unkeyed = self._unkeyed(queue, request, known, now)
                return self._take_keyed(queue, command, keyed, now, unkeyed)
        before = self.journal.next_sequence
        sent = self.numbered.take(queue, command, now)
        first = sent.first or _run_of(sent.each)
        if first:
            self.remember(queue.number, request, first, count, now)
        elif self.journal.next_sequence > before:
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
        taken = dict(zip(keyed, self.numbered.take(queue, command.pick(keyed), now).results(), strict=True))
        return outcome(self.number, [taken[at] if at in taken else unkeyed(at) for at in range(len(command.bodies))])

    def _unkeyed(
        self, queue: QueueState, request: int, known: Known | None, now: int
    ) -> Callable[[int], Accepted | BatonError]:
        """The result of a message without a key, for a repeated request that was partly accepted, or for one that
        this shard does not accept.
        """

        def told(at: int) -> Accepted | BatonError:
            if known is None or not known.sequence:
                return NotOwner(ELSEWHERE)
            part = self.table.get(part_of(request, at), now // 1000)
            if part is None:  # the sender was told that it was refused, or another shard has the message
                return OverLimit(_NOT_TAKEN)
            queue.duplicates += 1
            return taken_before(self.number, part.sequence)

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
            self.remember(queue.number, command.request, min(taken.values()), 0, now)
        for at, sequence in taken.items():
            self.remember(queue.number, part_of(command.request, at), sequence, 1, now)

    def is_special(self, queue: QueueState, request: int, known: Known | None) -> bool:
        """Whether messages without a key need more than a plain send: the request was partly accepted before, or
        another shard accepts them.
        """
        if known is not None:
            return not known.fingerprint
        spread = queue.policy.spread
        return bool(spread) and 0 < request < AWAY and parse(spread).of_hash(request) != self.number

    def remember(self, number: int, key: int, first_sequence: int, count: int, now: int) -> None:
        """Remember an SDK's request by the hash of its name. `count` 0 means that the request was partly accepted;
        with `first_sequence` 0 too, this shard does not accept it. At the limit, the oldest name is forgotten early.
        """
        requests = self.table
        if requests.count(SDK_NAME_WINDOW_S) >= self.journal.limits.sdk_names_max:
            oldest = requests.oldest(SDK_NAME_WINDOW_S)
            if oldest and oldest != key:
                self._request(number, oldest, 0, 0, now, 0)
        self._request(number, key, first_sequence, count, now, now + SDK_NAME_WINDOW_MS)

    def _request(self, number: int, key: int, first_sequence: int, count: int, now: int, until: int) -> None:
        self.frame.add(_REQUESTED | number << 32, first_sequence, now, until, count, key, 0, 0)
        self.on_requested(key, first_sequence, now, until, count)

    def on_requested(self, key: int, first_sequence: int, time: int, until: int, count: int) -> None:
        self.table.put(key, first_sequence, -(-until // 1000), count, time // 1000)

    # --- requests with an Idempotency-Key --------------------------------------------------------------

    def send_once(self, queue: QueueState, command: Send, once: Once, now: int) -> Sent:
        """Send a request with an Idempotency-Key. The command may have no messages here: then the shard stores only
        the name, for a request whose messages go to other shards.
        """
        number, count = queue.number, len(command.bodies)
        name = key_hash(number, "once", once.name)
        request = key_hash(number, "once", once.name, once.content)
        known = self.table.get(request, now // 1000)
        if known is not None and known.fingerprint:
            queue.duplicates += count
            return outcome(self.number, [self._as_first(known.sequence + at) for at in range(count)], replayed=True)
        if known is None:
            problem: BatonError | None = None
            if self.table.get(name, now // 1000) is not None:
                problem = IdempotencyConflict()
            elif self.table.full(now // 1000, self.journal.limits.idempotency_keys_max, SDK_NAME_WINDOW_S):
                problem = OverLimit(_KEYS_FULL)
            if problem is not None:
                return refused(self.number, command, problem) if count else outcome(self.number, [problem])
        parts = [part_of(request, at) for at in range(count)] if known is not None else []
        taken = {at: found for at, key in enumerate(parts) if (found := self.table.get(key, now // 1000))}
        queue.duplicates += len(taken)
        fresh = iter(
            self.numbered.take(queue, command.pick([at for at in range(count) if at not in taken]), now).results()
        )
        results = [self._part_as_first(taken[at]) if at in taken else next(fresh) for at in range(count)]
        run = _run_of(results)
        if run and not taken:
            self._remember_once(number, (name, request), run, count, now, once.window_ms)
            return outcome(self.number, results)
        accepted = {at: result for at, result in enumerate(results) if isinstance(result, Accepted) and at not in taken}
        if known is None and (accepted or not count):
            first = next((result.sequence for result in accepted.values()), 0)
            self._remember_once(number, (name, request), first, 0, now, once.window_ms)
        for at, result in accepted.items():
            kind = _DUPLICATE if result.duplicate else _NEW
            self._remember_once(number, (part_of(request, at),), result.sequence, kind, now, once.window_ms)
        return outcome(self.number, results, replayed=bool(taken))

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
