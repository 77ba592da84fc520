"""Bodies in a payload store: which objects of the store this shard still needs.

A message whose body is in the store has a pointer to an object instead, made by the server (STORED) or by the client
that has stored the body (REFERS), see core/payload.py. Objects are shared by messages with the same body, also on other
shards, so nobody deletes an object because one message has ended: a sweeper asks every shard which objects it needs,
and deletes the rest. This shard needs an object

- while it has a message with it, in any state;
- for some time after such a message was moved to another shard: the sweeper may have asked the other shard before the
  message arrived there, and must then find it here;
- until the retention of the message in the queue's history has ended, and somewhat longer: it may be read and sent
  again at the last moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from batonq.core.payload import stored_key
from batonq.core.records import PAYLOADS_VERSION
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.queue_state import QueueState

KEPT_MS = 3_600_000  # longer than a sweeper takes to ask all shards


class StoredPayloads:
    def __init__(self, journal: Journal, queues: Mapping[int, QueueState]) -> None:
        self.journal = journal
        self.queues = queues
        self.of_slot: dict[int, str] = {}  # slot → key of the object; a note, see Messages.notes
        # Both in the order of their times, so that what has ended is at the front.
        self.moved: dict[str, int] = {}  # key → when a message with it was last moved to another shard, ms
        self.retained: dict[int, dict[str, int]] = {}  # queue → key → when a message with it last entered, ms

    def put(self, queue: QueueState, slot: int, key: str, time_ms: int) -> None:
        """A message with this object has entered the queue."""
        self.journal.use_format(PAYLOADS_VERSION)
        self.of_slot[slot] = key
        if queue.policy.retain_ms:
            _put_last(self.retained.setdefault(queue.number, {}), key, time_ms)
        if self.retained:
            self._forget_retained(time_ms)

    def put_payload(self, queue: QueueState, slot: int, payload: bytes, time_ms: int) -> None:
        """A message with this payload has entered the queue."""
        key = stored_key(payload)
        if key:
            self.put(queue, slot, key, time_ms)

    def copy(self, queue: QueueState, slot: int, source: int, time_ms: int) -> None:
        """The message in `slot` has the payload of the one in `source`."""
        key = self.of_slot.get(source)
        if key is not None:
            self.put(queue, slot, key, time_ms)

    def replace(self, slot: int, payload: bytes) -> None:
        """The message has a new payload."""
        if slot in self.of_slot and not stored_key(payload):
            del self.of_slot[slot]

    def leave(self, slot: int, time_ms: int) -> None:
        """The message has arrived on another shard. Its note is dropped afterwards."""
        key = self.of_slot.get(slot)
        if key is not None:
            _put_last(self.moved, key, time_ms)
            _drop_front(self.moved, time_ms - KEPT_MS)

    def _forget_retained(self, time_ms: int) -> None:
        """Forget what has ended, by the times of records, so that replay forgets the same."""
        for number in [*self.retained]:
            _drop_front(self.retained[number], self._ends_before(number, time_ms))
            if not self.retained[number]:
                del self.retained[number]

    def _ends_before(self, number: int, time_ms: int) -> int:
        """The retention of what entered the queue up to this time has ended."""
        queue = self.queues.get(number)
        return time_ms - KEPT_MS - (0 if queue is None or queue.closed else queue.policy.retain_ms)

    def needed(self, prefix: str, now_ms: int) -> set[str]:
        """The objects whose keys begin with `prefix` that must not be deleted."""
        found = {key for key in self.of_slot.values() if key.startswith(prefix)}
        found.update(
            key for key, moved_ms in self.moved.items() if moved_ms > now_ms - KEPT_MS and key.startswith(prefix)
        )
        for number, keys in self.retained.items():
            ended_ms = self._ends_before(number, now_ms)
            found.update(key for key, entered_ms in keys.items() if entered_ms > ended_ms and key.startswith(prefix))
        return found

    def facts(self) -> dict[str, Any]:
        """What must survive, as JSON values; empty in a shard that never had such a message."""
        if not (self.of_slot or self.moved or self.retained):
            return {}
        return {
            "stored": sorted(self.of_slot.items()),
            "stored_moved": [*self.moved.items()],
            "stored_retained": [[queue, [*keys.items()]] for queue, keys in sorted(self.retained.items())],
        }

    def load(self, facts: Mapping[str, Any]) -> None:
        for table in (self.of_slot, self.moved, self.retained):
            table.clear()
        if "stored" in facts:
            self.journal.use_format(PAYLOADS_VERSION)
            self.of_slot.update(facts["stored"])
            self.moved.update(facts["stored_moved"])
            self.retained.update((queue, dict(keys)) for queue, keys in facts["stored_retained"])

    def validate(self, live: Set[int]) -> None:
        assert self.of_slot.keys() <= live, "a message that is gone has a body in the payload store"
        for table in (self.moved, *self.retained.values()):
            assert [*table.values()] == sorted(table.values()), "what is kept for a time is not in the order of its end"
        assert all(self.retained.values()), "a queue without retained bodies is listed"


def _put_last(table: dict[str, int], key: str, time_ms: int) -> None:
    table.pop(key, None)
    table[key] = time_ms


def _drop_front(table: dict[str, int], ended_ms: int) -> None:
    while table:
        key = next(iter(table))
        if table[key] > ended_ms:
            break
        del table[key]
