"""The lock of a FIFO group: while its first message is leased, delayed or on its way, no other message of it is leased.

A group is locked when its line is in no ring, because only lines in a ring are considered when messages are leased.
"""

from __future__ import annotations

from batonq.core.records import State
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.lines import NO_RING, QUIET, Lane
from batonq.core.shard.state.ready_order import Ready


def lock(ready: Ready, lane: Lane, line: int) -> None:
    """Lock a group whose first message is being leased."""
    ready.changed(lane.priority)
    ready.lines.leave_ring(lane, line)
    if lane.empty:
        del ready.lanes[lane.priority]


def lock_or_unlock(ready: Ready, line: int) -> None:
    """Put the line of a group where it belongs after one of its messages changed; close the line if it is empty."""
    lines = ready.lines
    columns = lines.columns
    head = lines.head[line]
    unlocked = head != NIL and columns.state[head] == State.VISIBLE
    if lines.ring[line] != NO_RING:
        ready.changed(lines.priority[line])
        if unlocked and lines.priority[line] == columns.priority[head]:
            return
        lock(ready, ready.lanes[lines.priority[line]], line)
    if unlocked:
        ready.changed(columns.priority[head])
        lines.enter_ring(ready.lane(columns.priority[head]), line, QUIET)
    elif head == NIL:
        lines.close(line)
