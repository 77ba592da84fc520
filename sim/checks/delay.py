"""Delay: no message is visible early, and no second message of a deduplication key is accepted within its window."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.ids import parse_message_id
from sim.checks.evidence import Evidence, Finding, QueueFacts, about, sequence_of
from sim.history import OK, Outgoing, Sending
from sim.ledger import Copy

ROUNDING_MS = 1_000  # windows end on whole seconds


def check(evidence: Evidence) -> Iterator[Finding]:
    yield from _early(evidence)
    yield from _after_nack(evidence)
    for facts in evidence.queues.values():
        yield from _second_messages(evidence, facts)
    yield from _false_duplicates(evidence)


def _early(evidence: Evidence) -> Iterator[Finding]:
    for call, delivered in evidence.history.deliveries():
        message = evidence.messages.get(delivered.number)
        copy = evidence.copy_of(delivered)
        if message is None or copy is None or copy.source is not None:
            continue
        facts = evidence.queues[call.queue]
        delay_ms = facts.delay_ms if message.delay_ms is None else message.delay_ms
        if delivered.began_ms < delivered.sent_ms + delay_ms:
            yield about(
                f"message #{delivered.number} of {call.queue}, sent at {delivered.sent_ms} with a delay of {delay_ms}, "
                f"was delivered at {delivered.began_ms} (call {call.number})",
                delivered.number,
            )


def _after_nack(evidence: Evidence) -> Iterator[Finding]:
    for leases in evidence.leases_by_copy():
        for at, lease in enumerate(leases):
            for use in lease.uses:
                if use.kind != "nack" or use.outcome != OK or use.dead_letter:
                    continue
                for later in leases[at + 1 :]:
                    if later.first.began_ms < use.started_ms + use.value_ms:
                        yield about(
                            f"message #{lease.first.number} of {lease.first.queue} was nacked at {use.started_ms} for "
                            f"{use.value_ms} ms (call {use.number}), and leased at {later.first.began_ms}",
                            lease.first.number,
                        )


def _scope(facts: QueueFacts, message: Outgoing) -> tuple[str, str]:
    return (message.group if facts.dedup_per_group else "", message.dedup_id)


def _second_messages(evidence: Evidence, facts: QueueFacts) -> Iterator[Finding]:
    made = [copy for book in evidence.ledger.books.values() for copy in book.copies.values()]
    first: dict[tuple[str, str], Copy] = {}
    for copy in sorted(made, key=lambda copy: (copy.born_ms, copy.shard, copy.sequence)):
        message = evidence.messages.get(copy.number)
        if copy.queue != facts.number or copy.source is not None or message is None or not message.dedup_id:
            continue
        before = first.get(_scope(facts, message))
        first[_scope(facts, message)] = copy
        if before is None or evidence.forgets_key(before, copy):
            continue
        in_window = copy.born_ms < before.born_ms + facts.dedup_window_ms
        if before.lives_at(copy.born_ms) if facts.dedup_lives else in_window:
            yield about(
                f"{facts.name}: key {message.dedup_id} made message #{before.number} at {before.born_ms} and "
                f"#{copy.number} at {copy.born_ms}, within its window",
                before.number,
                copy.number,
            )


def _false_duplicates(evidence: Evidence) -> Iterator[Finding]:
    """A sender that is told of a duplicate is told of a message with the same key that counted at that time."""
    for call in evidence.history.of(Sending):
        facts = evidence.queues[call.queue]
        for message, answer in zip(call.messages, call.answers, strict=False):
            if answer.outcome != OK or not answer.duplicate:
                continue
            place = parse_message_id(answer.message_id)
            book = evidence.ledger.books.get(facts.shard if place is None else place[0])
            # A duplicate by number, when the id of the first message is no longer known.
            untold = bool(call.producer) and not answer.sequence
            if untold and (evidence.copies.get(message.number) or _has_counted(evidence, facts, message)):
                continue
            tries = evidence.tries[message.number] if call.producer or call.once else [call]
            copy = book.copies.get(sequence_of(answer.sequence)) if book is not None else None
            original = evidence.messages.get(copy.number) if copy is not None else None
            if (
                copy is not None
                and original is not None
                and any(_counts(facts, one, message, original, copy) for one in tries)
            ):
                continue
            yield about(
                f"{call.queue}: #{message.number} was called a duplicate of sequence {answer.sequence} "
                f"(call {call.number}), which is {copy}",
                message.number,
            )


def _has_counted(evidence: Evidence, facts: QueueFacts, message: Outgoing) -> bool:
    """Whether a message with the same key counted when this one was first sent, or later."""
    if not message.dedup_id:
        return False
    first = evidence.tries[message.number][0]
    return any(
        copy.queue == facts.number and _counts(facts, first, message, original, copy)
        for original in evidence.messages.values()
        if original.dedup_id and _scope(facts, original) == _scope(facts, message)
        for copy in evidence.copies.get(original.number, ())
    )


def _counts(facts: QueueFacts, call: Sending, message: Outgoing, original: Outgoing, copy: Copy) -> bool:
    if original.number == message.number:
        return True  # the retry of a request
    if _scope(facts, message) != _scope(facts, original):
        return False
    if facts.dedup_lives:
        return copy.may_live_at(call.started_ms - 1)
    return call.started_ms <= copy.born_ms + facts.dedup_window_ms + ROUNDING_MS
