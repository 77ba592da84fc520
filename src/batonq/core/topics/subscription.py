"""A subscription as its topic's shard knows it. The shard gets it as a `SubscriptionSet` record, in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from batonq.topic_attributes import ATTRIBUTES_SCOPE


@dataclass(slots=True, frozen=True)
class Subscription:
    """Where copies of a topic's messages go. Links to queues are as in `QueuePolicy`; a queue that was deleted has a
    number that no queue has.
    """

    number: int  # never reused
    topic: int
    version: int  # the catalog version that set it
    queue: int
    shard: int
    spread: str = ""
    name: str = ""  # of the queue, for messages to people
    fifo: bool = False  # whether the queue is a FIFO queue
    raw: bool = False  # raw delivery: the body without SNS's envelope
    filter: str = ""  # the filter policy; empty: every message
    scope: str = ATTRIBUTES_SCOPE
    dead_letter_queue: int = 0  # 0: none
    dead_letter_shard: int = 0
    dead_letter_spread: str = ""
    dead_letter_fifo: bool = False

    def values(self) -> dict[str, Any]:
        return dict(zip(FIELD_NAMES, _FIELDS(self), strict=True))

    def encode(self) -> bytes:
        return json.dumps(self.values(), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Subscription:
        """Fields that this release does not know are ignored."""
        return cls(**{key: value for key, value in values.items() if key in FIELD_NAMES})

    @classmethod
    def decode(cls, data: bytes) -> Subscription:
        return cls.from_values(json.loads(data))


FIELD_NAMES = tuple(field.name for field in fields(Subscription))
_FIELDS = attrgetter(*FIELD_NAMES)
