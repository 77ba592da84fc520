"""The part of `baton demo` beyond queues: a topic with two subscribed queues, a reader group, and a schedule."""

from __future__ import annotations

import asyncio
from random import Random

from batonq.cli.demo_scenario import FIRST_NAMES, PREFIX, REPORTS, TAG
from batonq.client import Baton, Outgoing
from batonq.errors import InvalidInput

TOPIC = f"{PREFIX}events"
JOURNAL = f"{PREFIX}audit"  # gets every event, and retains it
FILTERED = f"{PREFIX}reports"  # gets only the requests for a report
GROUP = "analytics"
SCHEDULE = "nightly"
RETAINED_S = 6 * 3600.0
EVENT_SHARE = 0.05  # events per message of the scenario
ONCE_EVENTS = 30
ONCE_READ = 20
READ_S = 5.0  # pause of the reader between two fetches
ABOUT = f"copies every event to {JOURNAL}, and some to {FILTERED}"


async def create(baton: Baton) -> None:
    """Create all of it. A topic that is not the demo's is an error."""
    async for info in baton.topics(TOPIC):
        if info.name == TOPIC and TAG not in info.tags:
            raise InvalidInput(
                f"Topic {TOPIC} exists and was not created by the demo. Delete it, or use another server."
            )
    topic = await baton.create_topic(TOPIC, tags={TAG: "yes"})
    await topic.subscribe(JOURNAL)
    await topic.subscribe(FILTERED, filter={"kind": ["report"]})
    journal = baton.queue(JOURNAL)
    await journal.update(retain=RETAINED_S)
    await journal.reader(GROUP).create()
    message = {"report": REPORTS[0], "day": "yesterday"}
    await baton.queue(FILTERED).schedules.create(SCHEDULE, message, cron="30 2 * * *", time_zone="Europe/Berlin")


async def remove(baton: Baton) -> list[str]:
    """Delete the demo's topics; returns their names. The reader group and the schedule are deleted with their
    queues."""
    names = [info.name async for info in baton.topics(PREFIX) if TAG in info.tags]
    for name in names:
        await baton.topic(name).delete()
    return names


def event(chance: Random, number: int) -> Outgoing:
    kind = chance.choice(("login", "logout", "export", "report"))
    body = {"event": kind, "user": chance.choice(FIRST_NAMES), "number": number}
    if kind == "report":
        body = {"report": chance.choice(REPORTS), "day": f"2026-11-{1 + number % 28:02d}"}
    return Outgoing(body, attributes={"kind": kind})


async def publish(baton: Baton, chance: Random, number: int) -> None:
    made = event(chance, number)
    await baton.topic(TOPIC).publish(made.body, attributes=made.attributes)


async def read_some(baton: Baton, count: int) -> None:
    """Read and commit a part of the journal, so that the group has a position and a lag."""
    reader = baton.queue(JOURNAL).reader(GROUP, member="demo-reader")
    fetched = await reader.fetch(count, wait=0.0)
    if fetched:
        await reader.commit(*fetched)
    await reader.leave()


async def publish_forever(baton: Baton, rate_per_s: float, seed: int) -> None:
    chance = Random(f"{seed} events")
    number = 0
    while True:
        await asyncio.sleep(chance.expovariate(rate_per_s * EVENT_SHARE))
        number += 1
        await publish(baton, chance, number)


async def read_forever(baton: Baton) -> None:
    reader = baton.queue(JOURNAL).reader(GROUP, member="demo-reader")
    while True:
        fetched = await reader.fetch(100, wait=20.0)
        if fetched:
            await reader.commit(*fetched)
        await asyncio.sleep(READ_S)
