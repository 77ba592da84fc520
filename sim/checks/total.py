"""Total queue: every acknowledged message is delivered until it is deleted, and only sent messages are delivered."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.ids import parse_message_id
from sim.checks.evidence import Evidence, Finding, HeldLease, about
from sim.history import OK, Holding, PurgePoint, Sending, Steering


def check(evidence: Evidence) -> Iterator[Finding]:
    yield from _invented(evidence)
    yield from _sent_twice(evidence)
    yield from _taken_for_another(evidence)
    yield from _answered_otherwise(evidence)
    yield from _lost(evidence)
    yield from _purged_though_sent_later(evidence)
    yield from _risen(evidence)


def _invented(evidence: Evidence) -> Iterator[Finding]:
    for call, delivered in evidence.history.deliveries():
        message = evidence.messages.get(delivered.number)
        where = f"call {call.number} got message #{delivered.number} from {call.queue}"
        if message is None:
            yield f"{where}, which nobody sent: {delivered.body[:40]!r}", (delivered.message_id,)
        elif message.body != delivered.body or message.group != delivered.group:
            yield about(f"{where} with other content than was sent", delivered.number)
        elif delivered.priority != message.priority:
            yield about(
                f"{where} with priority {delivered.priority} instead of {message.priority}",
                delivered.number,
            )


def _sent_twice(evidence: Evidence) -> Iterator[Finding]:
    """A producer's retries carry one invocation id, so a message is stored once, however often it is sent."""
    for number, copies in evidence.copies.items():
        made = [copy for copy in copies if copy.source is None]
        if len(made) > 1 and number not in evidence.made_again:
            sequences = ", ".join(f"{copy.sequence} on shard {copy.shard}" for copy in made)
            yield about(f"message #{number} was made {len(made)} times: {sequences}", number)


def _taken_for_another(evidence: Evidence) -> Iterator[Finding]:
    """An accepted message is answered with its own id. A request with an Idempotency-Key may be answered with the id of
    an earlier message.
    """
    for call in evidence.history.of(Sending):
        for message, answer in zip(call.messages, call.answers, strict=False):
            place = parse_message_id(answer.message_id)
            if answer.outcome != OK or answer.duplicate or call.once or place is None:
                continue
            copy = evidence.ledger.book(place[0]).copies.get(place[1])
            if copy is None or copy.number != message.number:
                other = "no message" if copy is None else f"message #{copy.number}"
                yield about(
                    f"message #{message.number} was acknowledged (call {call.number}) with the id of {other}",
                    message.number,
                )


def _answered_otherwise(evidence: Evidence) -> Iterator[Finding]:
    """A repeated request with an Idempotency-Key gets the first answer, as long as it is remembered."""
    first: dict[int, tuple[Sending, str]] = {}
    for call in evidence.history.of(Sending):
        if not call.once:
            continue
        window_ms = evidence.queues[call.queue].once_window_ms
        for message, answer in zip(call.messages, call.answers, strict=False):
            if answer.outcome != OK:
                continue
            before, message_id = first.setdefault(message.number, (call, answer.message_id))
            if answer.message_id != message_id and call.ended_ms < before.started_ms + window_ms:
                yield about(
                    f"message #{message.number} was sent with the key {call.invocation} as {message_id} (call "
                    f"{before.number}), and again as {answer.message_id} (call {call.number})",
                    message.number,
                )


def _lost(evidence: Evidence) -> Iterator[Finding]:
    deleted = {
        lease.first.number
        for lease in evidence.leases.values()
        for use in lease.uses
        if _may_delete(evidence, lease, use)
    }
    purged = {call.queue for call in evidence.history.of(Steering) if call.kind in ("purge", "delete queue")}
    for call in evidence.history.of(Sending):
        for message, answer in zip(call.messages, call.answers, strict=False):
            # A duplicate by deduplication key may be another message, but a producer's number means this one.
            of_another = answer.duplicate and (not call.producer or message.dedup_id)
            if answer.outcome != OK or of_another or message.number in deleted:
                continue
            if _is_accounted_for(evidence, message.number, purged):
                continue
            yield about(
                f"message #{message.number} was acknowledged to {call.client} (call {call.number}, {call.queue}), and "
                "was neither deleted by a consumer nor is it anywhere",
                message.number,
            )


def _may_delete(evidence: Evidence, lease: HeldLease, use: Holding) -> bool:
    if use.kind != "delete" or not (use.outcome == OK or use.uncertain):
        return False
    return not evidence.superseded(lease, use)


def _is_accounted_for(evidence: Evidence, number: int, purged: set[str]) -> bool:
    for copy in evidence.copies.get(number, []):
        if copy.present or copy.end == "expired":
            return True
        if copy.end == "purged" and evidence.queue_names.get(copy.queue) in purged:
            return True
    return False


def _purged_though_sent_later(evidence: Evidence) -> Iterator[Finding]:
    """A purge removes the messages that were there when it began. A deleted queue loses all of its messages."""
    points: dict[tuple[str, int], list[PurgePoint]] = {}
    for point in evidence.history.of(PurgePoint):
        points.setdefault((point.queue, point.shard), []).append(point)
    deleted = {call.queue for call in evidence.history.of(Steering) if call.kind == "delete queue"}
    for copy in evidence.ledger.copies():
        queue = evidence.queue_names.get(copy.queue, "")
        if copy.end != "purged" or queue in deleted:
            continue
        begun = [point.through for point in points.get((queue, copy.shard), ()) if point.place < copy.ended_at]
        if copy.sequence > max(begun, default=0):
            yield about(
                f"message #{copy.number} of {queue} ({copy.sequence} on shard {copy.shard}) was purged, and all purges "
                f"had begun before it was there, with {begun}",
                copy.number,
            )


def _risen(evidence: Evidence) -> Iterator[Finding]:
    """After a delete that the holder was certainly entitled to, the message is not delivered again.

    A message that expires is dead-lettered even during a lease; a later delete then comes too late.
    """
    deleted_s: dict[int, tuple[float, int]] = {}
    for lease in evidence.leases.values():
        copy = evidence.copy_of(lease.first)
        if copy is None or copy.end == "moved" or copy.owed is not None or copy.number in evidence.made_again:
            continue
        for use in lease.uses:
            surely = use.kind == "delete" and use.outcome == OK
            if surely and use.ended_ms < lease.held_until_ms(use.started_s, without=use):
                before = deleted_s.get(lease.first.number, (use.ended_s, use.number))
                deleted_s[lease.first.number] = min(before, (use.ended_s, use.number))
    for call, delivered in evidence.history.deliveries():
        if delivered.number in deleted_s and call.started_s > deleted_s[delivered.number][0]:
            yield about(
                f"message #{delivered.number} was delivered from {call.queue} (call {call.number}) after it had been "
                f"deleted (call {deleted_s[delivered.number][1]})",
                delivered.number,
            )
