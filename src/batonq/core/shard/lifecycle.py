"""The delivery lifecycle, as tables: how records change a message's state, and what the holder of a receipt may do.

    sent ──▶ DELAYED ──(the delay ends)──▶ VISIBLE ──leased──▶ IN_FLIGHT ──deleted──▶ DELETED
                ▲                            ▲  │                 │ │
                │                            │  │                 │ └─extended──▶ IN_FLIGHT
                └──────returned (delay)──────┼──┼─────────────────┤
                                             └──┼──returned───────┘
                                                └──owed──▶ OWED ──settled──▶ DELETED (or back, refused)

The rules:
1. Only a VISIBLE message can be leased, and every lease raises the message's epoch. A message has one holder at a time.
2. What a receipt allows depends on its standing (HELD, LAPSED, SUPERSEDED, GONE) and on the queue's rule. RECEIPTS
   below has all cases. A superseded receipt never changes a message.
3. A lease ends when its deadline passes (Returned, expired), by its holder (Returned or Deleted), or by a purge.
4. An OWED message can be neither leased nor deleted: it is in transfer, and exactly one copy of it remains.
5. A message that exhausted its receives and has no dead-letter queue is DEAD: stored, never leased, moved only by a
   job or an operator.
6. An operator can delete, edit or retry a message that no consumer holds and that is not in transfer.
The diagrams of docs/explanation/lifecycle.md are generated from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from batonq.core.records import Reason, State, Type
from batonq.errors import BatonError, LeaseLost, MessageGone

# (state, record) → the states that may follow
TRANSITIONS: dict[tuple[State, Type], tuple[State, ...]] = {
    (State.FREE, Type.SENT): (State.DELAYED, State.VISIBLE),
    (State.FREE, Type.ARRIVED): (State.VISIBLE, State.DELAYED),
    (State.VISIBLE, Type.LEASED): (State.IN_FLIGHT,),
    (State.IN_FLIGHT, Type.EXTENDED): (State.IN_FLIGHT,),
    (State.IN_FLIGHT, Type.RETURNED): (State.VISIBLE, State.DELAYED, State.DEAD),
    (State.VISIBLE, Type.RETURNED): (State.DEAD,),
    (State.DELAYED, Type.RETURNED): (State.VISIBLE, State.DEAD),
    (State.VISIBLE, Type.OWED): (State.OWED,),
    (State.DELAYED, Type.OWED): (State.OWED,),
    (State.IN_FLIGHT, Type.OWED): (State.OWED,),
    (State.DEAD, Type.OWED): (State.OWED,),
    (State.VISIBLE, Type.EDITED): (State.VISIBLE,),
    (State.DELAYED, Type.EDITED): (State.DELAYED,),
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
    """The relation of a receipt to its message now."""

    HELD = "held"  # its lease is the current lease
    LAPSED = "lapsed"  # its lease has ended, and no other consumer has leased the message since
    SUPERSEDED = "superseded"  # another consumer has leased the message since, or the message is in transfer
    GONE = "gone"  # the message no longer exists


class Rule(Enum):
    """The rule by which a queue treats receipts."""

    STANDARD = "standard"
    FIFO = "fifo"
    STRICT = "strict"


class Verdict(NamedTuple):
    """What a receipt's command does: act (for this reason), succeed without effect, or fail."""

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
    # A nack reports the failure of a lease, so it is refused if that lease is not the current one.
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
