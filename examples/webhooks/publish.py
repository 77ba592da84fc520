"""From an event to a message for each receiver."""

from __future__ import annotations

import asyncio
from typing import Any

from batonq import Baton
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import PREFIX


async def publish(baton: Baton, endpoints: Endpoints, event: dict[str, Any]) -> int:
    """Returns to how many. The event's id is the key: published again after a crash, it is not sent again."""
    enabled = endpoints.enabled()
    await asyncio.gather(
        *(baton.queue(PREFIX + endpoint.name).send(event, dedup_key=event["id"]) for endpoint in enabled)
    )
    return len(enabled)
