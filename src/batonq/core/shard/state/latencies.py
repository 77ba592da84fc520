"""How long messages waited and were handled, per queue, as histograms with one bucket per power of two milliseconds.

Soft state for metrics: it counts what this owner decided, and is not replayed. Messages that were sent together usually
have the same times, and are then counted together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Union

from batonq.core.shard.state.columns import DELTA_EXACT_MS, Columns, delta_ms

Values = Union[list[int], "array[int]"]  # an array cannot be subscripted at run time
BUCKETS = 64  # a duration in milliseconds is in the bucket with the number of its bits
RECEIVES_MAX = 31  # more receives are counted as this many


class QueueLatencies:
    """The histograms of one queue. The sums are in milliseconds."""

    __slots__ = (
        "handled",
        "handled_ms",
        "lived",
        "lived_ms",
        "receives",
        "receives_sum",
        "retried",
        "waited",
        "waited_ms",
    )

    def __init__(self) -> None:
        self.waited = [0] * BUCKETS  # from the send to the first receive
        self.handled = [0] * BUCKETS  # from the last receive to the delete
        self.lived = [0] * BUCKETS  # from the send to the delete
        self.receives = [0] * (RECEIVES_MAX + 1)  # number of receives of deleted messages
        self.waited_ms = 0
        self.handled_ms = 0
        self.lived_ms = 0
        self.receives_sum = 0
        self.retried = 0  # receives of messages that had been received before


class Latencies:
    """`queues` has the queues with messages that were received or deleted since the shard was opened."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueLatencies] = {}
        self.on = True  # False: nothing is counted, to measure what counting costs

    def find(self, queue: int) -> QueueLatencies | None:
        """The histograms of a queue; None if nothing was counted."""
        return self.queues.get(queue)

    def of(self, queue: int) -> QueueLatencies:
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = QueueLatencies()
        return found

    def received_first(self, queue: int, sents: Values, now: int) -> None:
        """Count messages that are leased for the first time, by the times at which they were sent."""
        if not self.on:
            return
        found = self.of(queue)
        waited = found.waited
        count, sent = len(sents), sents[0]
        if count == 1 or _all_equal(sents):
            waited_ms = now - sent
            waited[waited_ms.bit_length()] += count
            found.waited_ms += waited_ms * count
            return
        for sent in sents:
            waited[(now - sent).bit_length()] += 1
        found.waited_ms += now * count - sum(sents)

    def received(self, queue: int, columns: Columns, slots: Sequence[int], now: int) -> None:
        """Count messages that are leased, some of them perhaps not for the first time."""
        if not self.on:
            return
        counts, sents = columns.count, columns.sent
        first = [sents[slot] for slot in slots if counts[slot] == 1]
        if first:
            self.received_first(queue, first, now)
        if len(first) < len(slots):
            self.of(queue).retried += len(slots) - len(first)

    def deleted(self, queue: int, columns: Columns, slots: Sequence[int], now: int) -> None:
        """Count messages that their last holders delete. Called while their columns are still filled."""
        if not self.on:
            return
        found = self.of(queue)
        count = len(slots)
        sents: Values
        leased: Values
        receives: Values
        if isinstance(slots, range):
            first, end = slots.start, slots.stop
            sents, leased, receives = columns.sent[first:end], columns.leased[first:end], columns.count[first:end]
        else:
            sents = [columns.sent[slot] for slot in slots]
            leased = [columns.leased[slot] for slot in slots]
            receives = [columns.count[slot] for slot in slots]
        if max(leased) > DELTA_EXACT_MS:
            leased = [*map(delta_ms, leased)]
        sent, lease = sents[0], leased[0]
        if count == 1 or (_all_equal(sents) and _all_equal(leased)):
            lived_ms = now - sent
            found.lived[lived_ms.bit_length()] += count
            found.handled[(lived_ms - lease).bit_length()] += count
            found.lived_ms += lived_ms * count
            found.handled_ms += (lived_ms - lease) * count
        else:
            lived, handled = found.lived, found.handled
            for sent, lease in zip(sents, leased, strict=True):
                lived_ms = now - sent
                lived[lived_ms.bit_length()] += 1
                handled[(lived_ms - lease).bit_length()] += 1
            total_ms = now * count - sum(sents)
            found.lived_ms += total_ms
            found.handled_ms += total_ms - sum(leased)
        if receives[0] == 1 and _all_equal(receives):
            found.receives[1] += count
            found.receives_sum += count
        else:
            for number in receives:
                found.receives[min(number, RECEIVES_MAX)] += 1
                found.receives_sum += number


def _all_equal(values: Values) -> bool:
    """Whether a list or an array has the same value in all places. The comparison of arrays is much faster than
    counting.
    """
    return values[:1] * len(values) == values
