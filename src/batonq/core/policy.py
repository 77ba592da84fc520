"""A queue's policy: what a shard must know to decide. It reaches the shard as a `PolicySet` record, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

SECOND_MS = 1000


@dataclass(slots=True, frozen=True)
class QueuePolicy:
    queue: int  # the queue's id, a number never used again
    tenant: str
    name: str
    version: int = 0  # the catalog version that set it
    fifo: bool = False
    delay_ms: int = 0
    visibility_ms: int = 30 * SECOND_MS
    retention_ms: int = 345_600 * SECOND_MS
    dedup_window_ms: int = 300 * SECOND_MS
    dedup_per_group: bool = False
    dedup_lives: bool = False  # the key counts for as long as the message lives, beside the window
    max_receives: int = 0  # 0: unlimited
    dead_letter_queue: int = 0  # 0: none
    dead_letter_shard: int = 0
    dead_letter_spread: str = ""  # its shards when it has several, see spread.py; empty: that one
    dead_letter_on_failure: bool = False  # else at the next receive, as SQS does
    expiry_to_dead_letter: bool = False
    strict_receipts: bool = False
    ageing_ms: int = 300 * SECOND_MS  # waiting this long is worth one step of priority; 0: no ageing
    in_flight_max: int = 120_000
    messages_max: int = 0  # 0: no limit of its own
    bytes_max: int = 0
    spread: str = ""  # of a queue on several shards: which has which keys, see spread.py
    sla_seconds: int = 0
    alarm_severity: str = ""
    retry: str = ""  # how long a nacked message waits, see retry.py; empty: not at all

    def values(self) -> dict[str, Any]:
        return dict(zip(FIELD_NAMES, _FIELDS(self), strict=True))

    def encode(self) -> bytes:
        return json.dumps(self.values(), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> QueuePolicy:
        """Fields that this release does not know are left out: a policy is additive."""
        return cls(**{key: value for key, value in json.loads(data).items() if key in FIELD_NAMES})


FIELD_NAMES = tuple(field.name for field in fields(QueuePolicy))
_FIELDS = attrgetter(*FIELD_NAMES)
