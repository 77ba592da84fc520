"""Schedules: every message of a schedule is the firing of one due time, and no due time is left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from sim.checks.evidence import Evidence, Finding, about
from sim.ledger import ShardBook


def check(evidence: Evidence) -> Iterator[Finding]:
    for book in evidence.ledger.books.values():
        yield from _messages(book)
        for key, firings in book.firings.items():
            rate_ms = book.rates_ms.get(key, 0)
            for before, after in pairwise(firings):
                if after.due_ms != before.due_ms + rate_ms:
                    yield about(f"schedule {key[1]} fired {after.due_ms} after {before.due_ms}, every {rate_ms} ms")


def _messages(book: ShardBook) -> Iterator[Finding]:
    fired = {firing.sequence: firing.frame for firings in book.firings.values() for firing in firings}
    for sequence in sorted(book.scheduled.keys() ^ fired.keys()):
        yield about(f"shard {book.shard}: message {sequence} of a schedule and a due time do not belong together")
    for sequence, frame in fired.items():
        if book.scheduled.get(sequence, frame) != frame:
            yield about(f"shard {book.shard}: message {sequence} and its due time are in two frames")
