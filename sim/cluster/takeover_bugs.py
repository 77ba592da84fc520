"""Bugs to plant into the moment when a shard gets a new owner: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from batonq.core.records import State
from batonq.core.shard.commands.queues import QueueCommands
from sim.patches import Patches


def _at_take_over(act: Callable[[QueueCommands, int], None]) -> Patches:
    take = QueueCommands.take_ownership

    def take_and_act(self: QueueCommands, epoch: int, base_ms: int, grace_ms: int) -> None:
        take(self, epoch, base_ms, grace_ms)
        act(self, max(base_ms, self.journal.last_time_ms))

    return [(QueueCommands, "take_ownership", take_and_act)]


def waiting_copies_forgotten() -> Patches:
    """A new owner of a topic's shard drops the copies that their queues refused so far."""

    def drop(self: QueueCommands, now: int) -> None:
        fanout, columns = self.fanout, self.columns
        for slot in [slot for slot in fanout.fanned if columns.state[slot] != State.OWED]:
            fanout.drop(self.queues[columns.queue[slot]], slot, now)

    return _at_take_over(drop)


def schedules_fire_again() -> Patches:
    """A new owner fires the last due time of each schedule again."""

    def go_back(self: QueueCommands, now: int) -> None:
        for schedule in [one for one in self.schedules if one.last_due_ms]:
            self.schedules.change(schedule, now, next_ms=schedule.last_due_ms)

    return _at_take_over(go_back)


def reader_positions_lost() -> Patches:
    """A new owner does not know how far reader groups have committed."""

    def begin_anew(self: QueueCommands, now: int) -> None:
        for queue in self.queues.values():
            for group, reader in (queue.readers or {}).items():
                assert queue.readers is not None
                queue.readers[group] = replace(reader, position=0, failed=0, failures=0)

    return _at_take_over(begin_anew)


TAKEOVER_BUGS: dict[str, Callable[[], Patches]] = {
    "waiting-copies-forgotten": waiting_copies_forgotten,
    "schedules-fire-again": schedules_fire_again,
    "reader-positions-lost": reader_positions_lost,
}
