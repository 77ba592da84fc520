"""A recurring message: what a shard stores about a schedule.

The core does not compute times. node/ reads `timing`, says when the schedule is due and which time comes next, and the
shard checks that nobody else has done the same firing.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

LATE_MS = 5_000  # a firing that is later than this counts as late
SCHEDULES_MAX = 10_000  # per shard
SCHEDULE_BYTES_MAX = 128 * 1024  # of one schedule, as JSON
ALL_BYTES_MAX = 64 * 1024 * 1024  # of all schedules of a shard, because the Base of its log has all of them
STAYS = -1  # the schedule is not being moved to another shard


@dataclass(slots=True, frozen=True, kw_only=True)
class Schedule:
    queue: int
    name: str  # unique within the queue
    timing: str  # when it fires, as JSON that node/ reads; see node/schedules/timing.py
    group: str = ""  # message group of what it sends to a FIFO queue
    message: str  # what it sends, as JSON that node/ reads; see node/schedules/scheduled_message.py
    missed: str = "last"  # which of several due times that have passed are fired: all, last, none
    paused: bool = False
    next_ms: int = 0  # the next due time; 0: none, the schedule is over
    created_ms: int = 0
    changed_ms: int = 0
    anchor_ms: int = 0  # when `timing` was set; a rate without a start counts from then
    revision: int = 0  # raised by each change of its definition
    fired: int = 0
    late: int = 0  # firings that were later than LATE_MS
    skipped: int = 0  # due times that passed without a firing
    last_due_ms: int = 0  # due time of the last firing
    last_fired_ms: int = 0
    last_sequence: int = 0  # sequence of the message that it sent
    why: str = ""  # why a firing that is due waits
    why_code: str = ""  # code of that error
    waiting_ms: int = 0  # since when it waits
    moving_to: int = STAYS  # the shard that it is being moved to; it does not fire here any more

    def values(self) -> dict[str, Any]:
        """Every field by name, for JSON."""
        return dict(zip(self.__slots__, _FIELDS(self), strict=True))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Schedule:
        """A schedule from its fields. Fields that this release does not know are ignored."""
        return cls(**{name: value for name, value in values.items() if name in cls.__slots__})

    @property
    def state(self) -> str:
        """ACTIVE, WAITING (a firing is due and was refused), PAUSED, or ENDED (no due time is left)."""
        if self.paused:
            return "PAUSED"
        if not self.next_ms:
            return "ENDED"
        return "WAITING" if self.why else "ACTIVE"

    @property
    def fires(self) -> bool:
        """Whether it has a due time at which it fires on this shard."""
        return bool(self.next_ms) and not self.paused and self.moving_to == STAYS


_FIELDS = attrgetter(*Schedule.__slots__)
