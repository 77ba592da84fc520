"""The users of a node: producers that retry, consumers with the habits of real consumers, and an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from batonq.node.broker import Broker, Queue
from batonq.node.jobs.job_control import Redrive
from batonq.priorities import NORMAL_PRIORITY
from sim.bodies import make_body
from sim.clients import UNREACHED, Client, Surroundings
from sim.history import OK, Call, Delivered, Outgoing, Sending
from sim.scenario import ACCOUNT, QueuePlan

RETRIES_S = 60.0  # a producer gives up after this time, well before its invocation is forgotten
OLD_RECEIPTS_MAX = 40
GROWTH_S = 6.0
UNNAMED_SHARE = 0.8  # of the requests of producers that leave some requests unnamed
RETRIED = ("unavailable", "not_owner", "disk_full", "over_limit", "queue_paused", "log_error", UNREACHED, "unknown")


class Producer:
    def __init__(
        self,
        name: str,
        around: Surroundings,
        random: Random,
        plans: list[QueuePlan],
        think_s: float,
        unnamed: bool = False,
    ) -> None:
        self._client = Client(name, around, random)
        self._around = around
        self._random = random
        self._unnamed = unnamed
        self._plans = [plan for plan in plans if not plan.dead_letters]
        self._think_s = think_s
        self._invocations = 0
        self._numbers: dict[str, int] = {}  # queue → the last number sent to it

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1.0) * self._think_s)
            if self._around.calls_left <= 0:
                return
            plan = self._random.choice(self._plans)
            name = self._around.current_name(plan.name)
            count = self._random.choice((1, 1, 2, 5))
            messages = [make_message(self._around, plan, self._random) for _ in range(count)]
            if self._unnamed and self._random.random() < UNNAMED_SHARE:
                await self._client.send(name, messages, "")  # once: a repetition could not be told from a new request
            else:
                await self._send(name, messages)

    async def _send(self, queue: str, messages: list[Outgoing]) -> None:
        """Retry until an answer ends the request. Every retry is the same request: by its name, or by its numbers."""
        self._invocations += 1
        invocation = f"{self._client.name}-{self._invocations}"
        producer = self._client.name if self._invocations % 3 == 0 else ""
        first = 1 + self._numbers.get(queue, 0)
        if producer:
            self._numbers[queue] = first + len(messages) - 1
        give_up_s = self._around.loop.time() + RETRIES_S
        pause_s = 0.05
        first_try = True
        while self._around.loop.time() < give_up_s:
            patience_s = self._random.choice((0.0, 0.0, 0.0, 0.05, 1.0))
            call = await self._client.send(queue, messages, invocation, patience_s, producer, first, first_try)
            if not _is_retried(call):
                return
            first_try = False
            await asyncio.sleep(pause_s * self._random.random())
            pause_s = min(pause_s * 2, 5.0)


def make_message(around: Surroundings, plan: QueuePlan, random: Random) -> Outgoing:
    """A message as the queue's producers make it."""
    number = around.next_message()
    key = ""
    if plan.keyed:
        key = f"key {random.randrange(30)}" if random.random() < 0.5 else f"key of {number}"
    return Outgoing(
        number=number,
        body=make_body(number, random),
        group=f"group {random.randrange(6)}" if plan.fifo or (plan.grouped and random.random() < 0.8) else "",
        dedup_id=key,
        delay_ms=random.choice((None, 0, 500, 4_000, 15_000)) if plan.delayed else None,
        ttl_ms=random.choice((None, 1_000, 10_000)) if plan.brief else None,
        priority=random.choice((NORMAL_PRIORITY, NORMAL_PRIORITY, 0, 200, 255)) if plan.ranked else NORMAL_PRIORITY,
        max_receives=random.choice((0, 0, 0, 1, 2)) if plan.ranked and not plan.fifo else 0,
    )


def _is_retried(call: Sending) -> bool:
    if call.outcome in RETRIED:
        return True
    return any(answer.outcome in RETRIED for answer in call.answers)


