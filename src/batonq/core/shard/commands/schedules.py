"""Recurring messages. A firing writes the message and the schedule's next due time in one frame, so a firing is never
done twice and never lost, whatever fails.

A message of a schedule is accepted by the same rules as any other. If it is refused, the schedule records why, and the
firing stays due.
"""

from __future__ import annotations

from typing import NamedTuple

from batonq.core.commands import Send
from batonq.core.ids import key_hash
from batonq.core.records import SentFlag
from batonq.core.schedule import ALL_BYTES_MAX, LATE_MS, SCHEDULE_BYTES_MAX, SCHEDULES_MAX, STAYS, Schedule
from batonq.core.shard.commands.new_messages import ELSEWHERE, NewMessages
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.schedule_book import ScheduleBook, weight
from batonq.core.spread import parse, takes
from batonq.errors import BatonError, NotOwner, OverLimit, ScheduleExists, ScheduleNotFound, TooLarge

_SCHEDULED = int(SentFlag.SCHEDULED)
_REASON_MAX = 300  # characters of a reason that are stored


class Firing(NamedTuple):
    """What node/ has computed for a schedule that is due."""

    revision: int  # of the schedule that it was computed for
    expected_ms: int  # the schedule's next due time
    due_ms: int  # the due time to fire: that one, or a later one if due times are skipped
    next_ms: int  # the due time after it; 0: none
    skipped: int = 0  # due times that are not fired


