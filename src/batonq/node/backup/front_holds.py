"""Keeps the fronts of logs while a backup reads them.

A hold ends when the backup is finished, when nobody has read from it for a while, or after a day at most. If a disk is
full, holds do not count: a backup must not stop the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batonq.errors import OverLimit
from batonq.log.interface import Log, Room

IDLE_S = 300.0
TELL_S = 30.0  # how often other processes are told that a backup is being read
LIFE_S = 86_400.0
HOLDS_MAX = 4


@dataclass(slots=True)
class Hold:
    frames: dict[int, tuple[int, int]]  # shard → the first frame to keep, and the frame at which the backup ends
    created_s: float
    used_s: float
    told_s: float

    def ended(self, now_s: float) -> bool:
        return now_s - self.used_s > IDLE_S or now_s - self.created_s > LIFE_S


class FrontHolds:
    """The holds of one node or process, by the id of the backup.

    `tell` is called from time to time while a backup is read here, because other processes do not see that.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self.tell: Callable[[str], None] | None = None
        self._seconds = seconds
        self._holds: dict[str, Hold] = {}

    def hold(self, backup: str, frames: Mapping[int, tuple[int, int]]) -> None:
        """Keep frames from now on, in addition to those that the same backup holds already. Raises OverLimit."""
        now_s = self._seconds()
        self._sweep(now_s)
        hold = self._holds.get(backup)
        if hold is None:
            if len(self._holds) >= HOLDS_MAX:
                raise OverLimit(
                    f"{HOLDS_MAX} backups are in progress, which is the maximum. Wait until one has finished; a backup "
                    f"that nobody reads ends after {IDLE_S:g} s."
                )
            hold = self._holds[backup] = Hold({}, now_s, now_s, now_s)
        hold.frames.update(frames)

    def knows(self, backup: str) -> bool:
        self._sweep(self._seconds())
        return backup in self._holds

    def release(self, backup: str) -> bool:
        """Returns whether the backup was in progress."""
        return self._holds.pop(backup, None) is not None

    def used(self, shard: int, frame: int) -> None:
        """Somebody reads a shard's log from this frame on."""
        for backup, hold in self._holds.items():
            first, stop = hold.frames.get(shard, (0, 0))
            if first <= frame < stop:
                hold.used_s = self._seconds()
                if self.tell is not None and hold.used_s - hold.told_s >= TELL_S:
                    hold.told_s = hold.used_s
                    self.tell(backup)

    def keep(self, backup: str) -> bool:
        """Another process reads a part of the backup. Returns whether it is in progress here."""
        if not self.knows(backup):
            return False
        self._holds[backup].used_s = self._seconds()
        return True

    def limit(self, log: Log, until: int) -> int:
        """The frame up to which (exclusive) a log may be deleted, when the caller wants `until`."""
        if not self._holds or log.room() is not Room.PLENTY:
            return until
        self._sweep(self._seconds())
        held = [hold.frames[log.shard][0] for hold in self._holds.values() if log.shard in hold.frames]
        kept = min([until, *held])
        return until if kept == until else log.droppable(max(kept, log.first))

    def _sweep(self, now_s: float) -> None:
        for backup in [backup for backup, hold in self._holds.items() if hold.ended(now_s)]:
            del self._holds[backup]
