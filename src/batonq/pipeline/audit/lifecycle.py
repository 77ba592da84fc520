"""The lifecycle of a message as the audit understands it: which event may happen in which state, and for which reason.

This table is written from docs/explanation/lifecycle.md and uses the names of the events table only. It shares nothing
with the tables that the broker decides by, so that a mistake there does not hide itself here: an import contract
forbids the import, and tests/pipeline/test_audit.py audits broken histories with a laxer table in the broker.

The state after an event follows from the event; the reason says why it happened. Two things need no event: a delay that
is over makes a message visible, and a purge ends every message of its queue that is not owed.

`refused` is a state of its own here, `delayed` in the log: the destination refused the message, which waits to be owed
again and never becomes visible.
"""

from __future__ import annotations

from typing import NamedTuple

IN_QUEUE = ("visible", "delayed", "refused", "dead")  # no consumer holds it, and it is not being moved
REASONED = ("returned", "deleted", "owed", "settled")  # events that happen for a reason


class Step(NamedTuple):
    event: str
    reasons: tuple[str, ...]  # none: the event has no reason
    before: tuple[str, ...]
    after: tuple[str, ...]


STEPS = (
    Step("leased", (), ("visible",), ("in_flight",)),
    Step("extended", (), ("in_flight",), ("in_flight",)),
    # The end of a lease. Without a dead-letter queue, the last failure or a nack that says so makes a message dead.
    Step("returned", ("nack", "released", "expired"), ("in_flight",), ("visible", "delayed", "dead")),
    # No receive is left, or nothing accepts it, and there is no dead-letter queue.
    Step("returned", ("undeliverable",), ("visible", "delayed", "refused"), ("dead",)),
    # An operator ends a delay.
    Step("returned", ("operator",), ("delayed",), ("visible",)),
    # Without a lease, also after a failure that was returned with a delay.
    Step("owed", ("dead_letter", "fanout"), ("visible", "delayed", "refused"), ("owed",)),
    Step("owed", ("redrive",), IN_QUEUE, ("owed",)),
    # Time takes a message from its holder, and nothing else does.
    Step("owed", ("expiry_dead_letter",), (*IN_QUEUE, "in_flight"), ("owed",)),
    Step("settled", ("accepted",), ("owed",), ("deleted",)),
    Step(
        "settled",
        ("refused_no_queue", "refused_full", "refused_type", "refused_moved", "refused_paused"),
        ("owed",),
        ("visible", "refused", "dead"),
    ),
    Step("edited", (), ("visible",), ("visible",)),
    Step("edited", (), ("delayed", "refused"), ("delayed",)),
    Step("edited", (), ("dead",), ("dead",)),
    Step("deleted", ("ack",), ("in_flight",), ("deleted",)),
    Step("deleted", ("late_ack",), (*IN_QUEUE, "in_flight"), ("deleted",)),
    Step("deleted", ("retention",), (*IN_QUEUE, "in_flight"), ("deleted",)),
    Step("deleted", ("operator",), IN_QUEUE, ("deleted",)),
    # A copy of a published message whose subscription or queue is gone.
    Step("deleted", ("undeliverable",), ("visible", "delayed", "refused"), ("deleted",)),
)


class Move(NamedTuple):
    """One event in one state, for one reason."""

    before: str
    event: str
    reason: str | None
    after: str


MOVES = frozenset(
    Move(before, step.event, reason, after)
    for step in STEPS
    for reason in (step.reasons or (None,))
    for before in step.before
    for after in step.after
)
