"""When a disabled receiver works again: enable it, and deliver what it has missed."""

from __future__ import annotations

from batonq import Baton, Job, RedriveFilter
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import DEAD

RATE = 20  # deliveries a second: it has just come back, and should not be knocked over


async def reinstate(baton: Baton, endpoints: Endpoints, receiver: str) -> Job:
    """The job moves its dead letters back to its queue; it pauses itself if most of them die again."""
    endpoints.enable(receiver)
    return await baton.queue(DEAD).redrive(rate=RATE, ramp=10, filter=RedriveFilter(attributes={"receiver": receiver}))
