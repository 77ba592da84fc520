"""Creates one message per receiver for an event."""

from __future__ import annotations

import asyncio
from typing import Any

from batonq import Baton
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import PREFIX


async def publish(baton: Baton, endpoints: Endpoints, event: dict[str, Any]) -> int:
    """Returns the number of messages. The event's id is the deduplication key: published again after a crash, it is not
    sent again.
    """

    async def send(receiver: str) -> None:
        # The attribute identifies the receiver in the shared dead-letter queue.
        await baton.queue(PREFIX + receiver).send(event, dedup_key=event["id"], attributes={"receiver": receiver})

    enabled = endpoints.enabled()
    await asyncio.gather(*(send(endpoint.name) for endpoint in enabled))
    return len(enabled)
