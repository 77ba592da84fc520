"""Names and settings that the parts of the pipeline share."""

from __future__ import annotations

from typing import NamedTuple

from batonq import Baton, Exponential
from batonq.scaling import Pace, Scaler, Steps
from batonq.worker import Router

PAID, FREE = "transcode-paid", "transcode-free"
LANES = (PAID, FREE)
DEAD = "transcode-dead"
EVENTS = "image-events"
# The customer's tier selects the lane. Workers count messages that arrive in the wrong lane.
ROUTER = Router({"paid": PAID, "free": FREE}, default="free")

THUMBNAIL_SLO_S = 60.0
DAY_S = 86_400.0


class Variant(NamedTuple):
    name: str
    format: str
    extension: str
    side: int  # length of the longer side, in pixels


# The thumbnail comes first, because users wait for it.
VARIANTS = (
    Variant("thumb", "JPEG", "jpg", 160),
    Variant("medium", "JPEG", "jpg", 480),
    Variant("large", "JPEG", "jpg", 800),
    Variant("webp", "WEBP", "webp", 800),
)


def raw_key(image_id: str) -> str:
    return f"raw/{image_id}"


def output_key(variant: Variant, image_id: str) -> str:
    """The key is the same for every attempt, so that a retry overwrites the object and adds none."""
    return f"out/{variant.name}/{image_id}.{variant.extension}"


async def create_queues(baton: Baton) -> None:
    """Create two lanes that share one dead-letter queue, and the queue of events."""
    for lane in LANES:
        await baton.create_queue(
            lane,
            visibility=30,  # more than twice the time of the slowest image; extended by the worker's heartbeat
            max_receives=3,
            dead_letter_queue=DEAD,
            retry=Exponential(base_seconds=1, factor=4, max_seconds=60, jitter=0.5),
            retention=4 * DAY_S,
            sla=THUMBNAIL_SLO_S,
        )
    await baton.create_queue(EVENTS, visibility=30, max_receives=5, dead_letter_queue=f"{EVENTS}-dead")


def scaler() -> Scaler:
    """Step scaling: up at once and down slowly. A service with more machines has more and larger steps.

    The cooldowns are for the demonstration. In production, scale up at most every minute and down every five minutes.
    """
    steps = Steps(((0, 1), (10, 2), (40, 3), (100, 4)))
    return Scaler(steps, minimum=1, maximum=4, pace=Pace(up_cooldown_s=1, down_window_s=3, down_cooldown_s=1))
