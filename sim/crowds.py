"""Actors that press a node against its limits: floods, many long polls, named requests, and short-lived queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from batonq.core.records import State
from batonq.errors import InvalidInput, JobConflict, MessageHeld, MessageNotFound, OverLimit
from batonq.node.broker import Broker, Queue
from batonq.node.jobs.job_control import Redrive
from batonq.node.messages.peek import PeekFilter
from sim.actors import Consumer, Grower, make_message
from sim.clients import Client, Surroundings
from sim.history import OK, Delivered, Outgoing
from sim.scenario import CROWD, QueuePlan, Scenario, Theme

BURST_S = 2.5  # on average between two bursts, and between the other actions here
NAMED_S = 0.4
SHORT_LIVED_S = 0.6
INSPECTED_S = 0.2
ATTEMPTED_S = 0.5
OLD_REQUESTS_MAX = 30
SHORT_LIVED_MAX = 40
LONG_POLL_MS = 20_000
STAMPEDE_MS = 1_000
STALL_S = 0.4  # how long a sync takes during a stall, on average
RECEIVES_MAX = 20  # to empty a queue
FIRST_SYNCS = 5  # the first message of a queue is sent within this many syncs of the disk, on average


class Actor(Protocol):
    async def run(self) -> None: ...


class Flood:
    """Bursts: many batches in one turn of the event loop, while the disk is slow and long polls wait."""

    def __init__(
        self, around: Surroundings, random: Random, plans: list[QueuePlan], sizes: Sequence[int] = (5, 15, 30)
    ) -> None:
        self._client = Client("flood", around, random, hurried=True)
        self._sizes = sizes
        self._around = around
        self._random = random
        self._plans = [plan for plan in plans if not plan.dead_letters]
        self._requests = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / BURST_S))
            if self._around.calls_left <= 0:
                return
            machine = self._around.machine_for(self._random)
            machine.slow = self._random.choice((1.0, 0.1 * STALL_S / machine.sync_s, STALL_S / machine.sync_s))
            try:
                await self._burst(self._random.choice(self._plans))
            finally:
                machine.slow = 1.0

    async def _burst(self, plan: QueuePlan) -> None:
        random = self._random
        name = self._around.current_name(plan.name)
        if random.random() < 0.3:
            self._around.spawn(self._poll(name))
        way = random.choice(("", "", "invocation", "once"))
        sends = []
        for _ in range(random.choice(self._sizes)):
            self._requests += 1
            messages = [make_message(self._around, plan, random) for _ in range(random.choice((1, 3, 10)))]
            invocation = f"flood-{self._requests}" if way else ""
            sends.append(self._client.send(name, messages, invocation, once=way == "once", first_try=True))
        await asyncio.gather(*sends)

    async def _poll(self, name: str) -> None:
        call = await self._client.receive(name, 10, 1_000, LONG_POLL_MS)
        if call.deliveries:
            await self._client.delete(*call.deliveries)


class PatternConsumer(Consumer):
    """Receives from many queues in one request, and treats the messages as consumers do."""

    async def _receive(self) -> None:
        random = self._random
        names = [facts.called for facts in self._around.queues.values()]
        patterns = random.choice(
            ([f"{CROWD}*"], [f"{CROWD}*"], ["*"], [f"{CROWD}?", "*.fifo"], random.sample(names, min(3, len(names))))
        )
        wait_ms = random.choice((0, 1_000, 5_000, LONG_POLL_MS))
        patience_s = random.choice((0.0, 0.0, 0.0, 0.02, 3.0))
        count = random.choice((1, 3, 10))
        call = await self._client.receive_any(patterns, count, random.choice((None, 500, 3_000)), wait_ms, patience_s)
        for delivered in call.deliveries:
            self._around.spawn(self._handle(delivered))


class NamedSender:
    """Sends requests with an Idempotency-Key, and repeats old ones, including those whose messages were duplicates."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client("named", around, random)
        self._around = around
        self._random = random
        self._plans = [plan for plan in plans if not plan.dead_letters]
        self._keyed = [plan for plan in self._plans if plan.keyed]
        self._old: list[tuple[str, str, list[Outgoing]]] = []  # queue, key, messages
        self._requests = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / NAMED_S))
            if self._around.calls_left <= 0:
                return
            choice = self._random.random()
            if self._keyed and choice < 0.2:
                await self._send_duplicate(self._random.choice(self._keyed))
            elif self._old and choice < 0.6:
                name, key, messages = self._random.choice(self._old)
                await self._client.send(name, messages, key, once=True)
            else:
                plan = self._random.choice(self._plans)
                name = self._around.current_name(plan.name)
                messages = [make_message(self._around, plan, self._random) for _ in range(self._random.choice((1, 3)))]
                await self._send(name, messages)

    async def _send(self, name: str, messages: list[Outgoing]) -> str:
        self._requests += 1
        key = f"key-{self._requests}"
        self._old.append((name, key, messages))
        del self._old[:-OLD_REQUESTS_MAX]
        await self._client.send(name, messages, key, once=True)
        return key

    async def _send_duplicate(self, plan: QueuePlan) -> None:
        """Send a message again with its deduplication id, and once more after the id is forgotten."""
        name = self._around.current_name(plan.name)
        first = make_message(self._around, plan, self._random)
        await self._client.send(name, [first], "")
        messages = [replace(make_message(self._around, plan, self._random), dedup_id=first.dedup_id, group=first.group)]
        key = await self._send(name, messages)

        async def again() -> None:
            await asyncio.sleep(self._around.known[name].dedup_window_ms / 1000 + 1.5)
            await self._client.send(name, messages, key, once=True)

        self._around.spawn(again())


