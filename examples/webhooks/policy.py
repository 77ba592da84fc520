"""The queues of the receivers and their retry policy."""

from __future__ import annotations

from batonq import Baton, Schedule
from batonq.client import Deduplication

PREFIX = "hooks-"
PATTERN = f"{PREFIX}*"
DEAD = "dead-hooks"  # a pattern does not match the dead-letter queues of its queues, whatever their names
OWNERS = "owners"
DAY_S = 86_400.0

# For production: retry after a minute, then at growing intervals over three days. Jitter of up to 30 % spreads the
# retries, so that a recovering receiver is not flooded.
REAL = Schedule((60, 300, 1800, 7200, *[28_800] * 9), jitter=0.3)
ONCE_FOR_S = DAY_S  # an event that a receiver has accepted is not delivered to it again within this time
RETENTION_S = 7 * DAY_S  # longer than all retries take, with the longest jitter
DEMO = Schedule((0.5, 1, 2, 4), jitter=0.3)


def tries(schedule: Schedule) -> int:
    """The first attempt, and one after each delay."""
    return len(schedule.delays_seconds) + 1


async def create_queues(baton: Baton, receivers: list[str], schedule: Schedule) -> None:
    for name in receivers:
        await baton.create_queue(
            PREFIX + name,
            visibility=30,
            retry=schedule,
            max_receives=tries(schedule),
            dead_letter_queue=DEAD,
            retention=RETENTION_S,
            deduplication=Deduplication(window_seconds=ONCE_FOR_S),
        )
    await baton.create_queue(OWNERS)
