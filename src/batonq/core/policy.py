"""A queue's policy: what a shard must know to decide. The shard gets it as a `PolicySet` record, in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

SECOND_MS = 1000
PAUSES_DELIVERY = ("delivery", "both")
PAUSES_SENDS = ("sends", "both")
# The number of a queue that was deleted, in a link to it. No queue ever has this number, so whatever is moved there is
# refused, until a queue with that name exists again.
MISSING_QUEUE = 0xFFFFFFFF


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    queue: int  # the queue's number, which is never reused
    tenant: str
    name: str
    version: int = 0  # the catalog version that set it
    fifo: bool = False
    delay_ms: int = 0
    visibility_ms: int = 30 * SECOND_MS
    retention_ms: int = 345_600 * SECOND_MS
    dedup_window_ms: int = 300 * SECOND_MS
    dedup_per_group: bool = False
    dedup_lives: bool = False  # a key applies while its message lives, instead of for the window
    max_receives: int = 0  # 0: unlimited
    dead_letter_queue: int = 0  # 0: none
    dead_letter_shard: int = 0
    dead_letter_spread: str = ""  # the shards of that queue if it has several, see spread.py; empty: one shard
    dead_letter_on_failure: bool = False  # otherwise at the next receive, as in SQS
    expiry_to_dead_letter: bool = False
    strict_receipts: bool = False
    ageing_ms: int = 300 * SECOND_MS  # waiting this long raises a message by one priority; 0: no ageing
    in_flight_max: int = 120_000
    messages_max: int = 0  # 0: no limit for this queue
    bytes_max: int = 0
    spread: str = ""  # which shard has which keys, for a queue on several shards: see spread.py
    sla_seconds: int = 0
    alarm_severity: str = ""
    retry: str = ""  # delay of a nacked message, see retry.py; empty: no delay
    # The fields from here on are in a log only if they are set, so that a log without them stays as it was.
    paused: str = ""  # delivery, sends or both; empty: not paused
    deliveries_per_s: int = 0  # cap of the whole queue, which its shards share; 0: none
    only_group: str = ""  # deliver only this message group; empty: all
    priority_min: int = 0  # deliver only messages of this priority or above
    retry_expired: bool = False  # the delay also applies when a lease expires
    retain_ms: int = 0  # how long history is retained for reader groups and replays; 0: not at all
    topic: bool = False  # a topic: messages sent to it are copied to the queues of its subscriptions

    @property
    def is_restricted(self) -> bool:
        """Whether sends or deliveries are paused, paced or limited to some messages."""
        return bool(self.paused or self.deliveries_per_s or self.only_group or self.priority_min)

    def values(self) -> dict[str, Any]:
        values = dict(zip(FIELD_NAMES, _FIELDS(self), strict=True))
        for name, default in _LATER_DEFAULTS.items():
            if values[name] == default:
                del values[name]
        return values

    def encode(self) -> bytes:
        return json.dumps(self.values(), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> QueuePolicy:
        """Decode a policy. Fields that this release does not know are ignored, because policies only gain fields."""
        return cls(**{key: value for key, value in json.loads(data).items() if key in FIELD_NAMES})


FIELD_NAMES = tuple(field.name for field in fields(QueuePolicy))
_FIELDS = attrgetter(*FIELD_NAMES)
_LATER_DEFAULTS = {field.name: field.default for field in fields(QueuePolicy)[FIELD_NAMES.index("paused") :]}
