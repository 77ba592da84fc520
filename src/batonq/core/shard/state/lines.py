"""The lines in which messages wait, and the rings of lines that take turns.

A line is a doubly linked list through the columns of the messages. `ready_order.py` says which lines a queue has, and
which of them is next.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.shard.state.columns import NIL, Columns
from batonq.core.shard.state.hash_index import EMPTY, HashIndex

_MASK64 = (1 << 64) - 1
_QUEUE_MIX = 0x9E3779B97F4A7C15
_PRIORITY_MIX = 0xC2B2AE3D27D4EB4F
NO_RING = 0
QUIET = 1
NOISY = 2

_LAYOUT = (
    ("key", "Q"),
    ("queue", "I"),
    ("head", "I"),
    ("tail", "I"),
    ("count", "I"),
    ("ring_next", "I"),
    ("ring_previous", "I"),
    ("ring", "B"),
    ("priority", "B"),
)


def line_key(queue: int, group: int, priority: int) -> int:
    """The key of a group's line. FIFO lines pass priority 0, standard lines the priority of their lane."""
    return (group ^ (queue * _QUEUE_MIX) ^ ((priority + 1) * _PRIORITY_MIX)) & _MASK64


class Lane:
    """The messages of one priority of one queue. The fields hold line numbers; NIL means none."""

    __slots__ = ("fresh", "noisy", "priority", "quiet", "returned", "returned_turn")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.fresh = NIL
        self.returned = NIL
        self.quiet = NIL
        self.noisy = NIL
        self.returned_turn = True

    @property
    def empty(self) -> bool:
        return self.fresh == NIL and self.returned == NIL and self.quiet == NIL and self.noisy == NIL


