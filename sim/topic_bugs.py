"""Bugs to plant into topics: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from batonq.core.records import Reason
from batonq.core.shard.commands import publish as publish_module
from batonq.core.shard.commands.publish import Publishing
from batonq.core.shard.moves.fanout import FanOut
from sim.patches import Patches


def copies_overtake() -> Patches:
    """A copy is sent although an earlier copy of its group waits in the topic."""
    numbers = count(1)

    def no_line(subscription: int, group: int) -> int:
        del group
        return subscription << 32 | next(numbers)

    return [(publish_module, "line_key", no_line)]


def refused_copies_dropped() -> Patches:
    """A copy that a full queue refuses is dropped."""

    def drop(self: FanOut, queue: Any, slot: int, to: int, verdict: Reason, now: int) -> None:
        if verdict != Reason.ACCEPTED:
            self.drop(queue, slot, now)

    return [(FanOut, "on_settled", drop)]


def second_subscription_forgotten() -> Patches:
    """A publish has no copy for its last subscription now and then."""
    copy = Publishing._copy

    def careless(self: Publishing, queue: Any, topic: Any, batch: Any, matches: Any, now: int) -> None:
        if batch.sequence % 5 == 0:
            matches = [matching[:-1] for matching in matches]
        if any(matches):
            copy(self, queue, topic, batch, matches, now)

    return [(Publishing, "_copy", careless)]


TOPIC_BUGS: dict[str, Callable[[], Patches]] = {
    "copies-overtake": copies_overtake,
    "refused-copies-dropped": refused_copies_dropped,
    "second-subscription-forgotten": second_subscription_forgotten,
}
