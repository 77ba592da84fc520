"""Who consumes messages: a bounded list of the consumers that this node has seen, and what each does.

A consumer is known by its account and the name that it gives itself, or else its key and address. It is noted once per
request, not per message. A request that acknowledges messages is counted for the consumer named in its header. Without
such a header it is counted for the consumer of its account that last polled over the same connection, or for the only
one that polled from the same host with the same User-Agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, NamedTuple

from batonq.errors import BatonError
from batonq.node.monitoring.everywhere import Everywhere

CONSUMERS_MAX = 2_000  # the one that was seen longest ago is forgotten first
QUEUES_MAX = 100  # per consumer
KEPT_MS = 3_600_000  # a consumer that was not seen for this long is no longer listed
MINUTE_MS = 60_000
ANY_QUEUE = 0  # stands for a receive from several queues
READ = "consumers"


class PerMinute:
    """A count of the last minute, estimated from the current and the previous minute of the clock."""

    __slots__ = ("_before", "_current", "_minute")

    def __init__(self) -> None:
        self._minute = self._current = self._before = 0

    def add(self, count: int, now_ms: int) -> None:
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._before = self._current if minute == self._minute + 1 else 0
            self._current = 0
            self._minute = minute
        self._current += count

    def value(self, now_ms: int) -> float:
        self.add(0, now_ms)
        return round(self._current + self._before * (1 - now_ms % MINUTE_MS / MINUTE_MS), 1)


class _Polls:
    """The receives of one consumer from one queue."""

    __slots__ = ("empty", "last_ms", "received", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.last_ms = 0
        self.received = PerMinute()
        self.empty = PerMinute()


class Consumer:
    __slots__ = ("account", "acked", "address", "agent", "failed", "heartbeat_ms", "name", "queues", "seen_ms")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.address = ""
        self.agent = b""
        self.seen_ms = self.heartbeat_ms = 0
        self.acked = PerMinute()
        self.failed = PerMinute()
        self.queues: dict[int, _Polls] = {}


class OpenPoll:
    """One receive in progress. It ends once: with an answer, or when its client leaves."""

    __slots__ = ("_consumer", "_now_ms", "_polls")

    def __init__(self, consumer: Consumer, polls: _Polls, now_ms: Callable[[], int]) -> None:
        self._consumer = consumer
        self._polls: _Polls | None = polls
        self._now_ms = now_ms
        polls.waiting += 1

    def ended(self, outcome: Sized | BatonError) -> None:
        if isinstance(outcome, BatonError):
            self.left()
        else:
            self.answered(len(outcome))

    def answered(self, count: int) -> None:
        polls, self._polls = self._polls, None
        if polls is not None:
            polls.waiting -= 1
            now_ms = polls.last_ms = self._consumer.seen_ms = self._now_ms()
            (polls.received if count else polls.empty).add(count or 1, now_ms)

    def abandon(self, then: Callable[[], None]) -> None:
        """The client has disconnected: stop waiting for messages."""
        self.left()
        then()

    def left(self) -> None:
        """The client has disconnected, or the request failed."""
        polls, self._polls = self._polls, None
        if polls is not None:
            polls.waiting -= 1


class ConsumerRow(NamedTuple):
    """A consumer as it is listed, of one node or merged over all."""

    name: str
    address: str
    agent: str
    queues: list[int]  # numbers; 0 stands for a receive from several queues
    waiting: int
    seen_ms: int
    polled_ms: int
    heartbeat_ms: int
    received: float  # per minute, as all of these
    empty: float
    acked: float
    failed: float
    node: str = ""
    account: str = ""

    def merged(self, other: ConsumerRow) -> ConsumerRow:
        newer = self if self.seen_ms >= other.seen_ms else other
        return newer._replace(
            queues=sorted({*self.queues, *other.queues}),
            waiting=self.waiting + other.waiting,
            polled_ms=max(self.polled_ms, other.polled_ms),
            heartbeat_ms=max(self.heartbeat_ms, other.heartbeat_ms),
            received=self.received + other.received,
            empty=self.empty + other.empty,
            acked=self.acked + other.acked,
            failed=self.failed + other.failed,
        )


class Consumers:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # By account and name: an account must not learn of another one's consumers. The oldest comes first.
        self._by_name: dict[tuple[str, str], Consumer] = {}
        self._at: dict[tuple[str, str], str] = {}  # account, address → name of the consumer that last polled from there
        # account, host, User-Agent → name; empty if several consumers share them
        self._on: dict[tuple[str, str, bytes], str] = {}
        self._everywhere: Everywhere | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def join(self, everywhere: Everywhere) -> None:
        """Let `listed` include the other nodes, and let them read this node's consumers."""
        self._everywhere = everywhere
        everywhere.provide(READ, self._read)

    # --- requests

    def polls(self, account: str, queue: int, name: str, address: str, agent: bytes) -> OpenPoll:
        """A receive has begun. `account` is the caller's."""
        consumer = self._seen(account, name)
        if consumer.address != address or consumer.agent != agent:
            self._at.pop((account, consumer.address), None)
            consumer.address, consumer.agent = address, agent
            self._at[account, address] = name
            place = account, _host(address), agent
            if len(self._on) >= CONSUMERS_MAX:
                self._on.clear()
            self._on[place] = name if self._on.get(place, name) == name else ""
        polls = self._polls_of(consumer, queue)
        return OpenPoll(consumer, polls, self._now_ms)

    def receives(self, account: str, name: str, queue: int, count: int) -> None:
        """A receive from several queues got messages of this one."""
        consumer = self._seen(account, name)
        self._polls_of(consumer, queue).received.add(count, consumer.seen_ms)

    @staticmethod
    def _polls_of(consumer: Consumer, queue: int) -> _Polls:
        polls = consumer.queues.get(queue)
        if polls is None:
            if len(consumer.queues) >= QUEUES_MAX:
                del consumer.queues[next(iter(consumer.queues))]
            polls = consumer.queues[queue] = _Polls()
        polls.last_ms = consumer.seen_ms
        return polls

    def settles(
        self,
        account: str,
        name: str,
        address: str,
        agent: bytes = b"",
        *,
        acked: int = 0,
        failed: int = 0,
        extended: bool = False,
    ) -> None:
        """Messages are acknowledged, returned, or kept longer. `name` is empty if the request has none."""
        name = name or self._at.get((account, address)) or self._on.get((account, _host(address), agent), "")
        if not name:
            return
        consumer = self._seen(account, name)
        if acked:
            consumer.acked.add(acked, consumer.seen_ms)
        if failed:
            consumer.failed.add(failed, consumer.seen_ms)
        if extended:
            consumer.heartbeat_ms = consumer.seen_ms

    def _seen(self, account: str, name: str) -> Consumer:
        consumer = self._by_name.pop((account, name), None)
        if consumer is None:
            consumer = Consumer(account, name)
            if len(self._by_name) >= CONSUMERS_MAX:
                self._forget(*next(iter(self._by_name)))
        self._by_name[account, name] = consumer
        consumer.seen_ms = self._now_ms()
        return consumer

    def _forget(self, account: str, name: str) -> None:
        consumer = self._by_name.pop((account, name))
        if self._at.get((account, consumer.address)) == name:
            del self._at[account, consumer.address]
        place = account, _host(consumer.address), consumer.agent
        if self._on.get(place) == name:
            del self._on[place]

    # --- listing

    def rows(self, queue: int | None = None) -> list[ConsumerRow]:
        """The consumers of this node; with a queue, only what they do there."""
        now_ms = self._now_ms()
        old = [one for one in self._by_name.values() if now_ms - one.seen_ms > KEPT_MS and not _waiting(one)]
        for one in old:
            self._forget(one.account, one.name)
        rows: list[ConsumerRow] = []
        for consumer in self._by_name.values():
            queues = consumer.queues
            polls = [*queues.values()] if queue is None else [queues[queue]] if queue in queues else []
            if not polls and queue is not None:
                continue
            rows.append(
                ConsumerRow(
                    consumer.name,
                    consumer.address,
                    consumer.agent.decode("utf-8", "replace"),
                    [*queues] if queue is None else [queue],
                    sum(one.waiting for one in polls),
                    max(consumer.seen_ms, now_ms if _waiting(consumer) else 0),
                    max((one.last_ms for one in polls), default=0),
                    consumer.heartbeat_ms,
                    sum(one.received.value(now_ms) for one in polls),
                    sum(one.empty.value(now_ms) for one in polls),
                    consumer.acked.value(now_ms),
                    consumer.failed.value(now_ms),
                    account=consumer.account,
                )
            )
        return rows

    async def _read(self, arguments: dict[str, Any]) -> list[list[Any]]:
        return [[*row] for row in self.rows(arguments.get("queue"))]

    async def listed(self, queue: int | None = None) -> list[ConsumerRow]:
        """The consumers of the whole server, by name. A node that does not answer is left out."""
        parts = await self._everywhere.read(READ, queue=queue) if self._everywhere is not None else []
        found: dict[tuple[str, str], ConsumerRow] = {}
        for part in parts:
            for values in part.value or ():
                row = ConsumerRow(*values)._replace(node=part.node)
                key = (row.name, row.account)
                found[key] = found[key].merged(row) if key in found else row
        return [found[key] for key in sorted(found)]


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _waiting(consumer: Consumer) -> bool:
    return any(polls.waiting for polls in consumer.queues.values())
