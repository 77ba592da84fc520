"""The queues of the receivers, and when a failed delivery is tried again."""

from __future__ import annotations

from batonq import Baton, Schedule

PREFIX = "hooks-"
PATTERN = f"{PREFIX}*"
DEAD = "dead-hooks"  # a pattern leaves the dead letters of its queues out, whatever their name
OWNERS = "owners"
DAY_S = 86_400.0

# For real: after a minute, and then after longer and longer, over half a day. Chance makes each delay up to 30 %
# shorter or longer, so that a receiver which comes back is not met by everything at once.
REAL = Schedule((60, 300, 1800, 7200, 28_800), jitter=0.3)
DEMO = Schedule((0.5, 1, 2, 4), jitter=0.3)


def tries(schedule: Schedule) -> int:
    """The first one, and one after each delay."""
    return len(schedule.delays_seconds) + 1


async def create_queues(baton: Baton, receivers: list[str], schedule: Schedule) -> None:
    for name in receivers:
        await baton.create_queue(
            PREFIX + name,
            visibility=30,
            retry=schedule,
            max_receives=tries(schedule),
            dead_letter_queue=DEAD,
            retention=4 * DAY_S,
        )
    await baton.create_queue(OWNERS)
