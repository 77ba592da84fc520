"""The delivery lifecycle, as tables: which record moves a message from which state to which, and what a receipt may do.

    sent ──▶ DELAYED ──(its time comes)──▶ VISIBLE ──leased──▶ IN_FLIGHT ──deleted──▶ DELETED
                ▲                            ▲  │                 │ │
                │                            │  │                 │ └─extended──▶ IN_FLIGHT
                └──────returned (delay)──────┼──┼─────────────────┤
                                             └──┼──returned───────┘
                                                └──owed──▶ OWED ──settled──▶ DELETED (or back, refused)

The rules:
1. Only a VISIBLE message can be leased, and every lease raises its epoch: one holder at a time.
2. What a receipt may do depends on its standing (HELD, LAPSED, SUPERSEDED, GONE) and on the queue's rule; RECEIPTS
   below is the whole of it. A superseded receipt never changes a message.
3. A lease ends by Extended's deadline passing (Returned, expired), by its holder (Returned or Deleted), or by a purge.
4. An OWED message can be neither leased nor deleted: it is on its way, and exactly one copy of it remains.
5. A message that used up its receives and has no dead-letter queue is DEAD: kept, not leased, moved by a job only.
docs/explanation/lifecycle.md draws its diagrams from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from batonq.core.records import Reason, State, Type
from batonq.errors import BatonError, LeaseLost, MessageGone

# (state, record) → the states it may lead to
TRANSITIONS: dict[tuple[State, Type], tuple[State, ...]] = {
    (State.FREE, Type.SENT): (State.DELAYED, State.VISIBLE),
    (State.FREE, Type.ARRIVED): (State.VISIBLE,),
    (State.VISIBLE, Type.LEASED): (State.IN_FLIGHT,),
    (State.IN_FLIGHT, Type.EXTENDED): (State.IN_FLIGHT,),
    (State.IN_FLIGHT, Type.RETURNED): (State.VISIBLE, State.DELAYED, State.DEAD),
    (State.VISIBLE, Type.RETURNED): (State.DEAD,),
    (State.DELAYED, Type.RETURNED): (State.DEAD,),
    (State.VISIBLE, Type.OWED): (State.OWED,),
    (State.DELAYED, Type.OWED): (State.OWED,),
    (State.IN_FLIGHT, Type.OWED): (State.OWED,),
    (State.DEAD, Type.OWED): (State.OWED,),
    (State.VISIBLE, Type.EDITED): (State.VISIBLE,),
    (State.DEAD, Type.EDITED): (State.DEAD,),
    (State.OWED, Type.SETTLED): (State.DELETED, State.VISIBLE, State.DELAYED, State.DEAD),
    (State.VISIBLE, Type.DELETED): (State.DELETED,),
    (State.DELAYED, Type.DELETED): (State.DELETED,),
    (State.IN_FLIGHT, Type.DELETED): (State.DELETED,),
    (State.DEAD, Type.DELETED): (State.DELETED,),
    (State.VISIBLE, Type.QUEUE_PURGED): (State.DELETED,),
    (State.DELAYED, Type.QUEUE_PURGED): (State.DELETED,),
    (State.IN_FLIGHT, Type.QUEUE_PURGED): (State.DELETED,),
    (State.DEAD, Type.QUEUE_PURGED): (State.DELETED,),
}


class Standing(Enum):
    """How a receipt stands to its message now."""

    HELD = "held"  # its lease is the current one
    LAPSED = "lapsed"  # its lease is over, and nobody else has taken the message since
    SUPERSEDED = "superseded"  # somebody else has taken it since, or it is on its way elsewhere
    GONE = "gone"  # there is no such message any more


class Rule(Enum):
    """Whose rule a queue follows."""

    STANDARD = "standard"
    FIFO = "fifo"
    STRICT = "strict"


class Verdict(NamedTuple):
    """What happens: act (for this reason), succeed without effect, or fail."""

    act: bool
    reason: Reason = Reason.NONE
    error: type[BatonError] | None = None
    stale: bool = False  # counted as a stale delete


_ACT = Verdict(True)
_IGNORE = Verdict(False)
_LOST = Verdict(False, error=LeaseLost)
_GONE = Verdict(False, error=MessageGone)

RECEIPTS: dict[tuple[str, Rule, Standing], Verdict] = {
    ("delete", Rule.STANDARD, Standing.HELD): Verdict(True, Reason.ACK),
    ("delete", Rule.STANDARD, Standing.LAPSED): Verdict(True, Reason.LATE_ACK),
    ("delete", Rule.STANDARD, Standing.SUPERSEDED): Verdict(False, stale=True),
    ("delete", Rule.STANDARD, Standing.GONE): _IGNORE,
    ("delete", Rule.FIFO, Standing.HELD): Verdict(True, Reason.ACK),
    ("delete", Rule.FIFO, Standing.LAPSED): _LOST,
    ("delete", Rule.FIFO, Standing.SUPERSEDED): Verdict(False, error=LeaseLost, stale=True),
    ("delete", Rule.FIFO, Standing.GONE): _IGNORE,
    ("delete", Rule.STRICT, Standing.HELD): Verdict(True, Reason.ACK),
    ("delete", Rule.STRICT, Standing.LAPSED): _LOST,
    ("delete", Rule.STRICT, Standing.SUPERSEDED): Verdict(False, error=LeaseLost, stale=True),
    ("delete", Rule.STRICT, Standing.GONE): _GONE,
    ("change", Rule.STANDARD, Standing.HELD): _ACT,
    ("change", Rule.STANDARD, Standing.LAPSED): _IGNORE,
    ("change", Rule.STANDARD, Standing.SUPERSEDED): _IGNORE,
    ("change", Rule.STANDARD, Standing.GONE): _GONE,
    ("change", Rule.FIFO, Standing.HELD): _ACT,
    ("change", Rule.FIFO, Standing.LAPSED): _LOST,
    ("change", Rule.FIFO, Standing.SUPERSEDED): _LOST,
    ("change", Rule.FIFO, Standing.GONE): _GONE,
    ("change", Rule.STRICT, Standing.HELD): _ACT,
    ("change", Rule.STRICT, Standing.LAPSED): _LOST,
    ("change", Rule.STRICT, Standing.SUPERSEDED): _LOST,
    ("change", Rule.STRICT, Standing.GONE): _GONE,
    # A nack says something about a lease, so it is refused whenever that lease is not the current one.
    ("nack", Rule.STANDARD, Standing.HELD): Verdict(True, Reason.NACK),
    ("nack", Rule.STANDARD, Standing.LAPSED): _LOST,
    ("nack", Rule.STANDARD, Standing.SUPERSEDED): _LOST,
    ("nack", Rule.STANDARD, Standing.GONE): _GONE,
    ("nack", Rule.FIFO, Standing.HELD): Verdict(True, Reason.NACK),
    ("nack", Rule.FIFO, Standing.LAPSED): _LOST,
    ("nack", Rule.FIFO, Standing.SUPERSEDED): _LOST,
    ("nack", Rule.FIFO, Standing.GONE): _GONE,
    ("nack", Rule.STRICT, Standing.HELD): Verdict(True, Reason.NACK),
    ("nack", Rule.STRICT, Standing.LAPSED): _LOST,
    ("nack", Rule.STRICT, Standing.SUPERSEDED): _LOST,
    ("nack", Rule.STRICT, Standing.GONE): _GONE,
}


def allowed(state: int, record: Type) -> bool:
    return (state, record) in TRANSITIONS
