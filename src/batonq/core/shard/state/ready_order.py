"""The order in which messages are leased: the lanes of a queue, and the choice between them.

Messages wait in lines (lines.py). A standard queue has one *lane* per priority in use: a line of fresh messages, a line
of returned messages, and a ring of lines, one per message group. A FIFO queue has one line per group, with all of the
group's messages in order, including leased ones. A FIFO group is eligible only while its first message is VISIBLE;
otherwise it is locked (group_locks.py). The line of an eligible group is in the ring of the lane with its first
message's priority.

Priority and ageing: each `ageing_ms` of waiting raises a message by one priority. The lane whose next message has the
smallest `visible since - priority * ageing_ms` is served. That key does not change with time, so nothing is ever
scanned or moved.

Fairness (soft state, not replayed): between a fresh message and a grouped one, the one that has waited longer goes
first. Groups take turns. Noisy groups are in a second ring, which is served when the first is empty. Returned messages
get every second turn, so that neither retries nor fresh messages starve.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.shard.state.columns import NIL, counted
from batonq.core.shard.state.lines import NO_RING, NOISY, QUIET, Lane, Lines

NOISY_SHARE = 10  # a group is noisy above one tenth of the messages in flight …
NOISY_MIN = 30  # … if it has at least this many in flight
_LOOK = 8  # number of noisy lines that are compared
_BUSY_MIN_MS = 60_000.0  # with less processing time in total, shares mean nothing
_BUSY_MAX_MS = 600_000.0  # above this total, all remembered times are halved
_BUSY_GROUPS_MAX = 10_000


class Ready:
    """One queue's lanes, and the choice of the next message. `in_flight` counts leases per group, for fairness."""

    __slots__ = ("_since", "busy", "busy_total", "fifo", "in_flight", "in_flight_total", "lanes", "lines", "queue")

    def __init__(self, lines: Lines, queue: int, fifo: bool) -> None:
        self.lines = lines
        self.queue = queue
        self.fifo = fifo
        self.lanes: dict[int, Lane] = {}
        self._since: dict[int, int] = {}  # priority → result of `since`, until something in that lane changes
        self.in_flight: dict[int, int] = {}
        self.in_flight_total = 0
        self.busy: dict[int, float] = {}  # recent processing time per group
        self.busy_total = 0.0

    def lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane(priority)
        return lane

    # --- standard queues ---------------------------------------------------------------------

    def add(self, slot: int, group: int, priority: int, returned: bool) -> None:
        """Add a message of a standard queue that has become VISIBLE."""
        lines = self.lines
        self.changed(priority)
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane(priority)
        if group:
            line = lines.find_or_open(self.queue, group, priority)
            if returned:
                lines.prepend(line, slot)
            else:
                lines.append(line, slot)
            if lines.ring[line] == NO_RING:
                lines.enter_ring(lane, line, NOISY if self.noisy(group) else QUIET)
        elif returned:
            if lane.returned == NIL:
                lane.returned = lines.open(self.queue, priority)
            lines.append(lane.returned, slot)
        else:
            if lane.fresh == NIL:
                lane.fresh = lines.open(self.queue, priority)
            lines.append(lane.fresh, slot)

    def add_run(self, run: array[int], priority: int) -> None:
        """Add consecutive slots of fresh messages without a group."""
        self.lines.append_run(self._fresh(priority), run)

    def add_slots(self, slots: Sequence[int], priority: int) -> None:
        """Add any slots of fresh messages without a group."""
        self.lines.append_slots(self._fresh(priority), slots)

    def _fresh(self, priority: int) -> int:
        lane = self.lane(priority)
        self.changed(priority)
        if lane.fresh == NIL:
            lane.fresh = self.lines.open(self.queue, priority)
        return lane.fresh

    def front(self, wanted: int) -> Sequence[int]:
        """The next messages if there is no choice to make, that is one lane with only fresh messages without a
        group; otherwise empty.

        Returns a range if the slots are adjacent. Messages that were sent together usually have adjacent slots.
        """
        if len(self.lanes) != 1:
            return ()
        (lane,) = self.lanes.values()
        if lane.fresh == NIL or lane.returned != NIL or lane.quiet != NIL or lane.noisy != NIL:
            return ()
        following = self.lines.columns.line_next
        slot = self.lines.head[lane.fresh]
        wanted = min(wanted, self.lines.count[lane.fresh])
        run = range(slot, slot + wanted)
        if following[slot : run[-1]] == counted("I", run[1:]):
            return run
        slots: list[int] = []
        while slot != NIL and len(slots) < wanted:
            slots.append(slot)
            slot = following[slot]
        return slots

    def drop_front(self, priority: int, slots: Sequence[int]) -> None:
        """Take the messages that `front` returned out of their line."""
        lines = self.lines
        self.changed(priority)
        lane = self.lanes[priority]
        line = lane.fresh
        head = lines.columns.line_next[slots[-1]]
        lines.head[line] = head
        lines.count[line] -= len(slots)
        if head == NIL:
            lines.tail[line] = NIL
            lane.fresh = NIL
            lines.close(line)
            del self.lanes[priority]
        else:
            lines.columns.line_previous[head] = NIL

    def remove(self, slot: int) -> int:
        """Remove a message of a standard queue that is no longer VISIBLE; returns its group."""
        lines = self.lines
        line = lines.unlink(slot)
        group = lines.group(line)
        self.changed(lines.priority[line])
        if not lines.count[line]:
            lane = self.lanes[lines.priority[line]]
            if lane.fresh == line:
                lane.fresh = NIL
            elif lane.returned == line:
                lane.returned = NIL
            else:
                lines.leave_ring(lane, line)
            lines.close(line)
            if lane.empty:
                del self.lanes[lane.priority]
        return group

    # --- the choice --------------------------------------------------------------------------

    def best_lane(self, ageing_ms: int, priority_min: int = 0) -> Lane | None:
        """The lane to serve next; with a minimum, of the lanes of that priority or above."""
        lanes = self.lanes
        if priority_min:
            lanes = {priority: lane for priority, lane in lanes.items() if priority >= priority_min}
        if len(lanes) < 2:
            for lane in lanes.values():
                return lane
            return None
        if not ageing_ms:
            return lanes[max(lanes)]
        known = self._since
        if len(known) < len(self.lanes):
            for priority, lane in lanes.items():
                if priority not in known:
                    known[priority] = self.since(lane)
        _, lowest = min([(known[priority] - priority * ageing_ms, -priority) for priority in lanes])
        return lanes[-lowest]

    def since(self, lane: Lane) -> int:
        """The time since which the lane's next message has been VISIBLE."""
        lines = self.lines
        until = lines.columns.until
        heads = [lines.head[line] for line in (lane.fresh, lane.returned, lane.quiet, lane.noisy) if line != NIL]
        return min(until[head] for head in heads)

    def changed(self, priority: int) -> None:
        """Note that the next message of a lane may be another one."""
        self._since.pop(priority, None)

    def validate(self) -> None:
        for priority, since_ms in self._since.items():
            assert priority in self.lanes, "a lane that is gone is considered"
            assert self.since(self.lanes[priority]) == since_ms, "a lane's next message is another one than was noted"

    def next_standard(self, ageing_ms: int) -> int:
        """The slot to lease next, or NIL."""
        lane = self.best_lane(ageing_ms)
        return NIL if lane is None else self.next_in(lane)

    def next_in(self, lane: Lane) -> int:
        """The slot of a lane to lease next. The lane has messages."""
        self.changed(lane.priority)  # groups take turns
        lines = self.lines
        fresh = lane.fresh
        if lane.returned != NIL:
            others = fresh != NIL or lane.quiet != NIL or lane.noisy != NIL
            turn = lane.returned_turn
            lane.returned_turn = not turn
            if turn or not others:
                return lines.head[lane.returned]
        if lane.quiet == NIL and lane.noisy == NIL:
            return lines.head[fresh]
        line = self._quiet_line(lane)
        until = lines.columns.until
        if fresh != NIL and (line == NIL or until[lines.head[fresh]] <= until[lines.head[line]]):
            return lines.head[fresh]
        if line != NIL:
            lane.quiet = lines.ring_next[line]
        else:
            line = self._least_noisy(lane)
        return lines.head[line]

    def _quiet_line(self, lane: Lane) -> int:
        """The next group of the quiet ring. Groups that have become noisy are moved to the noisy ring on the way."""
        lines = self.lines
        while (line := lane.quiet) != NIL:
            if not self.noisy(lines.group(line)):
                return line
            lines.leave_ring(lane, line)
            lines.enter_ring(lane, line, NOISY)
        return NIL

    def _least_noisy(self, lane: Lane) -> int:
        lines = self.lines
        best = line = lane.noisy
        for _ in range(_LOOK):
            if self.in_flight.get(lines.group(line), 0) < self.in_flight.get(lines.group(best), 0):
                best = line
            line = lines.ring_next[line]
            if line == lane.noisy:
                break
        lane.noisy = lines.ring_next[best]
        if not self.noisy(lines.group(best)):
            lines.leave_ring(lane, best)
            lines.enter_ring(lane, best, QUIET)
        return best

    def noisy(self, group: int) -> bool:
        own = self.in_flight.get(group, 0)
        if own >= NOISY_MIN and own * NOISY_SHARE > self.in_flight_total:
            return True
        return bool(self.busy) and own > 0 and self.busy.get(group, 0.0) * NOISY_SHARE > self.busy_total > _BUSY_MIN_MS

    def lease_began(self, group: int) -> None:
        self.in_flight_total += 1
        if group:
            self.in_flight[group] = self.in_flight.get(group, 0) + 1

    def lease_ended(self, group: int, lasted_ms: int) -> None:
        self.in_flight_total -= 1
        if not group:
            return
        left = self.in_flight.get(group, 0) - 1
        if left > 0:
            self.in_flight[group] = left
        else:
            self.in_flight.pop(group, None)
        self.busy[group] = self.busy.get(group, 0.0) + lasted_ms
        self.busy_total += lasted_ms
        if self.busy_total > _BUSY_MAX_MS or len(self.busy) > _BUSY_GROUPS_MAX:
            self.busy = {key: value / 2 for key, value in self.busy.items() if value > 1.0}
            self.busy_total = sum(self.busy.values())
