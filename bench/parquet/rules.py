"""The shared part of the comparison audits: the states, and the transitions that the lifecycle allows."""

from __future__ import annotations

from batonq.core.records import State
from batonq.core.shard.lifecycle import TRANSITIONS
from batonq.pipeline.events.schema import EVENTS

DELAYED, VISIBLE, HELD, OWED, DEAD, DELETED = (
    int(state) for state in (State.DELAYED, State.VISIBLE, State.IN_FLIGHT, State.OWED, State.DEAD, State.DELETED)
)
ALLOWED = sorted(
    {(int(state), EVENTS[kind], int(after)) for (state, kind), afters in TRANSITIONS.items() for after in afters}
)
