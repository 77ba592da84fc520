"""How a queue's messages are assigned to its shards. Pure functions, with the same result on every node.

A message with a key goes to the shard of its key, so that one shard sees everything that a key is compared with. The
key is the message group in a FIFO queue, otherwise the deduplication key, otherwise the producer. A key hashes to one
of 256 slots, and each slot belongs to one of the queue's shards. A message without a key may go to any shard.

The hash of a group is the one that identifies the group within a shard, so a shard can compute the slot of a message
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from batonq.core.ids import key_hash
from batonq.queue_attributes import SPREAD_MAX

SLOTS = 256
GROWTHS_MAX = 8  # unfinished growths of one queue
PLACES_MAX = 4 * SPREAD_MAX  # shards of one queue, with those it is leaving and those a FIFO queue has left
NUMBER_BITS = 46  # bits of the sequence in a message's number within its queue


class Spread(NamedTuple):
    """The shards of a queue, and for each slot the index in `shards` of its shard."""

    shards: tuple[int, ...]
    slots: bytes = b""  # empty: everything belongs to the first shard
    before: bytes = b""  # the slots before each unfinished growth of the queue, oldest first
    left: int = 0  # number of earlier shards that the queue has left

    @property
    def first(self) -> int:
        return self.taking[0]

    @property
    def taking(self) -> tuple[int, ...]:
        """The shards that accept new messages: all but those that the queue is leaving, which have no slot any more."""
        if len(self.shards) == 1:
            return self.shards
        return tuple(shard for place, shard in enumerate(self.shards) if place in self.slots)

    def of_hash(self, hashed: int) -> int:
        """The shard of a key, by the key's hash."""
        return self.shards[self.slots[hashed % SLOTS]] if self.slots else self.shards[0]

    def of_key(self, key: str) -> int:
        return self.of_hash(key_hash(key)) if self.slots else self.shards[0]

    def asked(self, hashed: int) -> list[int]:
        """The shards to ask about a key, in order, until one accepts it: the shards that had the key before the
        queue grew, then its current shard. Usually the list has only the current one.
        """
        if not self.before:
            return [self.of_hash(hashed)]
        places = [*self.before[hashed % SLOTS :: SLOTS], self.slots[hashed % SLOTS]]
        return list(dict.fromkeys(self.shards[place] for place in places))

    def numbers_from(self, shard: int) -> int:
        """The offset from a message's sequence on this shard to its number in its queue.

        A key moves only to later shards, so the numbers of a group keep rising, and shards that the queue has left
        still count. The largest number is below 2**53, which every JSON reader represents exactly.
        """
        return self.left + self.shards.index(shard) << NUMBER_BITS

    def place_of_number(self, number: int) -> tuple[int, int]:
        """The index of the shard that gave a message this number, and the sequence there. For a shard that the queue
        has left the result is (0, 0), which is before all messages.
        """
        place = (number >> NUMBER_BITS) - self.left
        return (place, number & ((1 << NUMBER_BITS) - 1)) if place >= 0 else (0, 0)

    def text(self) -> str:
        """A short text that `parse` reads."""
        text = ",".join(map(str, self.shards)) + ":" + self.slots.hex()
        if self.left:
            text = f"{self.left}+{text}"
        return f"{text}:{self.before.hex()}" if self.before else text

    @property
    def now(self) -> Spread:
        """The current spread, without the earlier shards of keys."""
        return self._replace(before=b"")

    def grown(self, shards: Iterable[int]) -> Spread:
        """The spread with more shards. Each new shard gets its part of the slots, and each old shard gives up as few
        as possible.

        A shard that gave up a slot is still asked first about it (`asked`). The shard keeps FIFO groups that it has
        messages of, recognises what it was sent before, and answers for everything else that it has moved. After that
        answer the shard never accepts the key again, so callers may rely on the answer. The shard need not be asked any
        more once it has no messages left and nothing that it remembers applies any more (`settled`).
        """
        every = (*self.shards, *shards)
        old = self.slots or bytes(SLOTS)
        slots = bytearray(old)
        counts = [slots.count(place) for place in range(len(every))]
        takers = [place for place in range(len(every)) if counts[place] or place >= len(self.shards)]
        most = dict.fromkeys(range(len(every)), 0)
        for at, place in enumerate(takers):
            most[place] = SLOTS * (at + 1) // len(takers) - SLOTS * at // len(takers)
        to = len(self.shards)
        for slot in range(SLOTS):
            place = slots[slot]
            if counts[place] > most[place]:
                while to < len(every) - 1 and counts[to] >= most[to]:
                    to += 1
                counts[place] -= 1
                counts[to] += 1
                slots[slot] = to
        return Spread(every, bytes(slots), self.before + old, self.left)

    def moved(self, shards: Sequence[int]) -> Spread:
        """The spread on other shards, which get all slots. The current shards are treated like shards that gave up
        slots, and are dropped once they have nothing left (`settled`).
        """
        start = len(self.shards)
        slots = bytes(start + slot % len(shards) for slot in range(SLOTS))
        return Spread((*self.shards, *shards), slots, self.before + (self.slots or bytes(SLOTS)), self.left)

    @property
    def growths(self) -> int:
        """The number of unfinished growths."""
        return len(self.before) // SLOTS

    def settled(self, shard: int) -> Spread:
        """The spread in which this shard is no longer asked about slots that it gave up. A shard without any other
        slot is dropped, but only after all shards before it, so that the others keep their numbers.
        """
        maps = [self.before[start : start + SLOTS] for start in range(0, len(self.before), SLOTS)]
        later, kept = self.slots, b""
        for older in reversed(maps):
            pairs = zip(older, later, strict=True)
            older = bytes(after if self.shards[was] == shard else was for was, after in pairs)
            if older != later:
                kept = older + kept
            later = older
        return Spread(self.shards, self.slots, kept, self.left)._without_left()

    def _without_left(self) -> Spread:
        first = min(self.slots + self.before, default=0)
        shards, left = self.shards[first:], self.left + first
        if len(shards) == 1:
            return Spread(shards, left=left)
        closer = bytes(max(place - first, 0) for place in range(SLOTS))
        return Spread(shards, self.slots.translate(closer), self.before.translate(closer), left)