class Stampede:
    """Leases that all expire at the same time, while many long polls wait for the messages."""

    def __init__(self, name: str, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client(name, around, random, hurried=True)
        self._around = around
        self._random = random
        work = [plan for plan in plans if not plan.dead_letters]
        favoured = [plan for plan in work if plan.name == "leaky" or plan.attributes.get("Baton.Spread") == "1"]
        self._plans = [*work, *favoured, *favoured, *favoured]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.random())
            if self._around.calls_left <= 0:
                return
            await self._stampede(self._random.choice(self._plans))

    async def _stampede(self, plan: QueuePlan) -> None:
        random, client, loop = self._random, self._client, self._around.loop
        name = self._around.current_name(plan.name)
        batches = random.choice((1, 3, 8, 8))
        for _ in range(batches):
            await client.send(name, self._messages(plan), "")
        started_s = loop.time()
        held = [await client.receive(name, 10, STAMPEDE_MS, 0)]
        while held[-1].deliveries and len(held) < RECEIVES_MAX:
            held.append(await client.receive(name, 10, STAMPEDE_MS, 0))
        if len(held) == 1:
            return
        crowd = random.choice((3, 10, 30, 30))
        polls = [
            loop.create_task(client.receive(name, random.choice((1, 1, 10)), STAMPEDE_MS, 2 * STAMPEDE_MS))
            for _ in range(crowd)
        ]
        crowded = asyncio.gather(*polls)  # cancelled together with this actor
        await asyncio.sleep(max(0.0, started_s + STAMPEDE_MS / 1000 - 0.05 - loop.time()))
        if random.random() < 0.7:
            await self._stall(name)
        for call in await crowded:
            if call.deliveries and random.random() < 0.5:
                await client.delete(*call.deliveries)

    async def _stall(self, name: str) -> None:
        """Slow a sync down while the leases expire, and send enough to another queue to fill the shard."""
        queues = self._around.queues
        if name not in queues:
            return
        beside = [
            plan
            for plan in self._plans
            if (other := self._around.current_name(plan.name)) in queues
            and other != name
            and queues[other].shard == queues[name].shard
        ]
        if not beside:
            return
        plan = self._random.choice(beside)
        other = self._around.current_name(plan.name)
        machine = self._around.machine_for(self._random)
        machine.slow = STALL_S / machine.sync_s
        try:
            sends = []
            for _ in range(4):
                sends.append(self._around.loop.create_task(self._client.send(other, self._messages(plan), "")))
                await asyncio.sleep(0.001)
            await asyncio.gather(*sends)
        finally:
            machine.slow = 1.0

    def _messages(self, plan: QueuePlan) -> list[Outgoing]:
        return [make_message(self._around, plan, self._random) for _ in range(10)]


