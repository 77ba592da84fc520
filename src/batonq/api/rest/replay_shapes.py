"""Replays of retained history in the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, field

from batonq.api.rest.job_shapes import Most, Rate, RedriveFilter
from batonq.api.rest.queue_shapes import QueueName
from batonq.api.rest.shapes import Given
from batonq.core.spread import PLACES_MAX

Moment = Annotated[datetime, Meta(tz=True)]
Position = Annotated[str, Meta(min_length=3, max_length=32, pattern="^[0-9]+:[0-9]+$")]
Positions = Annotated[list[Position], Meta(min_length=1, max_length=PLACES_MAX)]


class ReplaySpec(Given):
    """Which retained messages to send again, where to, and how fast. Without `targetQueue`, to the same queue."""

    target_queue: QueueName | None = None
    since: Moment | None = field(default=None, name="from")
    until: Moment | None = None
    from_positions: Positions | None = None
    until_positions: Positions | None = None
    filter: RedriveFilter | None = None
    max_messages_per_second: Rate = 100
    dry_run: bool = False
    max_messages: Most | None = None