def even(shards: Sequence[int]) -> Spread:
    """The spread of a new queue: slots are assigned to shards in turn."""
    if len(shards) == 1:
        return Spread(tuple(shards))
    return Spread(tuple(shards), bytes(slot % len(shards) for slot in range(SLOTS)))


@lru_cache(maxsize=1024)
def parse(text: str) -> Spread:
    shards, slots, *before = text.split(":")
    left, _, shards = shards.rpartition("+")
    numbers = tuple(map(int, shards.split(",")))
    return Spread(numbers, bytes.fromhex(slots), bytes.fromhex("".join(before)), int(left or 0))


@lru_cache(maxsize=1024)
def takes(text: str, shard: int) -> bool:
    """Whether a shard accepts messages without a key, by the text of its queue's spread."""
    return not text or shard in parse(text).taking


class Hint(NamedTuple):
    """What a shard has of a queue now, as last reported by its owner. A hint guarantees nothing."""

    visible: int  # VISIBLE messages; if not 0, a FIFO queue has at least one eligible group
    priority: int = 0  # priority of the next message
    since_ms: int = 0  # time since which the next message has been VISIBLE

    def rank(self, ageing_ms: int) -> tuple[int, int]:
        """A sort key, lowest first, with the order that a shard uses between its priorities."""
        if not ageing_ms:
            return -self.priority, self.since_ms
        return self.since_ms - self.priority * ageing_ms, -self.priority


def shares(wanted: int, hints: Sequence[tuple[int, Hint]], ageing_ms: int, here: Iterable[int]) -> dict[int, int]:
    """How many messages to ask each shard for, given (shard, hint): as many as the best shard has, then from the
    next.

    Being `here` only breaks ties.
    """
    local = set(here)
    ordered = sorted(hints, key=lambda one: (one[1].rank(ageing_ms), one[0] not in local, one[0]))
    asked: dict[int, int] = {}
    for shard, hint in ordered:
        if wanted <= 0:
            break
        if hint.visible:
            asked[shard] = min(wanted, hint.visible)
            wanted -= asked[shard]
    return asked


def divided(total: int, weights: Sequence[int]) -> list[int]:
    """Divide `total` into integers in proportion to the weights, which sum up to it; equal parts if all weights are
    0.
    """
    if not any(weights):
        weights = [1] * len(weights)
    whole = sum(weights)
    parts: list[int] = []
    before = passed = 0
    for weight in weights:
        passed += weight
        until = total * passed // whole
        parts.append(until - before)
        before = until
    return parts
