"""What a worker has of one shard of a reader group: which messages are out, done or failed, in the order of the log.

Only a prefix of the messages can be committed. A message that failed is reported once everything before it is done,
because skipping it commits its position. Messages of one message group are handed out one at a time, in order.
"""

from __future__ import annotations

from enum import Enum

from batonq.client.models import RetainedFields


class State(Enum):
    WAITING = "waiting"
    OUT = "out"  # a handler has it
    DONE = "done"
    FAILED = "failed"  # to be reported when it is the first


class Entry:
    __slots__ = ("error", "failures", "message", "not_before_s", "poison", "state")

    def __init__(self, message: RetainedFields) -> None:
        self.message = message
        self.state = State.WAITING
        self.not_before_s = 0.0
        self.failures = 0
        self.error = ""
        self.poison = False


class ShardProgress:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}  # by position, in the order of the log; without those that are committed
        self._last = 0  # the newest position that was ever added

    def add(self, message: RetainedFields) -> None:
        """Add a fetched message, unless it was added before."""
        number = int(message.position.partition(":")[2])
        if number > self._last:
            self._last = number
            self.entries[message.position] = Entry(message)

    def ready(self, limit: int, now_s: float) -> list[Entry]:
        """Hand out at most `limit` messages: none of a message group that has an earlier message here."""
        found: list[Entry] = []
        busy: set[str] = set()
        for entry in self.entries.values():
            if len(found) >= limit:
                break
            group = entry.message.group
            if entry.state is State.WAITING and entry.not_before_s <= now_s and group not in busy:
                entry.state = State.OUT
                found.append(entry)
            if group and entry.state is not State.DONE:
                busy.add(group)
        return found

    def take_done(self) -> RetainedFields | None:
        """Remove the messages at the front that are done; returns the last of them, which can be committed."""
        last: RetainedFields | None = None
        for position, entry in [*self.entries.items()]:
            if entry.state is not State.DONE:
                break
            last = entry.message
            del self.entries[position]
        return last

    @property
    def first(self) -> Entry | None:
        return next(iter(self.entries.values()), None)
