"""When a disabled receiver works again: enable it, and deliver the events that it missed."""

from __future__ import annotations

from batonq import Baton, Job, RedriveFilter
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import DEAD

RATE = 20  # deliveries per second: slow, because it has just recovered


async def reinstate(baton: Baton, endpoints: Endpoints, receiver: str) -> Job:
    """The job moves its dead letters back to its queue; it pauses itself if most of them fail again."""
    endpoints.enable(receiver)
    return await baton.queue(DEAD).redrive(rate=RATE, ramp=10, filter=RedriveFilter(attributes={"receiver": receiver}))
