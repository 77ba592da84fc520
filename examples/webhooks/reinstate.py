"""Enables a recovered receiver and delivers the events that it missed."""

from __future__ import annotations

from batonq import Baton, Job, RedriveFilter
from examples.webhooks.endpoints import Endpoints
from examples.webhooks.policy import DEAD

RATE = 20  # deliveries per second, low so as not to overload a recovering receiver


async def reinstate(baton: Baton, endpoints: Endpoints, receiver: str) -> Job:
    """Redrive the receiver's dead-lettered events to its queue. The job pauses itself if most of them fail again."""
    endpoints.enable(receiver)
    return await baton.queue(DEAD).redrive(rate=RATE, ramp=10, filter=RedriveFilter(attributes={"receiver": receiver}))
