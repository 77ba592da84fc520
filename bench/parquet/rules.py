"""The shared part of the comparison audits: the states, and the transitions that the lifecycle allows."""

from __future__ import annotations

from batonq.core.records import State
from batonq.pipeline.audit.lifecycle import MOVES

DELAYED, VISIBLE, HELD, OWED, DEAD, DELETED = (
    int(state) for state in (State.DELAYED, State.VISIBLE, State.IN_FLIGHT, State.OWED, State.DEAD, State.DELETED)
)
_NUMBERS = {state.name.lower(): int(state) for state in State} | {"refused": DELAYED}
ALLOWED = sorted({(_NUMBERS[move.before], move.event, _NUMBERS[move.after]) for move in MOVES})
