"""A queue's policy: what a shard must know to decide. The shard gets it as a `PolicySet` record, in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

SECOND_MS = 1000


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
    dedup_lives: bool = False  # a key applies while its message lives, in addition to the window
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

    def values(self) -> dict[str, Any]:
        return dict(zip(FIELD_NAMES, _FIELDS(self), strict=True))

    def encode(self) -> bytes:
        return json.dumps(self.values(), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> QueuePolicy:
        """Decode a policy. Fields that this release does not know are ignored, because policies only gain fields."""
        return cls(**{key: value for key, value in json.loads(data).items() if key in FIELD_NAMES})


FIELD_NAMES = tuple(field.name for field in fields(QueuePolicy))
_FIELDS = attrgetter(*FIELD_NAMES)
