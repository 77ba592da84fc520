"""The load of a round: producers that retry, consumers with various behaviours, and probes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any, NamedTuple

from batonq.errors import BatonError
from campaign.clients import Client, Surroundings
from campaign.cluster import THRESHOLD_BYTES, Broken, Cluster, until
from sim.bodies import make_body
from sim.clients import UNREACHED
from sim.history import OK, UNKNOWN, Delivered, Outgoing, Sending

RETRIES_S = 60.0
RETRIED = ("unavailable", "log_error", "over_limit", UNREACHED, UNKNOWN)
OLD_RECEIPTS_MAX = 60
PROBE_EVERY_S = 0.2
PROBE_S = 15.0
PROBES_MAX = 60  # queues created until every shard has one
GROUPS = 6
GROWTH_MAX_S = 12.0  # before a fault, while it lasts, or after it
DRAIN_VISIBILITY_MS = 20_000


class QueuePlan(NamedTuple):
    name: str
    spec: dict[str, Any]
    visibility_ms: int = 4_000
    fifo: bool = False
    keyed: bool = False
    delayed: bool = False
    dead_letters: bool = False  # nobody sends there
    large: bool = False  # some bodies are put into the payload store
    grows_to: int = 0  # number of shards, at some time in the round


def plans(round_number: int) -> list[QueuePlan]:
    """The queues of one round, with unique names."""
    first = f"r{round_number}"
    second_s = {"defaultVisibilityTimeoutSeconds": 4}
    dead = QueuePlan(f"{first}-dead", second_s, dead_letters=True)
    dying = {"maxReceiveCount": 4, "deadLetterQueue": dead.name}
    return [
        dead,
        QueuePlan(f"{first}-work", {**second_s, **dying}, delayed=True),
        QueuePlan(f"{first}-keyed", second_s, keyed=True),
        QueuePlan(f"{first}-wide", {**second_s, **dying, "spread": 2}, grows_to=3),
        QueuePlan(f"{first}-order.fifo", {**second_s, "mode": "FIFO"}, fifo=True, keyed=True),
        QueuePlan(f"{first}-large", {**second_s, **dying, "spread": 2}, large=True),
        QueuePlan(f"{first}-large.fifo", {**second_s, "mode": "FIFO"}, fifo=True, keyed=True, large=True),
    ]


class Producer:
    def __init__(self, client: Client, queues: list[QueuePlan], numbers: Callable[[], int], think_s: float) -> None:
        self._client = client
        self._queues = [plan for plan in queues if not plan.dead_letters]
        self._numbers = numbers
        self._think_s = think_s
        self._invocations = 0
        self._counted: dict[str, int] = {}  # queue → the last number sent there

    async def run(self) -> None:
        random = self._client.random
        while True:
            await asyncio.sleep(random.expovariate(1.0) * self._think_s)
            plan = random.choice(self._queues)
            messages = [self._message(plan) for _ in range(random.choice((1, 1, 2, 5)))]
            await self._send(plan, messages)
            if plan.keyed and random.random() < 0.1:  # as a producer that does not remember having sent it
                await self._send(plan, messages)

    async def _send(self, plan: QueuePlan, messages: list[Outgoing]) -> None:
        """Retry until there is a final response, always as the same request: by its name, or by its numbers."""
        self._invocations += 1
        invocation = f"{self._client.name}-{self._invocations}"
        producer = f"{self._client.name}.{plan.name}" if self._invocations % 3 == 0 and not plan.keyed else ""
        first = 1 + self._counted.get(plan.name, 0)
        if producer:
            self._counted[plan.name] = first + len(messages) - 1
        by_sdk = self._invocations % 3 == 1 and not plan.keyed and not any(one.delay_ms for one in messages)
        give_up_s = time.monotonic() + RETRIES_S
        attempt = 0
        while time.monotonic() < give_up_s:
            attempt += 1
            if by_sdk:
                call = await self._client.send_by_sdk(plan.name, messages, invocation, attempt)
            else:
                call = await self._client.send(plan.name, messages, invocation, producer, first)
            if not _is_retried(call):
                return
            await asyncio.sleep(0.1 * self._client.random.random())

    def _message(self, plan: QueuePlan) -> Outgoing:
        random = self._client.random
        number = self._numbers()
        more = random.choice((0, 1, 4)) * THRESHOLD_BYTES if plan.large else 0
        return Outgoing(
            number=number,
            body=make_body(number, random) + b"." * more,
            group=f"group-{random.randrange(GROUPS)}" if plan.fifo else "",
            dedup_id=f"key-{number}" if plan.keyed else "",
            delay_ms=random.choice((None, None, 500, 2_000)) if plan.delayed else None,
        )


def _is_retried(call: Sending) -> bool:
    return call.outcome in RETRIED or any(answer.outcome in RETRIED for answer in call.answers)


class Consumer:
    def __init__(
        self,
        client: Client,
        queues: list[QueuePlan],
        think_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._client = client
        self._queues = queues
        self._think_s = think_s
        self._spawn = spawn
        self._old: list[Delivered] = []
        self._attempts = 0

    async def run(self) -> None:
        random = self._client.random
        while True:
            await asyncio.sleep(random.expovariate(1.0) * self._think_s)
            if self._old and random.random() < 0.15:
                await self._use_old()
            else:
                await self._receive()

    async def _receive(self) -> None:
        random = self._client.random
        plan = random.choice(self._queues)
        visibility_ms = random.choice((None, None, 1_000, 2_000, 6_000))
        size = random.choice((1, 3, 10))
        attempt = ""
        if plan.fifo and random.random() < 0.3:
            self._attempts += 1
            attempt = f"{self._client.name}-attempt-{self._attempts}"
        call = await self._client.receive(plan.name, size, visibility_ms, random.choice((0, 500, 2_000)), attempt)
        if attempt and call.outcome != OK:
            call = await self._client.receive(plan.name, size, visibility_ms, 0, attempt)
        for delivered in call.deliveries:
            self._spawn(self._handle(delivered, dying="deadLetterQueue" in plan.spec))

    async def _handle(self, held: Delivered, *, dying: bool) -> None:
        """Process one received message."""
        random = self._client.random
        self._old.append(held)
        del self._old[:-OLD_RECEIPTS_MAX]
        lasts_s = max(held.deadline_ms - held.began_ms, 1) / 1000
        fate = random.random()
        await asyncio.sleep(random.random() * lasts_s * 0.3)
        if fate < 0.60:
            await self._client.delete(held)
        elif fate < 0.68:
            await asyncio.sleep(lasts_s * (0.6 + random.random()))
            await self._client.delete(held)
        elif fate < 0.80:
            await self._client.nack(held, random.choice((0, 0, 1_000)))
        elif fate < 0.83:
            await self._client.nack(held, 0, dead_letter=dying)
        elif fate < 0.92:
            await self._heartbeats(held, lasts_s)
        elif fate < 0.95:
            await self._client.change(held, 0)
        # otherwise the consumer dies while it holds the message

    async def _heartbeats(self, held: Delivered, lasts_s: float) -> None:
        for _ in range(self._client.random.randint(1, 3)):
            await self._client.change(held, int(lasts_s * 1000))
            await asyncio.sleep(lasts_s * 0.6 * self._client.random.random())
        await self._client.delete(held)

    async def _use_old(self) -> None:
        """Use an old receipt, whose message another consumer may hold by now."""
        held = self._client.random.choice(self._old)
        choice = self._client.random.random()
        if choice < 0.4:
            await self._client.delete(held)
        elif choice < 0.7:
            await self._client.nack(held, 0)
        else:
            await self._client.change(held, 3_000)


class Probe(NamedTuple):
    shard: int
    node: str
    started_s: float
    ended_s: float
    ok: bool


class Probes:
    """Repeated sends to every shard, next to the load: they measure how long a shard is unavailable, and the effect on
    others.
    """

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._queues: dict[int, str] = {}
        self.done: list[Probe] = []

    async def prepare(self, shards: int) -> None:
        """Create a queue on every shard."""
        for number in count():
            if len(self._queues) == shards:
                return
            if number > PROBES_MAX:
                raise Broken("a shard got no queue")
            name = f"probe-{number}"
            await make_queue(self._cluster, name, {})
            for queue in (await self._cluster.status())["queues"]:
                if queue["name"] == name:
                    self._queues.setdefault(queue["shard"], name)

    async def wait_served(self, since_s: float) -> None:
        """Wait until a send to every shard, started after this call, has succeeded."""

        async def served() -> bool:
            return {probe.shard for probe in self.done if probe.ok and probe.started_s > since_s} == set(self._queues)

        await until(served, "sends to a shard fail")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for shard, queue in self._queues.items():
                    group.create_task(self._probe(shard, queue))
                await asyncio.sleep(PROBE_EVERY_S)

    async def _probe(self, shard: int, queue: str) -> None:
        running = self._cluster.running()
        if not running:
            return
        node = self._random.choice(running)
        started_s = time.monotonic()
        ok = False
        try:
            head = [("Content-Type", "application/json")]
            path = f"/v1/queues/{queue}/messages"
            answer = await node.transport.request("POST", path, b'{"body": "probe"}', head, PROBE_S)
            ok = answer.status < 300
        except BatonError:
            pass
        self.done.append(Probe(shard, node.name, started_s, time.monotonic(), ok))


class Load:
    """The whole load. `async with` starts and stops it; then call `drain`."""

    def __init__(self, around: Surroundings, queues: list[QueuePlan], numbers: Callable[[], int], scale: float) -> None:
        self._around = around
        self._queues = queues
        self._tasks: set[asyncio.Task[None]] = set()
        random = around.random
        self._workers: list[Producer | Consumer] = [
            Producer(Client(f"producer-{number}", around, Random(random.random())), queues, numbers, 0.08 / scale)
            for number in range(3)
        ]
        self._workers += [
            Consumer(Client(f"consumer-{number}", around, Random(random.random())), queues, 0.05 / scale, self._spawn)
            for number in range(5)
        ]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise Broken(f"a client failed: {task.exception()!r}")

    async def __aenter__(self) -> Load:
        for plan in self._queues:
            self._around.visibility_ms[plan.name] = plan.visibility_ms
            await make_queue(self._around.cluster, plan.name, plan.spec)
            if plan.grows_to:
                self._spawn(self._grow(plan))
        for worker in self._workers:
            self._spawn(worker.run())
        return self

    async def _grow(self, plan: QueuePlan) -> None:
        await asyncio.sleep(GROWTH_MAX_S * self._around.random.random())
        await steer(self._around.cluster, "PATCH", f"/v1/queues/{plan.name}", {"spread": plan.grows_to})

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self, empty: Callable[[], Coroutine[Any, Any, bool]], seconds: float) -> bool:
        """Receive and delete everything; False if messages are left after that time."""
        deadline_s = time.monotonic() + seconds
        clients = [Client(f"drain-{at}", self._around, Random(at)) for at in range(len(self._queues))]

        async def take(client: Client, queue: str) -> None:
            while time.monotonic() < deadline_s:
                call = await client.receive(queue, 10, DRAIN_VISIBILITY_MS, 300)
                for held in call.deliveries:
                    await client.delete(held)
                if call.outcome == OK and not call.deliveries:
                    return

        while time.monotonic() < deadline_s:
            await asyncio.gather(*(take(one, plan.name) for one, plan in zip(clients, self._queues, strict=True)))
            if await empty():
                return True
        return False


async def make_queue(cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
    await steer(cluster, "POST", "/v1/queues", {"name": name, **spec})


async def steer(cluster: Cluster, method: str, path: str, body: dict[str, Any]) -> None:
    """An operator's request, sent to one node after another until it succeeds."""
    data = json.dumps(body).encode()
    deadline_s = time.monotonic() + RETRIES_S
    problem = ""
    while time.monotonic() < deadline_s:
        for node in cluster.running():
            try:
                head = [("Content-Type", "application/json")]
                answer = await node.transport.request(method, path, data, head, 10.0)
            except BatonError as failed:
                problem = failed.message
                continue
            if answer.status < 300:
                return
            problem = answer.body.decode()
        await asyncio.sleep(0.2)
    raise Broken(f"{method} {path} with {body} failed: {problem}")
