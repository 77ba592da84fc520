"""Exact counters of a queue at log positions. See shapes.py for the conventions."""

from __future__ import annotations

from batonq.api.rest.shapes import Answered


class Counted(Answered):
    """Counts since the queue was created, and the messages that it has now.

    sent + arrived = deleted + expired + moved + present, always. `unaccounted` is the difference: 0.
    """

    sent: int
    arrived: int
    deleted: int
    expired: int
    moved: int
    present: int
    unaccounted: int
    dead_lettered: int
    delivered: int
    returned: int
    expired_leases: int
    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int


class ShardCounters(Answered):
    """The counters of a queue on one shard: what exactly the records before `position` did."""

    shard: int
    position: str
    counters: Counted


class QueueCounters(Answered):
    """The counters of a queue, summed over its shards, each read at its own log position."""

    queue: str
    at_ms: int
    positions: list[str]
    counters: Counted
    shards: list[ShardCounters]