class Deployment:
    """Sets attributes of all queues and purges them at the start of the run, while the first messages are sent."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client("deployment", around, random, hurried=True)
        self._around = around
        self._random = random
        self._plans = [plan for plan in plans if not plan.dead_letters]

    async def run(self) -> None:
        sync_s = self._around.machine_for(self._random).sync_s
        await asyncio.gather(*(self._deploy(plan, FIRST_SYNCS * sync_s) for plan in self._plans))

    async def _deploy(self, plan: QueuePlan, within_s: float) -> None:
        client, name = self._client, self._around.current_name(plan.name)
        await asyncio.gather(
            client.steer(name, "set", lambda broker, entry: broker.set_attributes(entry, {"Baton.SLASeconds": "5"})),
            client.steer(name, "purge", lambda broker, entry: broker.purge_queue(entry)),
            self._send_first(name, plan, within_s),
        )

    async def _send_first(self, name: str, plan: QueuePlan, within_s: float) -> None:
        await asyncio.sleep(self._random.random() * within_s)
        await self._client.send(name, [make_message(self._around, plan, self._random)], "")


class QueueMaker:
    """Creates short-lived queues, uses each once, and deletes it."""

    def __init__(self, around: Surroundings, random: Random) -> None:
        self._client = Client("maker", around, random)
        self._around = around
        self._random = random

    async def run(self) -> None:
        for at in range(SHORT_LIVED_MAX):
            await asyncio.sleep(self._random.expovariate(1 / SHORT_LIVED_S))
            if self._around.calls_left <= 0:
                return
            plan = QueuePlan(f"{CROWD}short-{at}", {"VisibilityTimeout": "2"})
            await self._around.make_queue(plan)
            await self._use(plan)

    async def _use(self, plan: QueuePlan) -> None:
        random, client, name = self._random, self._client, plan.name
        held: list[Delivered] = []
        await client.send(name, [make_message(self._around, plan, random)], "")
        if random.random() < 0.5:
            held = (await client.receive(name, 1, None, 0)).deliveries
        if held and random.random() < 0.5:
            await client.delete(*held)
        if random.random() < 0.2:
            await client.steer(name, "purge", lambda broker, entry: broker.purge_queue(entry))
        call = await client.steer(name, "delete queue", lambda broker, entry: broker.delete_queue(entry))
        if call.outcome == OK:
            self._around.queues.pop(name, None)


class Inspector:
    """Peeks into queues and dry-runs redrives: both work in many short steps while the node serves."""

    def __init__(
        self, name: str, around: Surroundings, random: Random, plans: list[QueuePlan], disk_fails: bool
    ) -> None:
        self._client = Client(name, around, random)
        self._around = around
        self._random = random
        self._disk_fails = disk_fails
        self._dead = [plan for plan in plans if plan.dead_letters]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / INSPECTED_S))
            if self._around.calls_left <= 0:
                return
            plan = self._random.choice(self._dead)
            name = self._around.current_name(plan.name)
            choice = self._random.random()
            if choice < 0.1:
                look = self._random.choice((self._peek, self._histories, self._groups))
                await self._client.steer(self._random.choice(list(self._around.queues)), "peek", look)
            elif choice < 0.2:  # so that there is more than dead letters to look at
                await self._client.send(name, [make_message(self._around, plan, self._random) for _ in range(5)], "")
            elif choice < 0.3:
                work = self._random.choice((self._move, self._redrive, self._retry))
                await self._client.steer(name, "move", work)
            elif choice < 0.5 and self._disk_fails:
                await self._look_while_the_disk_fails(name, plan)
            else:
                await self._client.steer(name, "dry run", self._dry_run)

    async def _look_while_the_disk_fails(self, name: str, plan: QueuePlan) -> None:
        """Make the shard fail during an append, while dry runs that waited for an earlier append continue."""
        random, loop, machine = self._random, self._around.loop, self._around.machine_for(self._random)
        messages = [make_message(self._around, plan, random) for _ in range(14)]
        await self._client.send(name, messages[6:], "")
        machine.slow = STALL_S / machine.sync_s
        looking: list[asyncio.Task[Any]] = [loop.create_task(self._client.send(name, messages[:1], ""))]
        looking += [loop.create_task(self._client.steer(name, "dry run", self._dry_run)) for _ in range(5)]
        try:
            for message in messages[1:6]:
                await asyncio.sleep(random.random() * STALL_S / 2)
                looking.append(loop.create_task(self._client.send(name, [message], "")))
            machine.fail_rate = 1.0
            await asyncio.sleep(STALL_S)
        finally:
            machine.slow, machine.fail_rate = 1.0, 0.0
        await asyncio.gather(*looking)

    @staticmethod
    async def _peek(broker: Broker, entry: Queue) -> str:
        return f"{len((await broker.peek(entry, 0, 100)).messages)} messages"

    @staticmethod
    async def _histories(broker: Broker, entry: Queue) -> str:
        """Look at some messages, which may be gone by then, and at who holds any."""
        events = 0
        for peeked in (await broker.peek(entry, 0, 5)).messages:
            with suppress(MessageNotFound):
                events += len((await broker.messages.find(entry, peeked.current_id)).events)
        return f"{events} events, {len(await broker.holders(entry))} holders"

    @staticmethod
    async def _groups(broker: Broker, entry: Queue) -> str:
        found = await broker.messages.dead_letters(entry, only_dead=not broker.dead_letter_sources(entry))
        return f"{len(found.groups)} groups of {found.examined} messages"

    @staticmethod
    async def _retry(broker: Broker, source: Queue) -> str:
        """Change and retry some dead letters one by one, as an operator does."""
        retried = 0
        for peeked in (await broker.peek(source, 0, 3, PeekFilter(state=State.VISIBLE))).messages:
            with suppress(MessageHeld, MessageNotFound, JobConflict, InvalidInput, OverLimit):
                if peeked.view.origin:
                    await broker.messages.edit(source, peeked.current_id, {"setAttributes": {"redriven": "yes"}})
                    await broker.messages.retry(source, peeked.current_id)
                    retried += 1
        return f"{retried} retried"

    @staticmethod
    async def _move(broker: Broker, source: Queue) -> str:
        """Start a job that ends soon."""
        return (await broker.start_move(source, None, 500)).id

    @staticmethod
    async def _redrive(broker: Broker, source: Queue) -> str:
        """Start a job that selects messages."""
        redrive = Redrive(rate_per_s=500, filter={"bodyContains": "1"}, pause_when_dying_share=1.0)
        return (await broker.start_job(source, redrive)).id

    @staticmethod
    async def _dry_run(broker: Broker, source: Queue) -> str:
        redrive = Redrive(rate_per_s=10, filter={"bodyContains": "1"}, dry_run=True)
        return f"{(await broker.start_job(source, redrive)).matched} messages"


class Attempts:
    """Receives from FIFO queues with attempt ids, several at a time, and repeats the same attempts."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client("attempts", around, random)
        self._around = around
        self._random = random
        self._plans = [plan for plan in plans if plan.fifo]
        self._made = 0

    async def run(self) -> None:
        while self._plans:
            await asyncio.sleep(self._random.expovariate(1 / ATTEMPTED_S))
            if self._around.calls_left <= 0:
                return
            plan = self._random.choice(self._plans)
            name = self._around.current_name(plan.name)
            await self._client.send(name, [make_message(self._around, plan, self._random) for _ in range(3)], "")
            self._around.spawn(self._attempt(name))

    async def _attempt(self, name: str) -> None:
        self._made += 1
        attempt = f"attempt {self._made}"
        for _ in range(self._random.choice((1, 2, 3))):
            call = await self._client.receive(name, 1, 2_000, 0, attempt)
        if call.deliveries and self._random.random() < 0.5:
            await self._client.delete(*call.deliveries)