class Consumer:
    def __init__(self, name: str, around: Surroundings, random: Random, think_s: float) -> None:
        self._client = Client(name, around, random)
        self._around = around
        self._random = random
        self._think_s = think_s
        self._old: list[Delivered] = []
        self._attempts = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1.0) * self._think_s)
            if self._around.calls_left <= 0:
                return
            if self._old and self._random.random() < 0.1:
                await self._use_old()
            else:
                await self._receive()

    async def _receive(self) -> None:
        random = self._random
        queue = random.choice(list(self._around.queues))
        count = random.choice((1, 1, 3, 10))
        visibility_ms = random.choice((None, None, None, 500, 3_000, 8_000))
        wait_ms = random.choice((0, 0, 1_000, 5_000, 20_000))
        attempt = ""
        if queue.endswith(".fifo") and random.random() < 0.3:
            self._attempts += 1
            attempt = f"{self._client.name} attempt {self._attempts}"
        patience_s = random.choice((0.0, 0.0, 0.0, 0.02, 0.5, 3.0))
        call = await self._client.receive(queue, count, visibility_ms, wait_ms, attempt, patience_s)
        if attempt and (call.outcome != OK or random.random() < 0.3):
            call = await self._client.receive(queue, count, visibility_ms, 0, attempt)
        for delivered in call.deliveries:
            self._around.spawn(self._handle(delivered))
        if len(call.deliveries) > 1 and random.random() < 0.2:
            await self._client.delete(*call.deliveries)

    async def _handle(self, held: Delivered) -> None:
        """Decide at random what to do with one leased message."""
        random = self._random
        self._old.append(held)
        del self._old[:-OLD_RECEIPTS_MAX]
        lasts_s = max(held.deadline_ms - held.began_ms, 1) / 1000
        fate = random.random()
        await asyncio.sleep(random.random() * lasts_s * 0.5)
        if fate < 0.50:
            await self._client.delete(held)
        elif fate < 0.58:
            await asyncio.sleep(lasts_s * (0.4 + random.random()))
            await self._client.delete(held)
        elif fate < 0.70:
            await self._client.nack(held, random.choice((0, 0, 1_000, 10_000)), False)
        elif fate < 0.73:
            await self._client.nack(held, 0, True)
        elif fate < 0.81:
            await self._heartbeats(held, lasts_s)
        elif fate < 0.85:
            await self._client.change(held, 0)
        elif fate < 0.88:
            await self._client.delete(held)
            await self._client.delete(held)
        # else: the consumer dies while it holds the message

    async def _heartbeats(self, held: Delivered, lasts_s: float) -> None:
        for _ in range(self._random.randint(1, 3)):
            await self._client.change(held, int(lasts_s * 1000))
            await asyncio.sleep(lasts_s * 0.7 * self._random.random())
        await self._client.delete(held)

    async def _use_old(self) -> None:
        """Use an old receipt, whose message another consumer may hold by now."""
        held = self._random.choice(self._old)
        choice = self._random.random()
        if choice < 0.4:
            await self._client.delete(held)
        elif choice < 0.7:
            await self._client.nack(held, 0, False)
        else:
            await self._client.change(held, self._random.choice((0, 5_000)))


class Grower:
    """Spreads queues over more shards, one at a time: the queues given, else the FIFO queues, if there are any."""

    def __init__(
        self, around: Surroundings, random: Random, plans: list[QueuePlan], names: Sequence[str] | None = None
    ) -> None:
        self._client = Client("grower", around, random)
        self._around = around
        self._random = random
        fifo = [plan.name for plan in plans if plan.attributes.get("DeduplicationScope") == "messageGroup"]
        self._names = fifo if names is None else names
        self._every_s = GROWTH_S if names is None else GROWTH_S / 4

    async def run(self) -> None:
        while self._names:
            await asyncio.sleep(self._random.expovariate(1.0) * self._every_s)
            if self._around.calls_left <= 0:
                return
            await self._client.steer(self._random.choice(self._names), "grow", self._grow)

    @staticmethod
    async def _grow(broker: Broker, entry: Queue) -> str:
        wanted = len(entry.shards) + 1
        await broker.set_attributes(entry, {"Baton.Spread": str(wanted)})
        return f"to {wanted} shards"


