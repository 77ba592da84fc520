"""What the tests of the node share: virtual time, logs that do as they are told, and shards to try things on."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from batonq.core.commands import Accepted, Command, Lease, Receive
from batonq.core.policy import QueuePolicy
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError
from batonq.log.interface import Log
from batonq.node.alarms.book import AlarmBook
from batonq.node.clock import Clock
from batonq.node.messages.body_reader import BodyReader
from batonq.node.messages.received import Deliveries
from batonq.node.routing.local_shard import LocalShard
from batonq.node.routing.submission import submitted
from batonq.node.settings import Settings
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.shard_host.recovery import replay_log, take_ownership
from tests.support.ask import Message, batch, message
from tests.support.brokers import delete_at, send_at
from tests.support.memory_log import MemoryLog

T = TypeVar("T")
START_S = 1_700_000_000.0
ORDERS = 1
DEAD = 2
FIFO = 3


class _VirtualSelector(selectors.SelectSelector):
    """Does not wait: the loop's time is moved on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing is ready."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def clock(self) -> Clock:
        return Clock(self.time, lambda: START_S + self.time())


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(main(loop))


async def settle(turns: int = 20) -> None:
    """Let everything that is ready happen."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool | Awaitable[bool]], every_s: float = 0.1) -> None:
    """Let (virtual) time pass until something holds."""
    for _ in range(10_000):
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        await asyncio.sleep(every_s)
    raise AssertionError("it never happened")


def policies(visibility_ms: int = 30_000, **fields: Any) -> list[QueuePolicy]:
    """A standard queue with dead letters, its dead-letter queue, and a FIFO queue."""
    tenant = "000000000000"
    return [
        QueuePolicy(queue=DEAD, tenant=tenant, name="dead", version=1),
        QueuePolicy(queue=ORDERS, tenant=tenant, name="orders", version=1, visibility_ms=visibility_ms, **fields),
        QueuePolicy(queue=FIFO, tenant=tenant, name="orders.fifo", version=1, fifo=True, visibility_ms=visibility_ms),
    ]


class Bench:
    """A host over a log in memory, with three queues."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, log: Log, settings: Settings) -> None:
        self.loop = loop
        self.clock = clock
        self.log = log
        self.commits = 0
        self.validates = True
        self.failures: list[BaseException] = []
        self.alarms = AlarmBook(clock.now_ms, 100)
        self.shard = Shard(0, settings.shard_limits)
        replay_log(self.shard, log)
        take_ownership(self.shard, log, self.shard.epoch + 1, clock, 60_000, True)
        self.host = ShardHost(
            self.shard,
            log,
            loop=loop,
            clock=clock,
            settings=settings,
            cluster=7,
            alarms=self.alarms,
            on_commit=self._committed,
            on_failure=self.failures.append,
        )
        deliveries, bodies = Deliveries(loop, self.alarms), BodyReader(threads=False)
        self.port = LocalShard(cast(ShardKeeper, _Keeper(self.host)), deliveries, _not_asked, _not_asked, bodies)

    def _committed(self) -> None:
        self.commits += 1
        if self.validates:
            self.shard.validate()

    async def send(self, *texts: str, queue: int = ORDERS, **fields: Any) -> list[Any]:
        return await send_at(self.host, queue, [message(text, **fields) for text in texts])

    def put(self, *texts: str, queue: int = ORDERS) -> None:
        """Messages into the open frame, at once."""
        put(self.host, queue, [message(text) for text in texts])

    def submit(self, command: Command) -> asyncio.Task[Any]:
        """The outcome of a command, as soon as it is committed."""
        return self.loop.create_task(submitted(self.port.submit, command))

    async def committed(self) -> None:
        point = self.host.point()
        if point is not None:
            await point

    async def receive(
        self,
        count: int = 1,
        wait_ms: int = 0,
        queue: int = ORDERS,
        visibility_ms: int | None = None,
        attempt: str = "",
    ) -> list[Lease]:
        command = Receive(queue, count, visibility_ms, "tester", attempt, wait_ms)
        return [*(await submitted(self.port.submit, command)).leases]

    async def delete(self, *leases: Lease, queue: int = ORDERS, strict: bool = False) -> list[BatonError | None]:
        return await delete_at(self.host, queue, [lease[:3] for lease in leases], strict)


def put(host: ShardHost, queue: int, messages: Sequence[Message]) -> list[Accepted | BatonError]:
    """Have a host decide about messages at once: they are in the open frame, and nobody waits for the commit."""
    (sent,) = host.run(host.shard.send, [batch(queue, messages)], host.admit(adds=True))
    if host.shard.woken:
        host.polls.woken()
    return [*sent.results()]


class _Keeper:
    """Of a host that a test opened itself."""

    def __init__(self, host: ShardHost) -> None:
        self.number = host.shard.number
        self._host = host

    def host(self) -> ShardHost:
        return self._host


async def _not_asked(*arguments: Any) -> Any:
    raise AssertionError("a single shard has no catalog")


async def open_bench(
    loop: VirtualLoop,
    log: Log | None = None,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    **policy_fields: Any,
) -> Bench:
    fresh = log is None
    bench = Bench(loop, clock or loop.clock(), log or MemoryLog(0), settings or Settings())
    await bench.host.start()
    if fresh:
        for policy in policies(**policy_fields):
            bench.host.set_policy(policy)
        await bench.committed()
    return bench
