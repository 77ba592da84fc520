"""Consumers and workers of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Literal

from batonq.api.rest.shapes import Answered


class Poller(Answered, kw_only=True):
    """A consumer that polls a queue."""

    holder: str
    address: str
    agent: str
    waiting: int
    last_poll_at_ms: int
    received_per_minute: float
    empty_per_minute: float


class Holder(Answered, kw_only=True):
    """A consumer that holds messages of a queue."""

    holder: str
    in_flight: int
    oldest_lease_at_ms: int
    next_deadline_at_ms: int


class Consumers(Answered, kw_only=True):
    """Who polls a queue, and who holds its messages."""

    queue: str
    pollers: list[Poller]
    holders: list[Holder]


class Worker(Answered, kw_only=True):
    """A consumer of any queues."""

    name: str
    queues: list[str]
    address: str
    agent: str
    state: Literal["polling", "holding", "idle", "gone"]
    waiting: int
    in_flight: int
    last_seen_at_ms: int
    last_heartbeat_at_ms: int = 0
    received_per_minute: float
    acked_per_minute: float
    failed_per_minute: float
    node: str


class Workers(Answered):
    """The consumers of all queues, by name."""

    workers: list[Worker]
