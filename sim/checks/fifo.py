"""FIFO: groups are in order, no message passes one in flight in its group, and sequences follow the order of sends."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.spread import NUMBER_BITS
from sim.checks.evidence import Evidence, Finding, HeldLease, QueueFacts, about
from sim.history import OK, Delivered, Outgoing, Sending
from sim.ledger import Copy


def check(evidence: Evidence) -> Iterator[Finding]:
    for facts in evidence.queues.values():
        if facts.fifo:
            yield from _order(evidence, facts)
            yield from _exclusion(evidence, facts)
            yield from _sequences(evidence, facts)


def _groups(evidence: Evidence, facts: QueueFacts) -> dict[str, list[Copy]]:
    groups: dict[str, list[Copy]] = {}
    for book in evidence.ledger.books.values():
        for copy in book.copies.values():
            if copy.queue == facts.number and copy.number in evidence.messages:
                groups.setdefault(evidence.messages[copy.number].group, []).append(copy)
    return groups


def _order(evidence: Evidence, facts: QueueFacts) -> Iterator[Finding]:
    """A message is delivered only when all earlier ones of its group are gone, or precede it in the same receive."""
    groups = _groups(evidence, facts)
    for call, delivered in evidence.history.deliveries():
        if call.queue != facts.name:
            continue
        places = {other.sequence: at for at, other in enumerate(call.deliveries)}
        for copy in groups.get(delivered.group, ()):
            number = facts.number_of(copy)
            if number >= delivered.sequence or _is_out_of_the_way(evidence, copy, delivered):
                continue
            if places.get(number, len(places)) > places[delivered.sequence]:
                yield about(
                    f"{facts.name}, group {delivered.group}: message #{delivered.number} (sequence "
                    f"{delivered.sequence}) went out at {delivered.began_ms} (call {call.number}) before "
                    f"#{copy.number} (sequence {number})",
                    delivered.number,
                    copy.number,
                )


def _is_out_of_the_way(evidence: Evidence, copy: Copy, delivered: Delivered) -> bool:
    """Whether an earlier message no longer blocks a delivery. On one shard, the shard's time decides. The clocks of two
    shards may differ, so there the order of commits decides.
    """
    at_ms = delivered.began_ms
    other = evidence.copy_of(delivered)
    if other is None or other.shard == copy.shard:
        return (bool(copy.end) and copy.ended_ms <= at_ms) or 0 <= copy.dead_ms <= at_ms
    # A receive that is repeated within its attempt returns the existing lease, with a new start time.
    leased_at = max((lease.place for lease in other.leases if lease.began_ms <= at_ms), default=-1)
    return 0 <= copy.gone_at < leased_at


def _exclusion(evidence: Evidence, facts: QueueFacts) -> Iterator[Finding]:
    """While a message is held, no other receive gets a later message of its group.

    Earlier messages may be delivered again, when the held one was extended and their leases expired. On another shard
    they are gone: see `_order`.
    """
    groups: dict[str, list[HeldLease]] = {}
    for lease in evidence.leases.values():
        if lease.first.queue == facts.name:
            groups.setdefault(lease.first.group, []).append(lease)
    for group, leases in groups.items():
        leases.sort(key=lambda lease: (lease.first.began_ms, lease.told_s))
        for at, later in enumerate(leases):
            for earlier in leases[:at]:
                if earlier.first.call == later.first.call or earlier.first.sequence >= later.first.sequence:
                    continue
                if earlier.first.shard != later.first.shard:
                    continue
                until_ms = _group_locked_until_ms(evidence, earlier, later)
                if later.first.began_ms < until_ms:
                    yield about(
                        f"{facts.name}, group {group}: call {later.first.call} got #{later.first.number} at "
                        f"{later.first.began_ms}, while #{earlier.first.number} was with call {earlier.first.call} "
                        f"until {until_ms}",
                        later.first.number,
                        earlier.first.number,
                    )


def _group_locked_until_ms(evidence: Evidence, earlier: HeldLease, later: HeldLease) -> int:
    """When the group is unlocked: a message that expired or was moved during its lease no longer locks its group."""
    until_ms = earlier.held_until_ms(later.told_s)
    copy = evidence.copy_of(earlier.first)
    if copy is not None and copy.end in ("expired", "moved", "purged"):
        until_ms = min(until_ms, copy.ended_ms)
    return until_ms


def _sequences(evidence: Evidence, facts: QueueFacts) -> Iterator[Finding]:
    """A send that was answered before another began has the lower number, if both have the same group or the same
    shard.

    An arrival from another shard is not a send. A retry returns the result of its first attempt, so it counts from the
    start of that attempt.
    """
    answered: list[tuple[float, Outgoing, int]] = []
    asked_s: dict[str, float] = {}
    for call in evidence.history.of(Sending):
        if call.invocation:
            asked_s[call.invocation] = min(call.started_s, asked_s.get(call.invocation, call.started_s))
    calls = sorted(
        (call for call in evidence.history.of(Sending) if call.queue == facts.name and call.outcome == OK),
        key=lambda call: call.ended_s,
    )
    for call in calls:
        taken = [
            (message, answer.sequence)
            for message, answer in zip(call.messages, call.answers, strict=True)
            if answer.outcome == OK and not answer.duplicate
        ]
        began_s = asked_s.get(call.invocation, call.started_s)
        for message, sequence in taken:
            for ended_s, before, before_sequence in answered:
                related = message.group == before.group or sequence >> NUMBER_BITS == before_sequence >> NUMBER_BITS
                if ended_s < began_s and related and before_sequence >= sequence:
                    yield about(
                        f"{facts.name}: #{message.number} of {message.group} got sequence {sequence}, "
                        f"#{before.number} of {before.group} before it {before_sequence}",
                        message.number,
                        before.number,
                    )
        answered += [(call.ended_s, message, sequence) for message, sequence in taken]
        answered = answered[-50:]