class ScheduleCommands:
    def __init__(self, messages: Messages, expiry: Expiry, new_messages: NewMessages, schedules: ScheduleBook) -> None:
        self.number = messages.journal.number
        self.messages = messages
        self.expiry = expiry
        self.new_messages = new_messages
        self.schedules = schedules

    def create_schedule(self, schedule: Schedule, now: int) -> Schedule:
        """Raises QueueDoesNotExist, ScheduleExists, OverLimit, and NotOwner if it belongs on another shard."""
        now = self.expiry.begin(now)
        self.messages.queue_state(schedule.queue)
        if self.schedules.find(schedule.queue, schedule.name) is not None:
            raise ScheduleExists
        if self.moves_to(schedule) != STAYS:
            raise NotOwner(ELSEWHERE)
        if len(self.schedules) >= SCHEDULES_MAX:
            raise OverLimit(f"The shard already has {SCHEDULES_MAX:,} schedules, its limit. Delete some.")
        self._check_size(schedule, 0)
        return self.schedules.put(schedule, now)

    def change_schedule(self, schedule: Schedule, now: int) -> Schedule:
        """Replace a schedule. Raises ScheduleNotFound if it does not exist, or has been changed since it was read."""
        now = self.expiry.begin(now)
        old = self._found(schedule.queue, schedule.name)
        if schedule.revision != old.revision + 1:
            raise ScheduleNotFound("The schedule was changed by another request at the same time. Retry.")
        self._check_size(schedule, weight(old))
        return self.schedules.put(schedule, now)

    def delete_schedule(self, queue: int, name: str, now: int) -> None:
        """Raises ScheduleNotFound."""
        now = self.expiry.begin(now)
        self.schedules.remove(self._found(queue, name), now)

    def fire(self, queue: int, name: str, firing: Firing, message: Send | None, now: int) -> Schedule | None:
        """Do a firing: send the message, and set the next due time. Without a message only the due time changes,
        because the due times in between are skipped.

        Returns the schedule. If it has a reason in `why`, the queue refused the message, and the firing is still due.
        Returns None if the schedule has changed since the firing was computed, so that nothing was done.
        """
        now = self.expiry.begin(now)
        schedule = self.schedules.find(queue, name)
        if schedule is None or not schedule.fires:
            return None
        if (schedule.revision, schedule.next_ms) != (firing.revision, firing.expected_ms):
            return None
        sequence = 0
        fired = late = 0
        if message is not None:
            state = self.messages.queue_state(queue)
            self.new_messages.begin()
            (result,) = self.new_messages.send_rows(state, message, now, _SCHEDULED)
            if isinstance(result, BatonError):
                return self._wait(schedule, result, now)
            sequence = result.sequence
            fired, late = 1, int(now - firing.due_ms > LATE_MS)
            self.schedules.fired[queue] = self.schedules.fired.get(queue, 0) + fired
            self.schedules.late[queue] = self.schedules.late.get(queue, 0) + late
        changes = {"next_ms": firing.next_ms}
        if fired:
            changes |= {"fired": schedule.fired + 1, "last_due_ms": firing.due_ms, "last_fired_ms": now}
            changes |= {"last_sequence": sequence}
        if late:
            changes["late"] = schedule.late + 1
        if firing.skipped:
            changes["skipped"] = schedule.skipped + firing.skipped
        cleared = {"why": "", "why_code": "", "waiting_ms": 0} if schedule.why else {}
        return self.schedules.change(schedule, now, sequence, **changes, **cleared)

    def wait(self, queue: int, name: str, problem: BatonError, now: int) -> None:
        """Record why a schedule that is due cannot fire."""
        now = self.expiry.begin(now)
        schedule = self.schedules.find(queue, name)
        if schedule is not None and schedule.fires:
            self._wait(schedule, problem, now)

    def _wait(self, schedule: Schedule, problem: BatonError, now: int) -> Schedule:
        if schedule.why_code == problem.code:
            return schedule  # recorded once, however often it is tried
        why, since_ms = problem.message[:_REASON_MAX], schedule.waiting_ms or now
        return self.schedules.change(schedule, now, why=why, why_code=problem.code, waiting_ms=since_ms)

    # --- between the shards of a queue -------------------------------------------------------------------

    def moves_to(self, schedule: Schedule) -> int:
        """The shard that a schedule is to be moved to, because this one does not take its messages any more; or STAYS.

        A FIFO group stays on this shard while it has a message here, and so do its schedules.
        """
        queue = self.messages.queue_state(schedule.queue)
        spread = queue.policy.spread
        if not spread:
            return STAYS
        there = parse(spread)
        if not queue.fifo:
            return STAYS if takes(spread, self.number) else there.first
        hashed = key_hash(schedule.group)
        if not self.new_messages.arrivals.has_moved(queue, hashed):
            return STAYS
        way = there.asked(hashed)
        return way[way.index(self.number) + 1] if self.number in way[:-1] else way[-1]

    def begin_move(self, queue: int, name: str, to_shard: int, now: int) -> Schedule:
        """Stop firing a schedule here, because it belongs on another shard of its queue now."""
        now = self.expiry.begin(now)
        return self.schedules.change(self._found(queue, name), now, moving_to=to_shard)

    def adopt_schedule(self, schedule: Schedule, now: int) -> Schedule:
        """Accept a schedule from another shard of its queue. Doing it again changes nothing."""
        now = self.expiry.begin(now)
        self.messages.queue_state(schedule.queue)
        known = self.schedules.find(schedule.queue, schedule.name)
        if known is not None and known.revision >= schedule.revision:
            return known
        values = {**schedule.values(), "moving_to": STAYS, "why": "", "why_code": "", "waiting_ms": 0}
        return self.schedules.put(Schedule.from_values(values), now)

    def _found(self, queue: int, name: str) -> Schedule:
        schedule = self.schedules.find(queue, name)
        if schedule is None:
            raise ScheduleNotFound
        return schedule

    def _check_size(self, schedule: Schedule, before: int) -> None:
        size = weight(schedule)
        if size > SCHEDULE_BYTES_MAX:
            raise TooLarge(f"The schedule has {size} bytes with its message; at most {SCHEDULE_BYTES_MAX} are allowed.")
        if self.schedules.bytes - before + size > ALL_BYTES_MAX:
            raise OverLimit(f"The schedules of the shard would have more than {ALL_BYTES_MAX} bytes. Delete some.")
