"""Simulations of topics: publishers and takers, with the faults of a usual run, and a check of every copy.

A seed is a run of its own, so that the seeds of other simulations stay what they are. The ledger is the judge: an
acknowledged publish has exactly one copy in each subscribed queue, a publish without an answer has one in each or none
at all, and in FIFO queues the copies of a group come in the order of their publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Accepted, Receive, Send, Sent
from batonq.core.ids import request_hash
from batonq.core.payload import Attribute, encode_attributes
from batonq.core.records import Reason
from batonq.core.shard.commands import publish as publish_module
from batonq.core.shard.commands.publish import Publishing
from batonq.core.shard.moves.fanout import FanOut
from batonq.errors import BatonError
from batonq.node.broker import Broker, Received
from batonq.node.catalog.topic_control import Topic
from batonq.node.routing.submission import submitted
from sim.bodies import make_body
from sim.breaks import receives_that_break_off
from sim.checks import conservation
from sim.clients import ANSWER_S
from sim.loop import SimLoop
from sim.machine import Gone
from sim.patches import Patches, patched
from sim.run import Outcome, Record, Simulation, run_to_its_end
from sim.scenario import ACCOUNT, Scenario, choose_usual

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


def choose_topics(seed: int, steps: int | None) -> Scenario:
    scenario = choose_usual(seed, steps)
    random = Random(f"topics {seed}")
    settings = replace(scenario.settings, shards=random.choice((2, 3, 3)), spread=1, purge_wait_s=0.0)
    faults = replace(scenario.faults, clock_advance_s=0.0)
    return replace(scenario, settings=settings, faults=faults, queues=[], duration_s=random.choice((15.0, 25.0)))


class TopicSimulation(Simulation):
    def __init__(self, scenario: Scenario, loop: SimLoop) -> None:
        super().__init__(scenario, loop)
        random = self._random("subscriptions")
        self.plans = [self._plan(random, at, topic) for topic in TOPICS for at in range(3)]
        self.published: dict[int, Published] = {}
        self.groups = {f"{at}-{group}": asyncio.Lock() for at in range(PUBLISHERS) for group in range(GROUPS)}
        self.acknowledgements = 0
        self.numbers: dict[str, int] = {}  # of the queues, by name
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

    async def call(self, random: Random, work: Callable[[Broker], Coroutine[Any, Any, Any]]) -> Any:
        """The answer of a node; None if there is none, which may mean anything."""
        machine = self.machine_for(random)
        node = machine.node
        if node is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await machine.run(work(node.broker))
        except TimeoutError:
            self.violated("liveness", f"no answer after {ANSWER_S} s")
            return None
        except (Gone, BatonError):
            return None
        return None if random.random() < self.lost_answers else answer

    async def insist(self, random: Random, work: Callable[[Broker], Coroutine[Any, Any, Any]]) -> Any:
        for _ in range(TRIES_MAX):
            answer = await self.call(random, work)
            if answer is not None or self.broken:
                return answer
            await asyncio.sleep(0.2)
        self.violated("liveness", "a request is never answered")
        return None

    async def _set_up(self) -> None:
        random = self._random("set-up")
        for name, fifo in TOPICS.items():
            attributes = {"FifoTopic": "true"} if fifo else {}
            await self.insist(random, lambda broker, n=name, a=attributes: broker.create_topic(ACCOUNT, n, a, {}))  # type: ignore[misc]
        for at, plan in enumerate(self.plans):
            await self.insist(
                random,
                lambda broker, p=plan: broker.create_queue(ACCOUNT, p.name, p.attributes, {}),  # type: ignore[misc]
            )
            await self.insist(random, lambda broker, p=plan, u=f"u{at}": self._subscribe(broker, p, u))  # type: ignore[misc]

    async def _subscribe(self, broker: Broker, plan: Plan, uuid: str) -> object:
        attributes = {"RawMessageDelivery": "true"} if plan.raw else {}
        if plan.kind:
            attributes["FilterPolicy"] = f'{{"kind":["{plan.kind}"]}}'
        return await broker.subscribe(
            broker.topic(ACCOUNT, plan.topic), queue_arn(ACCOUNT, plan.name), attributes, uuid
        )

    # --- actors --------------------------------------------------------------------------------------

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        publishers = [self._publish_often(at, self._random(f"publisher {at}")) for at in range(PUBLISHERS)]
        takers = [self._take_often(self._random(f"taker {at}")) for at in range(TAKERS)]
        return [*publishers, *takers]

    async def _publish_often(self, publisher: int, random: Random) -> None:
        while self.calls_left > 0:
            await asyncio.sleep(random.expovariate(1 / 0.2))
            self.calls_left -= 1
            topic = random.choice(list(TOPICS))
            messages = [
                Published(self.next_message(), topic, random.choice(KINDS)) for _ in range(random.choice((1, 1, 3)))
            ]
            for message in messages:
                self.published[message.number] = message
            if TOPICS[topic]:
                group = f"{publisher}-{random.randrange(GROUPS)}"
                for message in messages:
                    message.group = group
                self.spawn(self._publish_in_order(random, group, messages))
            else:
                named = random.random() < 0.5
                command = self._command(random, messages, request_hash(1, str(messages[0].number)) if named else 0)
                self.spawn(self._publish(random, messages, command, again=named))

    async def _publish_in_order(self, random: Random, group: str, messages: list[Published]) -> None:
        async with self.groups[group]:
            await self._publish(random, messages, self._command(random, messages, 0), again=True)

    def _command(self, random: Random, messages: list[Published], request: int) -> Send:
        fifo = TOPICS[messages[0].topic]
        return Send(
            0,
            [make_body(message.number, random) for message in messages],
            digests=[bytes(16)] * len(messages) if fifo else (),
            attributes=[encode_attributes([Attribute("kind", "String", m.kind.encode(), False)]) for m in messages],
            groups=[message.group for message in messages] if fifo else (),
            dedup_ids=[f"id {message.number}" for message in messages] if fifo else (),
            request=request,
        )

    async def _publish(self, random: Random, messages: list[Published], command: Send, again: bool) -> None:
        """Publish once, or, if a repetition is recognised, until it is acknowledged."""
        for _ in range(TRIES_MAX if again else 1):
            sent = await self.call(random, lambda broker: _send(broker, messages[0].topic, command))
            if sent is not None:
                for message, result in zip(messages, sent.results(), strict=True):
                    message.acknowledged = message.acknowledged or isinstance(result, Accepted)
                if all(message.acknowledged for message in messages):
                    self.acknowledgements += len(messages)
                    return
            await asyncio.sleep(0.1 + random.random())

    async def _take_often(self, random: Random) -> None:
        while self.calls_left > 0:
            await asyncio.sleep(random.expovariate(1 / 0.3))
            plan = random.choice(self.plans)
            received = await self.call(random, lambda broker, p=plan: _receive(broker, p.name))  # type: ignore[misc]
            if received is not None and len(received):
                receipts = [delivery.receipt for delivery in received.deliveries()]
                await self.call(random, lambda broker, p=plan, r=receipts: _delete(broker, p.name, r))  # type: ignore[misc]

    # --- the end -------------------------------------------------------------------------------------

    async def _close(self, actors: list[asyncio.Task[None]]) -> None:
        self.lost_answers = 0.0
        self.calls_left = 0
        random = self._random("closing")
        give_up_s = self.loop.time() + QUIET_S
        if self._spawned and not self.broken:
            await asyncio.wait([*self._spawned], timeout=QUIET_S)
        await self._end(actors)
        for plan in self.plans:
            if plan.limited and not self.broken:
                await self.insist(random, lambda broker, p=plan: _make_room(broker, p.name))  # type: ignore[misc]
        while not self.broken and not self._all_arrived():
            if self.loop.time() > give_up_s + QUIET_S:
                self.violated("liveness", "copies still wait although every queue has room")
                return
            await asyncio.sleep(1.0)

    def _all_arrived(self) -> bool:
        node = self.machine.node
        if node is None or not all(keeper.serving and keeper.host().commit.idle for keeper in node.shards):
            return False
        shards = [keeper.host().shard for keeper in node.shards]
        return not any(shard.queues[number].messages for shard in shards for number in shard.topics)

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
        for plan in self.plans:
            copies = [
                copy
                for book in ledger.books.values()
                for copy in sorted(book.copies.values(), key=lambda copy: copy.sequence)
                if copy.queue == self.numbers[plan.name]
            ]
            self._check_copies(plan, Counter(copy.number for copy in copies))
            if TOPICS[plan.topic]:
                self._check_order(plan, [copy.number for copy in copies])

    def _audit(self, *, replay: bool) -> None:
        super()._audit(replay=replay)
        node = self.machine.node
        if node is not None:
            with contextlib.suppress(BatonError):
                self.numbers = {entry.name: entry.number for entry in node.broker.queues(ACCOUNT)}

    def _check_copies(self, plan: Plan, found: Counter[int]) -> None:
        twice = sorted(number for number, count in found.items() if count > 1)
        if twice:
            self.violated("copies", f"queue {plan.name} has copies twice: {twice[:5]}")
        for number in found:
            if number not in self.published or not plan.matches(self.published[number]):
                self.violated("copies", f"queue {plan.name} has a copy of #{number}, which is not for it")
        for message in self.published.values():
            if plan.matches(message) and message.acknowledged and not found[message.number]:
                self.violated("copies", f"queue {plan.name} has no copy of #{message.number}, which was acknowledged")
            if plan.matches(message):
                fates = self._fates.setdefault(message.number, {})
                fates[plan.name] = bool(found[message.number])
                if len(set(fates.values())) > 1:
                    self.violated("copies", f"#{message.number} has copies in some queues only: {fates}")

    def _check_order(self, plan: Plan, numbers: list[int]) -> None:
        for group in self.groups:
            line = [number for number in numbers if self.published[number].group == group]
            if line != sorted(line):
                self.violated("fifo", f"group {group} of queue {plan.name} is out of order: {line[:20]}")

    def acknowledged(self) -> int:
        return self.acknowledgements


async def _send(broker: Broker, topic: str, command: Send) -> Sent:
    entry: Topic = broker.topic(ACCOUNT, topic)
    sent: Sent = await submitted(
        lambda _, done: broker.send(entry, replace(command, queue=entry.number), done),
        command,
    )
    return sent


async def _receive(broker: Broker, name: str) -> Received:
    queue = broker.queue(ACCOUNT, name)
    command = Receive(queue.number, 5, 2_000, "taker")
    received: Received = await submitted(lambda one, done: broker.receive(queue, one, done), command)  # type: ignore[arg-type]
    return received


async def _delete(broker: Broker, name: str, receipts: list[str]) -> object:
    queue = broker.queue(ACCOUNT, name)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(outcome: Any) -> None:
        if not future.done():
            future.set_result(outcome)

    broker.delete(queue, receipts, done)
    return await future


async def _make_room(broker: Broker, name: str) -> bool:
    await broker.set_attributes(broker.queue(ACCOUNT, name), {"Baton.MaximumMessages": "0"})
    return True


# --- bugs to plant --------------------------------------------------------------------------------------


def copies_overtake() -> Patches:
    """A copy is sent although an earlier copy of its group waits in the topic."""
    numbers = count(1)

    def no_line(subscription: int, group: int) -> int:
        del group
        return subscription << 32 | next(numbers)

    return [(publish_module, "line_key", no_line)]


def refused_copies_dropped() -> Patches:
    """A copy that a full queue refuses is dropped."""

    def drop(self: FanOut, queue: Any, slot: int, to: int, verdict: Reason, now: int) -> None:
        if verdict != Reason.ACCEPTED:
            self.drop(queue, slot, now)

    return [(FanOut, "on_settled", drop)]


def second_subscription_forgotten() -> Patches:
    """A publish has no copy for its last subscription now and then."""
    copy = Publishing._copy

    def careless(self: Publishing, queue: Any, topic: Any, batch: Any, matches: Any, now: int) -> None:
        if batch.sequence % 5 == 0:
            matches = [matching[:-1] for matching in matches]
        if any(matches):
            copy(self, queue, topic, batch, matches, now)

    return [(Publishing, "_copy", careless)]


TOPIC_BUGS: dict[str, Callable[[], Patches]] = {
    "copies-overtake": copies_overtake,
    "refused-copies-dropped": refused_copies_dropped,
    "second-subscription-forgotten": second_subscription_forgotten,
}


def simulate_topics(
    seed: int, steps: int | None = None, bug: str | None = None, record: Record = lambda simulation: None
) -> Outcome:
    """Run one seed of topics to its end, with a bug planted if one is named."""
    scenario = choose_topics(seed, steps)
    patches = TOPIC_BUGS[bug]() if bug is not None else []
    with patched([*patches, *receives_that_break_off()]):
        return run_to_its_end(lambda loop: TopicSimulation(scenario, loop), SimLoop(), bug, record)
