"""Lease exclusivity: one holder at a time, by shard time, across crashes; and what a receipt may do."""

from __future__ import annotations

from collections.abc import Iterator

from sim.checks.evidence import Evidence, Finding, HeldLease, about
from sim.history import OK, Holding

LOST = ("lease_lost", "message_gone")


def check(evidence: Evidence) -> Iterator[Finding]:
    for leases in evidence.leases_by_copy():
        yield from _overlaps(leases)
    for lease in evidence.leases.values():
        for use in lease.uses:
            yield from _wrongly_obeyed(evidence, lease, use)
            yield from _wrongly_refused(evidence, lease, use)


def _overlaps(leases: list[HeldLease]) -> Iterator[Finding]:
    for at, later in enumerate(leases):
        for earlier in leases[:at]:
            until_ms = earlier.held_until_ms(later.told_s)
            if later.first.began_ms < until_ms:
                yield about(
                    f"message #{later.first.number} of {later.first.queue} was leased at {later.first.began_ms} "
                    f"(call {later.first.call}) while call {earlier.first.call} had it until {until_ms}",
                    later.first.number,
                )
            if later.first.receive_count <= earlier.first.receive_count:
                yield about(
                    f"message #{later.first.number} of {later.first.queue}: receive count {later.first.receive_count} "
                    f"(call {later.first.call}) after {earlier.first.receive_count} (call {earlier.first.call})",
                    later.first.number,
                )


def _wrongly_obeyed(evidence: Evidence, lease: HeldLease, use: Holding) -> Iterator[Finding]:
    """With a superseded receipt, deletes and changes on a standard queue succeed without effect; all else is refused.

    Deleting a message that is gone succeeds on a FIFO queue too.
    """
    facts = evidence.queues[use.queue]
    if use.kind == "delete" and not facts.strict and _may_be_gone(evidence, lease, use):
        return
    refusing = facts.fifo or facts.strict or use.kind == "nack"
    if refusing and use.outcome == OK and evidence.superseded(lease, use):
        yield about(
            f"a {use.kind} of message #{lease.first.number} of {use.queue} (call {use.number}) was obeyed, although "
            "another holder had a newer lease",
            lease.first.number,
        )


def _may_be_gone(evidence: Evidence, lease: HeldLease, use: Holding) -> bool:
    """Whether the message had ended before, or ended meanwhile for another reason."""
    copy = evidence.copy_of(lease.first)
    if copy is None or (not copy.present and copy.ended_ms <= use.started_ms):
        return True
    if copy.end in ("moved", "expired", "purged") and copy.ended_ms <= use.ended_ms:
        return True  # during the delete, and not because of it
    return any(
        other.kind == "delete" and other.started_s < use.ended_s
        for rival in evidence.rivals(lease)
        for other in rival.uses
    )


def _wrongly_refused(evidence: Evidence, lease: HeldLease, use: Holding) -> Iterator[Finding]:
    """The holder was refused although its lease certainly lasted when the answer came."""
    until_ms = lease.held_until_ms(use.ended_s, without=use)
    if use.outcome not in LOST or use.ended_ms >= until_ms:
        return
    copy = evidence.copy_of(lease.first)
    if copy is not None and copy.end in ("expired", "purged") and copy.ended_ms <= use.ended_ms:
        return
    if copy is not None and 0 <= copy.owed_ms <= use.ended_ms:
        return  # it expired and was dead-lettered
    yield about(
        f"a {use.kind} of message #{lease.first.number} of {use.queue} (call {use.number}) was refused as "
        f"{use.outcome} at {use.ended_ms}, although the lease lasted until {until_ms}",
        lease.first.number,
    )
