"""Sends an event to each receiver."""

from __future__ import annotations

import asyncio
from typing import Any

from batonq import Baton
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import PREFIX


async def publish(baton: Baton, endpoints: Endpoints, event: dict[str, Any]) -> int:
    """Returns the number of receivers. The event ID is the deduplication key, so a repeated publish sends nothing."""

    async def send(receiver: str) -> None:
        # All receivers share one dead-letter queue; the attribute identifies the receiver there.
        await baton.queue(PREFIX + receiver).send(event, dedup_key=event["id"], attributes={"receiver": receiver})

    enabled = endpoints.enabled()
    await asyncio.gather(*(send(endpoint.name) for endpoint in enabled))
    return len(enabled)