class Lines:
    key: array[int]
    queue: array[int]
    head: array[int]
    tail: array[int]
    count: array[int]
    ring_next: array[int]
    ring_previous: array[int]
    ring: array[int]
    priority: array[int]

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        for name, typecode in _LAYOUT:
            setattr(self, name, array(typecode))
        self.free: array[int] = array("I")
        self._index = HashIndex()

    # --- lines -------------------------------------------------------------------------------

    def open(self, queue: int, priority: int) -> int:
        """Create an empty line without a key, as a lane's fresh and returned lines are."""
        if self.free:
            line = self.free.pop()
            self.key[line] = 0
            self.queue[line] = queue
            self.head[line] = self.tail[line] = self.ring_next[line] = self.ring_previous[line] = NIL
            self.count[line] = 0
            self.ring[line] = NO_RING
            self.priority[line] = priority
            return line
        for name, value in zip(
            (name for name, _ in _LAYOUT), (0, queue, NIL, NIL, 0, NIL, NIL, NO_RING, priority), strict=True
        ):
            getattr(self, name).append(value)
        return len(self.key) - 1

    def find(self, queue: int, group: int, priority: int) -> int:
        """The line of a group, or NIL."""
        return self._index.find(line_key(queue, group, priority), self.key)

    def find_or_open(self, queue: int, group: int, priority: int) -> int:
        key = line_key(queue, group, priority)
        line = self._index.find(key, self.key)
        if line == EMPTY:
            line = self.open(queue, priority)
            self.key[line] = key
            self._index.add(key, line, self.key)
        return line

    def group(self, line: int, fifo: bool = False) -> int:
        """The group of a line; 0 for a line without a key. XOR with the same values a second time recovers the group
        from the key.
        """
        key = self.key[line]
        return line_key(self.queue[line], key, 0 if fifo else self.priority[line]) if key else 0

    def close(self, line: int) -> None:
        """Release an empty line."""
        key = self.key[line]
        if key:
            self._index.remove(key, line, self.key)
            self.key[line] = 0
        self.free.append(line)

    def append(self, line: int, slot: int) -> None:
        self.columns.line[slot] = line
        self._join(line, slot, slot, 1)

    def append_run(self, line: int, run: array[int]) -> None:
        """Append consecutive slots at once."""
        columns = self.columns
        count = len(run)
        first, last = run[0], run[-1]
        columns.line[first : last + 1] = array("I", (line,)) * count
        columns.line_next[first:last] = run[1:]
        columns.line_previous[first + 1 : last + 1] = run[:-1]
        self._join(line, first, last, count)

    def append_slots(self, line: int, slots: Sequence[int]) -> None:
        """Append several slots in the given order."""
        columns = self.columns
        lines, forward, backward = columns.line, columns.line_next, columns.line_previous
        before = NIL
        for slot in slots:
            lines[slot] = line
            backward[slot] = before
            if before != NIL:
                forward[before] = slot
            before = slot
        self._join(line, slots[0], before, len(slots))

    def _join(self, line: int, first: int, last: int, count: int) -> None:
        """Attach a chain of messages to the end of a line."""
        columns = self.columns
        columns.line_next[last] = NIL
        tail = self.tail[line]
        columns.line_previous[first] = tail
        if tail == NIL:
            self.head[line] = first
        else:
            columns.line_next[tail] = first
        self.tail[line] = last
        self.count[line] += count

    def prepend(self, line: int, slot: int) -> None:
        columns = self.columns
        columns.line[slot] = line
        columns.line_previous[slot] = NIL
        head = self.head[line]
        columns.line_next[slot] = head
        if head == NIL:
            self.tail[line] = slot
        else:
            columns.line_previous[head] = slot
        self.head[line] = slot
        self.count[line] += 1

    def unlink(self, slot: int) -> int:
        """Take a message out of its line; returns the line, which the caller closes if it is empty."""
        columns = self.columns
        line = columns.line[slot]
        before, after = columns.line_previous[slot], columns.line_next[slot]
        if before == NIL:
            self.head[line] = after
        else:
            columns.line_next[before] = after
        if after == NIL:
            self.tail[line] = before
        else:
            columns.line_previous[after] = before
        columns.line[slot] = NIL
        self.count[line] -= 1
        return line

    # --- rings of lines ----------------------------------------------------------------------

    def enter_ring(self, lane: Lane, line: int, ring: int) -> None:
        """Add a line at the end of the ring, just before its head."""
        head = lane.quiet if ring == QUIET else lane.noisy
        self.ring[line] = ring
        self.priority[line] = lane.priority
        if head == NIL:
            self.ring_next[line] = self.ring_previous[line] = line
            if ring == QUIET:
                lane.quiet = line
            else:
                lane.noisy = line
            return
        last = self.ring_previous[head]
        self.ring_next[last] = line
        self.ring_previous[line] = last
        self.ring_next[line] = head
        self.ring_previous[head] = line

    def leave_ring(self, lane: Lane, line: int) -> None:
        ring = self.ring[line]
        after, before = self.ring_next[line], self.ring_previous[line]
        if after == line:
            after = NIL
        else:
            self.ring_next[before] = after
            self.ring_previous[after] = before
        if ring == QUIET and lane.quiet == line:
            lane.quiet = after
        elif ring == NOISY and lane.noisy == line:
            lane.noisy = after
        self.ring[line] = NO_RING

    # --- saving ------------------------------------------------------------------------------

    def save(self) -> dict[str, bytes]:
        sections = {name: getattr(self, name).tobytes() for name, _ in _LAYOUT}
        sections["free"] = self.free.tobytes()
        return sections

    def load(self, sections: dict[str, bytes]) -> None:
        for name, _ in _LAYOUT:
            column = getattr(self, name)
            del column[:]
            column.frombytes(sections[name])
        self.free = array("I")
        self.free.frombytes(sections["free"])
        self._index.rebuild([(key, line) for line, key in enumerate(self.key) if key])

    def clear(self) -> None:
        for name, _ in _LAYOUT:
            del getattr(self, name)[:]
        self.free = array("I")
        self._index = HashIndex()
