"""Topics: publishers, subscribed queues and takers, next to the faults of a run, and a check of every copy.

The ledger is the judge: an acknowledged publish has exactly one copy in each subscribed queue, a publish without an
answer has one in each or none at all, and in FIFO queues the copies of a group come in the order of their publishes.
Simulations of a cluster have topics in some seeds. On one node they are runs of their own, so that the seeds of other
simulations stay what they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Protocol

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Accepted, Send, Sent
from batonq.core.ids import request_hash
from batonq.core.payload import Attribute, encode_attributes
from batonq.errors import BatonError
from batonq.node.broker import Broker, Received
from batonq.node.catalog.topic_control import Topic
from batonq.node.routing.submission import submitted
from sim.asking import Asking, delete_from, receive_from
from sim.bodies import make_published_body
from sim.breaks import receives_that_break_off
from sim.bugs import planted
from sim.checks import conservation
from sim.clients import ANSWER_S, Surroundings
from sim.ledger import Ledger, number_published
from sim.loop import SimLoop
from sim.machine import Gone, Machine
from sim.patches import patched
from sim.run import Outcome, Record, Simulation, run_to_its_end
from sim.scenario import Scenario, choose_usual
from sim.topic_bugs import TOPIC_BUGS

ACCOUNT = "333333333333"  # not the other clients', who may receive from any of their queues
QUIET_S = 600.0  # all copies have arrived so long after the faults have ended
TRIES_MAX = 400
PUBLISHERS = 2
TAKERS = 2
GROUPS = 3
KINDS = ("red", "blue")
TOPICS = {"news": False, "steps.fifo": True}


@dataclass
class Published:
    """A message and what became of its publish."""

    number: int
    topic: str
    kind: str
    group: str = ""
    acknowledged: bool = False


@dataclass
class Plan:
    """A subscribed queue."""

    name: str
    topic: str
    kind: str  # which messages match; empty: all
    raw: bool
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def limited(self) -> bool:
        return "Baton.MaximumMessages" in self.attributes

    def matches(self, message: Published) -> bool:
        return message.topic == self.topic and self.kind in ("", message.kind)


class Run(Surroundings, Protocol):
    """What topics see of the simulation."""

    machines: list[Machine]

    @property
    def broken(self) -> str: ...


class Topics:
    """`random_of` makes the random numbers of each purpose. The queues may be on up to `shards` shards."""

    def __init__(self, around: Run, random_of: Callable[[str], Random], shards: int) -> None:
        self._around = around
        self._random_of = random_of
        self._shards = shards
        random = random_of("subscriptions")
        self.plans = [self._plan(random, at, topic) for topic in TOPICS for at in range(3)]
        self.published: dict[int, Published] = {}
        self.acknowledgements = 0
        self._groups = {f"{at}-{group}": asyncio.Lock() for at in range(PUBLISHERS) for group in range(GROUPS)}
        self._publishing = 0  # requests that are being repeated until they are acknowledged
        self._made = False
        self._numbers: dict[str, int] = {}  # of the queues, by name
        self._fates: dict[int, dict[str, bool]] = {}  # message → which of its queues have a copy

    def _plan(self, random: Random, at: int, topic: str) -> Plan:
        fifo = TOPICS[topic]
        attributes = {"FifoQueue": "true"} if fifo else {}
        if random.random() < 0.4:
            attributes["Baton.MaximumMessages"] = "3"
        elif not fifo and random.random() < 0.3:
            attributes["Baton.Spread"] = "2"
        name = f"copies-{at}.fifo" if fifo else f"copies-{at}"
        return Plan(name, topic, random.choice(("", "", *KINDS)), random.random() < 0.5, attributes)

    # --- calls -------------------------------------------------------------------------------------

    async def _call(self, random: Random, work: Callable[[Broker], Coroutine[Any, Any, Any]]) -> Any:
        """The answer of a node; None if there is none, which may mean anything."""
        around = self._around
        machine = around.machine_for(random)
        node = machine.node
        if node is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await machine.run(work(node.broker))
        except TimeoutError:
            around.violated("liveness", f"no answer after {ANSWER_S} s")
            return None
        except (Gone, BatonError):
            return None
        return None if random.random() < around.lost_answers else answer

    async def _insist(self, random: Random, work: Callable[[Broker], Coroutine[Any, Any, Any]]) -> Any:
        for _ in range(TRIES_MAX):
            answer = await self._call(random, work)
            if answer is not None or self._around.broken:
                return answer
            await asyncio.sleep(0.2)
        self._around.violated("liveness", "a request is never answered")
        return None

    async def set_up(self) -> None:
        random = self._random_of("set-up")
        for name, fifo in TOPICS.items():
            attributes = {"FifoTopic": "true"} if fifo else {}
            await self._insist(random, lambda broker, n=name, a=attributes: broker.create_topic(ACCOUNT, n, a, {}))  # type: ignore[misc]
        for at, plan in enumerate(self.plans):
            await self._insist(
                random,
                lambda broker, p=plan: broker.create_queue(ACCOUNT, p.name, p.attributes, {}),  # type: ignore[misc]
            )
            await self._insist(random, lambda broker, p=plan, u=f"u{at}": self._subscribe(broker, p, u))  # type: ignore[misc]
        self._made = True

    async def _subscribe(self, broker: Broker, plan: Plan, uuid: str) -> object:
        attributes = {"RawMessageDelivery": "true"} if plan.raw else {}
        if plan.kind:
            attributes["FilterPolicy"] = f'{{"kind":["{plan.kind}"]}}'
        return await broker.subscribe(
            broker.topic(ACCOUNT, plan.topic), queue_arn(ACCOUNT, plan.name), attributes, uuid
        )

    # --- actors --------------------------------------------------------------------------------------

    def actors(self) -> list[Coroutine[Any, Any, None]]:
        publishers = [self._publish_often(at, self._random_of(f"publisher {at}")) for at in range(PUBLISHERS)]
        takers = [self._take_often(self._random_of(f"taker {at}")) for at in range(TAKERS)]
        return [*publishers, *takers]

    async def _publish_often(self, publisher: int, random: Random) -> None:
        around = self._around
        while around.calls_left > 0:
            await asyncio.sleep(random.expovariate(1 / 0.2))
            around.calls_left -= 1
            topic = random.choice(list(TOPICS))
            messages = [
                Published(around.next_message(), topic, random.choice(KINDS)) for _ in range(random.choice((1, 1, 3)))
            ]
            for message in messages:
                self.published[message.number] = message
            if TOPICS[topic]:
                group = f"{publisher}-{random.randrange(GROUPS)}"
                for message in messages:
                    message.group = group
                around.spawn(self._publish_in_order(random, group, messages))
            else:
                named = random.random() < 0.5
                command = self._command(random, messages, request_hash(1, str(messages[0].number)) if named else 0)
                around.spawn(self._publish(random, messages, command, again=named))

    async def _publish_in_order(self, random: Random, group: str, messages: list[Published]) -> None:
        self._publishing += 1
        async with self._groups[group]:
            await self._publish(random, messages, self._command(random, messages, 0), again=True)
        self._publishing -= 1

    def _command(self, random: Random, messages: list[Published], request: int) -> Send:
        fifo = TOPICS[messages[0].topic]
        return Send(
            0,
            [make_published_body(message.number, random) for message in messages],
            digests=[bytes(16)] * len(messages) if fifo else (),
            attributes=[encode_attributes([Attribute("kind", "String", m.kind.encode(), False)]) for m in messages],
            groups=[message.group for message in messages] if fifo else (),
            dedup_ids=[f"id {message.number}" for message in messages] if fifo else (),
            request=request,
        )

    async def _publish(self, random: Random, messages: list[Published], command: Send, again: bool) -> None:
        """Publish once, or, if a repetition is recognised, until it is acknowledged."""
        self._publishing += 1
        for _ in range(TRIES_MAX if again else 1):
            sent = await self._call(random, lambda broker: _send(broker, messages[0].topic, command))
            if sent is not None:
                for message, result in zip(messages, sent.results(), strict=True):
                    message.acknowledged = message.acknowledged or isinstance(result, Accepted)
                if all(message.acknowledged for message in messages):
                    self.acknowledgements += len(messages)
                    break
            await asyncio.sleep(0.1 + random.random())
        self._publishing -= 1

    async def _take_often(self, random: Random) -> None:
        while self._around.calls_left > 0:
            await asyncio.sleep(random.expovariate(1 / 0.3))
            plan = random.choice(self.plans)
            received = await self._call(random, partial(_receive, plan.name))
            if received is not None and len(received):
                receipts = [delivery.receipt for delivery in received.deliveries()]
                await self._call(random, partial(_delete, plan.name, receipts))

    # --- the end -------------------------------------------------------------------------------------

    async def all_arrived(self) -> None:
        """After the last fault: wait until every publish is answered and every copy is in its queue."""
        around = self._around
        random = self._random_of("closing")
        give_up_s = around.loop.time() + QUIET_S
        for _ in range(int(QUIET_S)):
            if not self._publishing or around.broken:
                break
            await asyncio.sleep(1.0)
        for plan in self.plans:
            if plan.limited and not around.broken:
                await self._insist(random, lambda broker, p=plan: _make_room(broker, p.name))  # type: ignore[misc]
        while not around.broken and not self._is_quiet():
            if around.loop.time() > give_up_s + QUIET_S:
                around.violated("liveness", "copies still wait although every queue has room")
                break
            await asyncio.sleep(1.0)
        if not around.broken:
            self._numbers = await Asking(around, random).insist(_queue_numbers)

    def _is_quiet(self) -> bool:
        """Whether every shard is served, and no copy waits in a topic."""
        nodes = [machine.node for machine in self._around.machines if machine.node is not None]
        hosts = [keeper.host() for node in nodes for keeper in node.shards if keeper.serving]
        if len({host.shard.number for host in hosts}) < self._shards or not all(host.commit.idle for host in hosts):
            return False
        return not any(host.shard.queues[number].messages for host in hosts for number in host.shard.topics)

    def check(self, ledger: Ledger) -> None:
        """Report copies that are missing, double, out of order, or in the wrong queue."""
        if not self._made or not self._numbers:
            return
        numbers = {number_published(number): number for number in self.published}
        for plan in self.plans:
            found = [
                numbers.get(copy.number, -1)
                for book in ledger.books.values()
                for copy in sorted(book.copies.values(), key=lambda copy: copy.sequence)
                if copy.queue == self._numbers[plan.name]
            ]
            self._check_copies(plan, Counter(found))
            if TOPICS[plan.topic]:
                self._check_order(plan, [number for number in found if number in self.published])

    def _check_copies(self, plan: Plan, found: Counter[int]) -> None:
        violated = self._around.violated
        twice = sorted(number for number, count in found.items() if count > 1)
        if twice:
            violated("copies", f"queue {plan.name} has copies twice: {twice[:5]}")
        for number in found:
            if number not in self.published or not plan.matches(self.published[number]):
                violated("copies", f"queue {plan.name} has a copy of #{number}, which is not for it")
        for message in self.published.values():
            if plan.matches(message) and message.acknowledged and not found[message.number]:
                violated("copies", f"queue {plan.name} has no copy of #{message.number}, which was acknowledged")
            if plan.matches(message):
                fates = self._fates.setdefault(message.number, {})
                fates[plan.name] = bool(found[message.number])
                if len(set(fates.values())) > 1:
                    violated("copies", f"#{message.number} has copies in some queues only: {fates}")

    def _check_order(self, plan: Plan, numbers: list[int]) -> None:
        for group in self._groups:
            line = [number for number in numbers if self.published[number].group == group]
            if line != sorted(line):
                self._around.violated("fifo", f"group {group} of queue {plan.name} is out of order: {line[:20]}")


class TopicSimulation(Simulation):
    """One node with nothing but topics."""

    def __init__(self, scenario: Scenario, loop: SimLoop) -> None:
        super().__init__(scenario, loop)
        self.topics = Topics(self, self._random, scenario.settings.shards)

    async def _set_up(self) -> None:
        await self.topics.set_up()

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        return self.topics.actors()

    async def _close(self, actors: list[asyncio.Task[None]]) -> None:
        self.lost_answers = 0.0
        self.calls_left = 0
        await self._end(actors)
        await self.topics.all_arrived()

    def _finish(self) -> None:
        for text in self.machine.witness.lost:
            self.violated("durability", text)
        if self.broken:
            self.violated("recovery", self.broken)
            return
        ledger = self.machine.witness.fold()
        for book in ledger.books.values():
            for text, _ in (*conservation.check_book(book), *conservation.check_channels(ledger, book)):
                self.violated("conservation", text)
        self.topics.check(ledger)

    def acknowledged(self) -> int:
        return self.topics.acknowledgements


def choose_topics(seed: int, steps: int | None) -> Scenario:
    scenario = choose_usual(seed, steps)
    random = Random(f"topics {seed}")
    settings = replace(scenario.settings, shards=random.choice((2, 3, 3)), spread=1, purge_wait_s=0.0)
    faults = replace(scenario.faults, clock_advance_s=0.0)
    return replace(scenario, settings=settings, faults=faults, queues=[], duration_s=random.choice((15.0, 25.0)))


async def _send(broker: Broker, topic: str, command: Send) -> Sent:
    entry: Topic = broker.topic(ACCOUNT, topic)
    sent: Sent = await submitted(
        lambda _, done: broker.send(entry, replace(command, queue=entry.number), done),
        command,
    )
    return sent


async def _receive(name: str, broker: Broker) -> Received:
    return await receive_from(broker, broker.queue(ACCOUNT, name), "taker")


async def _delete(name: str, receipts: list[str], broker: Broker) -> object:
    return await delete_from(broker, broker.queue(ACCOUNT, name), receipts)


async def _make_room(broker: Broker, name: str) -> bool:
    await broker.set_attributes(broker.queue(ACCOUNT, name), {"Baton.MaximumMessages": "0"})
    return True


async def _queue_numbers(broker: Broker) -> dict[str, int]:
    return {entry.name: entry.number for entry in broker.queues(ACCOUNT)}


def simulate_topics(
    seed: int, steps: int | None = None, bug: str | None = None, record: Record = lambda simulation: None
) -> Outcome:
    """Run one seed of topics to its end, with a bug planted if one is named."""
    scenario = choose_topics(seed, steps)
    with planted(bug, TOPIC_BUGS), patched(receives_that_break_off()):
        return run_to_its_end(lambda loop: TopicSimulation(scenario, loop), SimLoop(), bug, record)
