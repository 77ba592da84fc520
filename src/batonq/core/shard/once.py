"""Requests that their sender named: the same one again is answered as the first time, and makes no second message.

A named request is remembered under two keys, that of its name and that of its name and content: a name that is known
with other content is a conflict. One whose messages were all taken is remembered as a run; one that was taken in part
remembers each message that was taken, so that a repetition sends only the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from batonq.core.commands import Accepted, Send
from batonq.core.ids import key_hash, message_id
from batonq.core.shard.sending import Sending, part_of
from batonq.errors import BatonError, IdempotencyConflict, OverLimit


class Once(NamedTuple):
    """A request's name and what it says, as text; and for how long it is remembered."""

    name: str
    content: str
    window_ms: int


class SendingOnce(Sending):
    def send_once(
        self, number: int, sends: Sequence[Send], now: int, once: Once
    ) -> tuple[list[Accepted | BatonError], bool]:
        """Take messages as `send` does, unless this was done already; and whether it was.

        There may be none here: then only the name is remembered, for a request whose messages go to other shards.
        """
        now = self.begin(now)
        queue = self.queue_state(number)
        name = key_hash(number, "once", once.name)
        request = key_hash(number, "once", once.name, once.content)
        known = self.requests.get(request, now // 1000)
        if known is not None and known.fingerprint:
            queue.duplicates += len(sends)
            first = known.sequence
            return [self._as_first(first + at) for at in range(len(sends))], True
        if known is None:
            if self.requests.get(name, now // 1000) is not None:
                if not sends:
                    raise IdempotencyConflict
                return [IdempotencyConflict() for _ in sends], False
            if len(self.requests) >= self.limits.requests_max:
                full = "Too many named requests are remembered; send without an idempotency key, or later."
                return [OverLimit(full) for _ in sends], False
        parts = [part_of(request, at) for at in range(len(sends))] if known is not None else []
        taken = {at: found.sequence for at, key in enumerate(parts) if (found := self.requests.get(key, now // 1000))}
        queue.duplicates += len(taken)
        first = self.next_sequence
        results = self.send(number, [send for at, send in enumerate(sends) if at not in taken], now)
        if not taken and self.next_sequence == first + len(sends):
            self._remember_once(number, (name, request), first, len(sends), now, once.window_ms)
            return results, False
        fresh = iter(results)
        merged = [self._as_first(taken[at]) if at in taken else next(fresh) for at in range(len(sends))]
        new = [
            (at, result.sequence)
            for at, result in enumerate(merged)
            if at not in taken and isinstance(result, Accepted) and not result.duplicate
        ]
        for at, sequence in new:
            self._remember_once(number, (part_of(request, at),), sequence, 1, now, once.window_ms)
        if new:
            self._remember_once(number, (name, request), new[0][1], 0, now, once.window_ms)
        return merged, bool(taken)

    def _as_first(self, sequence: int) -> Accepted:
        """The answer as it was the first time."""
        return Accepted(sequence, message_id(self.number, sequence), False)

    def _remember_once(
        self, number: int, keys: Sequence[int], sequence: int, count: int, now: int, window_ms: int
    ) -> None:
        for key in keys:
            self._remember(number, key, sequence, count, now, window_ms)
