"""Requests that their sender named: the same one again is answered as the first time, and makes no second message.

A named request is remembered under two keys, that of its name and that of its name and content: a name that is known
with other content is a conflict. One whose messages were all taken is remembered as a run; one that was taken in part
remembers each message that was taken, so that a repetition sends only the others. A message that was a duplicate by its
deduplication id counts as taken: its key may be forgotten before the request is.

These requests and those of SDKs, which are remembered for two minutes, are in one table, and each has its own share of
it. A request that finds its share full is refused: what was promised for a time is not forgotten before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from batonq.core.commands import Accepted, Send
from batonq.core.ids import key_hash, message_id
from batonq.core.shard.dedup import Known
from batonq.core.shard.sending import INVOCATION_WINDOW_S, Sending, part_of
from batonq.errors import BatonError, IdempotencyConflict, OverLimit

WINDOW_MIN_MS = 128_000  # by longer windows these requests are told from those of SDKs, which have a share of their own
_FULL = (
    "The shard's limit of remembered Idempotency-Keys is reached. Send without a key, or retry when older keys "
    "have expired."
)
_NEW, _DUPLICATE = 1, 2  # what a remembered message was: as many messages as `_remember` counts, or one known before


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
            if self.requests.full(now // 1000, self.limits.requests_max, INVOCATION_WINDOW_S):
                if not sends:
                    raise OverLimit(_FULL)
                return [OverLimit(_FULL) for _ in sends], False
        parts = [part_of(request, at) for at in range(len(sends))] if known is not None else []
        taken = {at: found for at, key in enumerate(parts) if (found := self.requests.get(key, now // 1000))}
        queue.duplicates += len(taken)
        fresh = iter(self.send(number, [send for at, send in enumerate(sends) if at not in taken], now))
        results = [self._part_as_first(taken[at]) if at in taken else next(fresh) for at in range(len(sends))]
        run = _run_of(results)
        if run and not taken:
            self._remember_once(number, (name, request), run, len(sends), now, once.window_ms)
            return results, False
        accepted = {at: result for at, result in enumerate(results) if isinstance(result, Accepted) and at not in taken}
        if known is None and (accepted or not sends):
            first = next((result.sequence for result in accepted.values()), 0)
            self._remember_once(number, (name, request), first, 0, now, once.window_ms)
        for at, result in accepted.items():
            count = _DUPLICATE if result.duplicate else _NEW
            self._remember_once(number, (part_of(request, at),), result.sequence, count, now, once.window_ms)
        return results, bool(taken)

    def _as_first(self, sequence: int) -> Accepted:
        """The answer as it was the first time."""
        return Accepted(sequence, message_id(self.number, sequence), False)

    def _part_as_first(self, part: Known) -> Accepted:
        """The same of one message of a request that was taken in part."""
        if part.fingerprint != _DUPLICATE:
            return self._as_first(part.sequence)
        return Accepted(part.sequence, message_id(self.number, part.sequence) if part.sequence else "", True)

    def _remember_once(
        self, number: int, keys: Sequence[int], sequence: int, count: int, now: int, window_ms: int
    ) -> None:
        until = now + max(window_ms, WINDOW_MIN_MS)
        for key in keys:
            self._request(number, key, sequence, count, now, until)


def _run_of(results: Sequence[Accepted | BatonError]) -> int:
    """The first sequence, when all are new messages with one sequence after the other; else 0."""
    first = results[0].sequence if results and isinstance(results[0], Accepted) else 0
    for at, result in enumerate(results):
        if not isinstance(result, Accepted) or result.duplicate or result.sequence != first + at:
            return 0
    return first
