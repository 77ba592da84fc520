"""What the checkers read, and what several of them need: above all, leases as their holders see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from batonq.core.ids import parse_message_id
from batonq.core.shard.commands.remembered_requests import SDK_NAME_WINDOW_MS
from batonq.core.spread import NUMBER_BITS, Spread
from sim.history import OK, Answer, Delivered, History, Holding, Outgoing, Receiving, Sending
from sim.ledger import Copy, Ledger

Finding = tuple[str, tuple[str, ...]]  # what is wrong, and words that select the lines about it


@dataclass(slots=True, frozen=True)
class QueueFacts:
    """A queue as it was created. A re-created name is another queue; `name` tells the two apart."""

    name: str
    called: str
    number: int
    shard: int
    fifo: bool = False
    strict: bool = False
    delay_ms: int = 0
    visibility_ms: int = 30_000
    dedup_window_ms: int = 300_000
    dedup_per_group: bool = False
    dedup_lives: bool = False
    once_window_ms: int = 86_400_000  # how long an Idempotency-Key is remembered
    forgets_invocations: bool = False  # invocations of SDKs are forgotten when there are very many: here, all the time
    shards: tuple[int, ...] = ()  # all shards that it has at the end, in order; none: only the first

    def number_of(self, copy: Copy) -> int:
        """The number of a message in the queue, see core/spread.py."""
        return Spread(self.shards or (self.shard,)).numbers_from(copy.shard) + copy.sequence


@dataclass(slots=True)
class HeldLease:
    """One lease as its holder knows it: the deliveries under its receipt (several for a repeated attempt), and the uses
    of it.
    """

    receipt: str
    first: Delivered
    receives: list[tuple[Receiving, Delivered]] = field(default_factory=list)
    uses: list[Holding] = field(default_factory=list)

    @property
    def told_s(self) -> float:
        """When the holder first knew."""
        return self.receives[0][0].ended_s

    def held_until_ms(self, seen_s: float, without: Holding | None = None) -> int:
        """The shard time until which the lease certainly lasted, judged by what its holder did before `seen_s`.

        An extension counts only if it was answered while the lease certainly lasted, with no other use in progress. Any
        use that may have ended the lease counts from the moment of its request.
        """
        uses = [
            use
            for use in self.uses
            if use is not without and use.started_s <= seen_s and (use.outcome == OK or use.uncertain)
        ]
        changes = [use for use in uses if use.kind == "change" and use.value_ms]
        steps: list[tuple[float, Holding | Delivered]] = [
            *((call.ended_s, delivered) for call, delivered in self.receives if call.ended_s <= seen_s),
            *((change.started_s, change) for change in changes),
        ]
        steps.sort(key=lambda step: step[0])
        until_ms = -1
        for _, step in steps:
            if isinstance(step, Delivered):
                until_ms = step.deadline_ms
                continue
            asked_ms = step.started_ms + step.value_ms
            alone = not any(step is not other and _overlap(step, other) for other in changes)
            surely = step.outcome == OK and step.ended_ms < until_ms and alone
            until_ms = asked_ms if surely else min(until_ms, asked_ms)
        return min([until_ms, *(use.started_ms for use in uses if use not in changes)])


def _overlap(one: Holding, other: Holding) -> bool:
    return one.started_s <= other.ended_s and other.started_s <= one.ended_s


class Evidence:
    """The history and books of a run, with the look-ups that the checkers share."""

    def __init__(self, history: History, ledger: Ledger, queues: list[QueueFacts]) -> None:
        self.history = history
        self.ledger = ledger
        self.queues = {facts.name: facts for facts in queues}
        self.queue_names = {facts.number: facts.name for facts in queues}
        self.messages: dict[int, Outgoing] = {}
        self.home: dict[int, str] = {}  # message → the queue that it was sent to
        self.tries: dict[int, list[Sending]] = {}  # message → the calls that sent it
        for call in history.of(Sending):
            for message in call.messages:
                self.messages[message.number] = message
                self.home[message.number] = call.queue
                self.tries.setdefault(message.number, []).append(call)
            if call.once:
                call.answers = [self._told(*one) for one in zip(call.messages, call.answers, strict=False)]
        self.leases = self._leases()
        self._by_copy = self._group_by_copy()
        self.copies = ledger.by_number()
        self.made_again = {number for number, copies in self.copies.items() if self._may_be_made_again(number, copies)}

    def _told(self, message: Outgoing, answer: Answer) -> Answer:
        """The answer with `duplicate` set from the books: a repeated named request gets the first answer, without that
        flag.
        """
        place = parse_message_id(answer.message_id)
        book = self.ledger.books.get(place[0]) if place is not None else None
        copy = book.copies.get(sequence_of(answer.sequence)) if book is not None else None
        return replace(answer, duplicate=copy is not None and copy.number != message.number)

    def _leases(self) -> dict[str, HeldLease]:
        leases: dict[str, HeldLease] = {}
        for call, delivered in self.history.deliveries():
            lease = leases.setdefault(delivered.receipt, HeldLease(delivered.receipt, delivered))
            lease.receives.append((call, delivered))
        for use in self.history.of(Holding):
            if use.receipt in leases:
                leases[use.receipt].uses.append(use)
        return leases

    def leases_by_copy(self) -> Iterator[list[HeldLease]]:
        """The leases of each message in each queue, in the order in which they began."""
        yield from self._by_copy.values()

    def _group_by_copy(self) -> dict[tuple[str, str], list[HeldLease]]:
        found: dict[tuple[str, str], list[HeldLease]] = {}
        for lease in self.leases.values():
            found.setdefault((lease.first.queue, lease.first.message_id), []).append(lease)
        for leases in found.values():
            leases.sort(key=lambda lease: (lease.first.began_ms, lease.told_s))
        return found

    def _may_be_made_again(self, number: int, copies: list[Copy]) -> bool:
        """Whether the first request may have been forgotten when it was repeated.

        A request is remembered for a while. A request that contained a duplicate is not remembered; then only the keys
        are, for their windows. A request with an Idempotency-Key is always remembered, and an SDK's invocation is
        forgotten when too many follow it.
        """
        made = [copy for copy in copies if copy.source is None]
        message = self.messages.get(number)
        if message is None:
            return False
        facts = self.queues[self.home[number]]
        window_ms = facts.dedup_window_ms if message.dedup_id else SDK_NAME_WINDOW_MS
        first = self.tries[number][0]
        if not (first.invocation or first.producer):
            return False  # it was sent only once
        if first.once:
            window_ms = facts.once_window_ms
        elif facts.forgets_invocations and not message.dedup_id and not first.producer:
            window_ms = 0
        made.sort(key=lambda copy: copy.born_ms)
        by_key = bool(message.dedup_id) and not first.once
        while_alive = by_key and facts.dedup_lives
        apart = all(
            (not before.lives_at(later.born_ms) if while_alive else later.born_ms - before.born_ms >= window_ms)
            or (by_key and self.forgets_key(before, later))
            for before, later in pairwise(made)
        )
        return len(made) > 1 and apart

    def forgets_key(self, before: Copy, later: Copy) -> bool:
        """Whether the key of a message was forgotten when the later one was sent: the end of a purge forgets all keys
        of its queue.
        """
        ends_ms = self.ledger.book(before.shard).purge_ends_ms.get(before.queue, ())
        return any(before.born_ms <= end_ms <= later.born_ms for end_ms in ends_ms)

    def rivals(self, lease: HeldLease) -> Iterator[HeldLease]:
        """The other leases of the same message in the same queue."""
        for other in self._by_copy[lease.first.queue, lease.first.message_id]:
            if other.receipt != lease.receipt:
                yield other

    def superseded(self, lease: HeldLease, use: Holding) -> bool:
        """Whether another consumer had been told of a newer lease of the message when the holder made its request."""
        return any(
            other.first.began_ms > lease.first.began_ms and other.told_s < use.started_s for other in self.rivals(lease)
        )

    def copy_of(self, delivered: Delivered) -> Copy | None:
        """The copy that was delivered."""
        first = self.queues[delivered.queue].shard
        book = self.ledger.books.get(first if delivered.shard is None else delivered.shard)
        return book.copies.get(sequence_of(delivered.sequence)) if book is not None else None


def sequence_of(number: int) -> int:
    """The sequence in its shard of the message that has this number in its queue."""
    return number & ((1 << NUMBER_BITS) - 1)


def about(text: str, *numbers: int) -> Finding:
    """A finding about these messages, with words that occur in every line about them."""
    return text, tuple(word for number in numbers for word in (f"#{number} ", f"#{number},", f"#{number}]"))