def crowds(around: Surroundings, scenario: Scenario, make_random: Callable[[str], Random]) -> list[Actor]:
    """The actors that press against the limits of a run, by its theme."""
    plans, theme = scenario.queues, scenario.theme
    leaky = [plan for plan in plans if plan.name == "leaky"]
    work = leaky if theme is Theme.REFUSALS else plans
    several = 1 if theme is Theme.MIXED else 2
    actors: list[Actor] = [
        Stampede(name, around, make_random(name), work) for name in _names("stampede", 1 if leaky else several)
    ]
    actors += [
        PatternConsumer(name, around, make_random(name), scenario.think_s)
        for name in _names("pattern", scenario.pattern_consumers)
    ]
    actors += [
        Deployment(around, make_random("deployment"), plans),
        NamedSender(around, make_random("named"), plans),
        QueueMaker(around, make_random("maker")),
        Grower(around, make_random("crowd grower"), plans, scenario.growing),
    ]
    if theme is not Theme.REFUSALS:
        actors.append(Flood(around, make_random("flood"), plans))
    if theme is not Theme.STAMPEDES:
        actors.append(Attempts(around, make_random("attempts"), plans))
        actors.append(Inspector("inspector", around, make_random("inspector"), plans, disk_fails=False))
    if theme is Theme.FAILURES:
        names = _names("saboteur", 2)
        actors += [Inspector(name, around, make_random(name), plans, disk_fails=True) for name in names]
    return actors


def cluster_crowds(around: Surroundings, scenario: Scenario, make_random: Callable[[str], Random]) -> list[Actor]:
    """A few such actors: a cluster's run is short."""
    plans = scenario.queues
    return [
        PatternConsumer("pattern", around, make_random("pattern"), scenario.think_s),
        Flood(around, make_random("flood"), plans, (2, 4, 8)),
        NamedSender(around, make_random("named"), plans),
        Attempts(around, make_random("attempts"), plans),
    ]


def _names(name: str, count: int) -> list[str]:
    return [f"{name} {at}" for at in range(count)]
