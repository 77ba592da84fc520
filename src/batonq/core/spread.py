"""Where a queue's messages go when it lies on several shards: pure, and the same on every node.

What has a key goes to the shard of its key, so that one shard sees all that a key is compared with: the message group
of a FIFO queue, else the deduplication key, else the producer. A key hashes to one of 256 slots, and each slot belongs
to one of the queue's shards. What has no key may go to any.

The hash of a group is the one by which a shard knows its groups, so a shard can tell the slot of a message too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from batonq.core.ids import key_hash
from batonq.queue_attributes import SPREAD_MAX

SLOTS = 256
GROWTHS_MAX = 8  # of one queue that are not over
PLACES_MAX = 4 * SPREAD_MAX  # the same with those that it leaves, and those that a FIFO queue has left
NUMBER_BITS = 46  # of a sequence, in the number of a message in its queue


class Spread(NamedTuple):
    """The shards of a queue, and for each slot the place in `shards` of the one that it belongs to."""

    shards: tuple[int, ...]
    slots: bytes = b""  # none at all: everything belongs to the first
    before: bytes = b""  # the same before the queue grew, once for each growth that is not over, oldest first
    left: int = 0  # shards that came before these, and that the queue has left

    @property
    def first(self) -> int:
        return self.taking[0]

    @property
    def taking(self) -> tuple[int, ...]:
        """The shards that take new messages: all but those that the queue is leaving, which have no slot any more."""
        if len(self.shards) == 1:
            return self.shards
        return tuple(shard for place, shard in enumerate(self.shards) if place in self.slots)

    def of_hash(self, hashed: int) -> int:
        """The shard of a key, by the key's hash."""
        return self.shards[self.slots[hashed % SLOTS]] if self.slots else self.shards[0]

    def of_key(self, key: str) -> int:
        return self.of_hash(key_hash(key)) if self.slots else self.shards[0]

    def asked(self, hashed: int) -> list[int]:
        """The shards to ask about a key, one after the other until one takes it: those that had it before the queue
        grew, then its own. Mostly there is only that one.
        """
        if not self.before:
            return [self.of_hash(hashed)]
        places = [*self.before[hashed % SLOTS :: SLOTS], self.slots[hashed % SLOTS]]
        return list(dict.fromkeys(self.shards[place] for place in places))

    def numbers_from(self, shard: int) -> int:
        """What is added to the sequence of a message on this shard, to number it in its queue.

        A key only ever moves to a shard that came later, so the numbers of a group rise wherever it lies, and shards
        that a queue has left are counted on. The largest is below 2**53, which every reader of JSON takes as it is.
        """
        return self.left + self.shards.index(shard) << NUMBER_BITS

    def place_of_number(self, number: int) -> tuple[int, int]:
        """The place of the shard that gave a message this number, and its sequence there; of a shard that the queue has
        left, what comes before all others.
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
        """Where keys belong, without where they were."""
        return self._replace(before=b"")

    def grown(self, shards: Iterable[int]) -> Spread:
        """With more shards, which take their part of the slots: each of the others gives up as few as can be.

        A shard that gave up a slot is still the first to ask about it (`asked`). It goes on with FIFO groups that it
        has messages of, knows what it was sent before, and says of everything else that it has moved. What it says that
        of once, it never takes again, so that whoever was told so may rely on it. Once it has nothing left and nothing
        that it remembers counts any more, it need not be asked (`settled`).
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
        """On these other shards, which take all of the slots: those that it has are left like slots that were given up,
        and once there is nothing left, they go (`settled`).
        """
        start = len(self.shards)
        slots = bytes(start + slot % len(shards) for slot in range(SLOTS))
        return Spread((*self.shards, *shards), slots, self.before + (self.slots or bytes(SLOTS)), self.left)

    @property
    def growths(self) -> int:
        """How many are not over."""
        return len(self.before) // SLOTS

    def settled(self, shard: int) -> Spread:
        """Without asking this shard about slots that it gave up, and without it if it has no other. A shard is left
        only after those that came before it, so that the others keep their numbers.
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
    """The spread of a new queue: slots in turn."""
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
    """Whether a shard takes messages that have no key, by the text of its queue's spread."""
    return not text or shard in parse(text).taking


class Hint(NamedTuple):
    """What a shard has of a queue right now, as far as its owner told. It promises nothing."""

    visible: int  # messages that could be received; of a FIFO queue, at least so many when it is not 0
    priority: int = 0  # of the one that would be given next
    since_ms: int = 0  # and since when it could be

    def rank(self, ageing_ms: int) -> tuple[int, int]:
        """Who comes first has the lowest: as the shard itself chooses among its priorities."""
        if not ageing_ms:
            return -self.priority, self.since_ms
        return self.since_ms - self.priority * ageing_ms, -self.priority


def shares(wanted: int, hints: Sequence[tuple[int, Hint]], ageing_ms: int, here: Iterable[int]) -> dict[int, int]:
    """How many messages to ask each shard for, (shard, hint) given: of the best as many as it has, then of the next.

    Being `here` breaks ties, and nothing else.
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
    """A whole number in parts that are in proportion to the weights, and sum up to it; equal when all weights are 0."""
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
