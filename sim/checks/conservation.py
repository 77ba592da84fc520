"""Conservation: on each shard sent + arrived = deleted + expired + moved + purged + present. Between shards every entry
of a channel arrives once, so that a message lives in one place.
"""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.records import Reason
from sim.checks.evidence import Evidence, Finding, about
from sim.ledger import Copy, Ledger, ShardBook


def check(evidence: Evidence) -> Iterator[Finding]:
    for book in evidence.ledger.books.values():
        yield from check_book(book)
        yield from check_channels(evidence.ledger, book)
    yield from _messages(evidence)


def check_book(book: ShardBook) -> Iterator[Finding]:
    for anomaly in book.anomalies[:5]:
        yield about(f"shard {book.shard}: {anomaly}")
    for queue, totals in book.totals.items():
        came = totals.sent + totals.arrived
        went = totals.deleted + totals.expired + totals.moved + totals.purged
        if came != went + len(book.live(queue)):
            yield about(
                f"shard {book.shard}, queue {queue}: {totals} and {len(book.live(queue))} present do not add up"
            )


def check_channels(ledger: Ledger, book: ShardBook) -> Iterator[Finding]:
    """What arrived here was owed there. What is settled here has the same verdict there. Numbers have no gaps."""
    last: dict[int, int] = {}
    for (source, number), verdict in book.arrived.items():
        if number != last.get(source, 0) + 1:
            yield about(f"entry {number} from shard {source} arrived at shard {book.shard} after {last.get(source, 0)}")
        last[source] = number
        owing = ledger.books.get(source)
        if owing is None or (book.shard, number) not in owing.owed:
            yield about(f"entry {number} from shard {source} arrived at shard {book.shard}, which was never owed")
        elif owing.settled.get((book.shard, number), verdict) != verdict:
            yield about(f"entry {number} from shard {source} to shard {book.shard} was settled otherwise than decided")
    for destination, number in book.settled:
        there = ledger.books.get(destination)
        if there is None or (book.shard, number) not in there.arrived:
            yield about(f"entry {number} from shard {book.shard} to {destination} was settled, but never arrived")


def _messages(evidence: Evidence) -> Iterator[Finding]:
    for number, copies in evidence.copies.items():
        if number not in evidence.messages:
            yield about(f"shard {copies[0].shard} has a message that nobody sent: sequence {copies[0].sequence}")
        living = [copy for copy in copies if copy.present and not _is_elsewhere(evidence.ledger, copy)]
        if len(living) > 1 and number not in evidence.made_again:
            places = ", ".join(f"{evidence.queue_names.get(copy.queue)} ({copy.sequence})" for copy in living)
            yield about(f"message #{number} lives {len(living)} times: {places}", number)


def _is_elsewhere(ledger: Ledger, copy: Copy) -> bool:
    """Whether the copy is owed and has arrived already: then the destination's copy is the one that counts."""
    if copy.owed is None:
        return False
    there = ledger.books.get(copy.owed[0])
    return there is not None and there.arrived.get((copy.shard, copy.owed[1])) == Reason.ACCEPTED