class Operator:
    """Redrives, purges, changes attributes, spreads queues over more shards, and deletes and re-creates queues."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client("operator", around, random)
        self._around = around
        self._random = random
        self._plans = plans
        self._sets = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1.0) * 5)
            if self._around.calls_left <= 0:
                return
            plan = self._random.choice(self._plans)
            name = self._around.current_name(plan.name)
            choice = self._random.random()
            if plan.dead_letters and choice < 0.8:
                await self._redrive(name)
            elif plan.purged and choice < 0.2:
                await self._client.steer(name, "purge", lambda broker, queue: broker.purge_queue(queue))
            elif plan.fleeting and choice < 0.5:
                await self._make_anew(plan)
            elif choice < 0.5:
                await self._set(name)
            else:
                await self._client.steer(name, "count", lambda broker, queue: broker.counters(queue))

    async def _make_anew(self, plan: QueuePlan) -> None:
        name = self._around.current_name(plan.name)
        call = await self._client.steer(name, "delete queue", lambda broker, entry: broker.delete_queue(entry))
        if call.outcome == OK:
            await asyncio.sleep(self._random.random() * 2)
        await self._around.make_queue(plan)

    async def _set(self, queue: str) -> None:
        changes = {"Baton.SLASeconds": str(self._random.randint(1, 1000))}
        self._sets += 1

        async def change(broker: Broker, entry: Queue) -> None:
            grows = self._sets % 3 == 0 and not entry.fifo
            spread = {"Baton.Spread": str(len(entry.shards) + 1)} if grows else {}
            await broker.set_attributes(entry, changes | spread)

        await self._client.steer(queue, "set", change)

    async def _redrive(self, queue: str) -> Call:
        random = self._random
        rate = random.choice((None, 1, 100, 500))
        others = [name for name in self._around.queues if name.endswith(".fifo") == queue.endswith(".fifo")]
        target = random.choice([name for name in others if name != queue] or [queue]) if random.random() < 0.2 else ""
        selective = random.random() < 0.4
        filter_ = random.choice(({}, {"bodyContains": "1"}, {"maxAgeSeconds": 30}))
        ramp_s = random.choice((0.0, 2.0))
        most = random.choice((0, 0, 3))

        async def work(broker: Broker, source: Queue) -> str:
            destination = broker.queue(ACCOUNT, self._around.known[target].called) if target else None
            if selective:
                redrive = Redrive(
                    target=destination,
                    rate_per_s=rate or 10,
                    ramp_s=ramp_s,
                    filter=filter_,
                    edit={"setAttributes": {"redriven": "yes"}},
                    max_messages=most,
                    pause_when_dying_share=1.0,
                )
                return (await broker.start_job(source, redrive)).id
            return (await broker.start_move(source, destination, rate)).id

        call = await self._client.steer(queue, "move", work, f"to {target or 'where they came from'} at {rate}/s")
        if call.outcome == OK and random.random() < 0.2:
            await asyncio.sleep(random.random())
            await self._client.steer(queue, "cancel", self._cancel)
        elif call.outcome == OK and random.random() < 0.2:
            await self._client.steer(queue, "pause", self._rest)
        return call

    @staticmethod
    async def _cancel(broker: Broker, source: Queue) -> object:
        running = [job for job in await broker.moves(source) if job.state == "RUNNING"]
        return (await broker.cancel_move(source, running[0].id)).state if running else None

    @staticmethod
    async def _rest(broker: Broker, source: Queue) -> object:
        """Pause the running jobs, and resume them a moment later."""
        running = [job for job in await broker.moves(source) if job.state == "RUNNING"]
        if not running:
            return None
        await broker.pause_job(ACCOUNT, running[0].id)
        await asyncio.sleep(0.5)
        return (await broker.resume_job(ACCOUNT, running[0].id)).state
