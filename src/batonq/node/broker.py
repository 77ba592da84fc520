"""The broker: what the front doors call. Finds the queue's shard, runs the command there, answers once it is committed.

Here is what is about messages; what is about queues and keys is in control.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from batonq.core.commands import Accepted, Claim, Counters, FirstLeases, Lease, Nack, Send
from batonq.core.ids import key_hash, message_id, message_ids
from batonq.core.payload import AS_IS, Lineage
from batonq.core.shard.machine import Shard
from batonq.core.shard.once import Once
from batonq.core.shard.state import Failure
from batonq.errors import (
    BatonError,
    InvalidInput,
    LogError,
    MessageGone,
    ReceiptInvalid,
)
from batonq.node.cataloghost import CatalogHost
from batonq.node.clock import Clock
from batonq.node.control import Queue, committed
from batonq.node.events import AlarmBoard
from batonq.node.history import History
from batonq.node.host import ShardHost
from batonq.node.jobs import JobControl
from batonq.node.keeper import ShardKeeper
from batonq.node.peeking import Peeked, look
from batonq.node.reading import read_message, read_run
from batonq.node.receipts import Receipts, invalid
from batonq.node.settings import Settings
from batonq.node.watching import Selection, give_back, receive_any

HOLDER_LENGTH_MAX = 256
CLOCK_STEPS_MAX = 100_000
ANSWER_BYTES_MAX = 12 * 1024 * 1024  # of the messages of one receive, unless a single one is larger
FEW_LEASES = 10  # so many fit, however large they are
SELECTIONS_KEPT = 256

Sent = Accepted  # sequence, message_id, duplicate
# Receipt, delay in ms, reason, error class, whether to the dead letters, whether it was not tried.
NackRequest = tuple[str, int | None, str, str, bool, bool]
Plain = tuple[str, str, bytes, bytes]  # message id, receipt, MD5 and body of a message that is nothing else


class Delivery(NamedTuple):
    """A message in the hands of its holder, with the receipt for the lease."""

    message_id: str
    receipt: str
    body: bytes
    body_md5: bytes  # empty: nobody has asked for it yet
    attributes: bytes  # see core/payload.py
    sender: str
    group: str
    dedup_id: str
    trace: str
    sequence: int
    sent_ms: int
    first_received_ms: int
    receive_count: int
    deadline_ms: int
    priority: int
    lineage: Lineage | None
    failure: Failure | None = None  # of an earlier attempt in this queue
    content: int = 0  # what the body is, see core/payload.py


class Broker(JobControl):
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        catalog: CatalogHost,
        shards: Sequence[ShardKeeper],
        receipts: Receipts,
        alarms: AlarmBoard,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.dev = settings.dev
        self.account = settings.account
        super().__init__(loop, catalog, shards)
        self._clock = clock
        self._settings = settings
        self._receipts = receipts
        self._alarms = alarms
        self._random_bytes = random_bytes
        self._selections: dict[tuple[str, ...], Selection] = {}
        self.history = History(shards=shards, rate_bytes=settings.history_rate_bytes, seconds=loop.time)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # --- messages -------------------------------------------------------------------------------

    async def send(self, queue: Queue, sends: Sequence[Send], invocation: str = "") -> list[Sent | BatonError]:
        """Send messages; one result each. `invocation` names the SDK's request, whose retry makes no second message."""
        host = self._shards[queue.shard].host()
        results = host.send(queue.number, sends, key_hash(queue.number, invocation) if invocation else 0)
        point = host.point()
        if point is not None:
            await point
        return results

    async def send_once(
        self, queue: Queue, sends: Sequence[Send], name: str, content: str
    ) -> tuple[list[Sent | BatonError], bool]:
        """Send messages by a request that its sender named, and whether it was known: then nothing was sent.

        `content` is what the request says: the same name with another content is an IdempotencyConflict.
        """
        host = self._shards[queue.shard].host()
        window_ms = int(self._settings.idempotency_hours * 3_600_000)
        outcome = host.send_once(queue.number, sends, Once(name, content, window_ms))
        await committed(host)
        return outcome

    async def receive(
        self,
        queue: Queue,
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
        attempt: str = "",
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait_ms` for the first."""
        host = self._shards[queue.shard].host()
        leases = await host.receive(
            queue.number, max_messages, visibility_ms, wait_ms, holder[:HOLDER_LENGTH_MAX], attempt
        )
        if not leases:
            return []
        try:
            await self._warm(host, [lease.position for lease in leases])
        except asyncio.CancelledError:  # the client has gone
            if not attempt:
                host.give_back(queue.number, leases)
            raise
        return self._deliveries(queue, host, leases)

    async def _warm(self, host: ShardHost, positions: Sequence[int]) -> None:
        """Have bodies that lie on a cold part of the disk read by a thread: the loop must not wait for them."""
        cold = _cold(host, positions)
        if cold:
            await self._loop.run_in_executor(None, host.log.warm, cold)

    def select(self, account: str, patterns: Sequence[str]) -> Selection:
        """The queues of an account that names and patterns (`hooks-*`) mean, for `receive_any`."""
        key = (account, *patterns)
        selection = self._selections.pop(key, None) or Selection(self._catalog.current, account, patterns)
        self._selections[key] = selection  # the newest use last
        if len(self._selections) > SELECTIONS_KEPT:
            del self._selections[next(iter(self._selections))]
        return selection

    async def receive_any(
        self,
        queues: Selection | Sequence[Queue],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[Queue, Delivery]]:
        """Lease messages of many queues by one request, fair among them, waiting up to `wait_ms` for the first."""
        if not isinstance(queues, Selection):
            accounts = {queue.account for queue in queues}
            if len(accounts) != 1:
                raise InvalidInput("Name some queues, all of one account.")
            queues = self.select(accounts.pop(), [queue.name for queue in queues])
        taken = await receive_any(
            queues, self._shards, self._loop, max_messages, visibility_ms, wait_ms, holder[:HOLDER_LENGTH_MAX]
        )
        found: list[tuple[Queue, Delivery]] = []
        room = ANSWER_BYTES_MAX
        try:
            for part in taken:
                await self._warm(part.host, [lease.position for lease in part.leases])
        except asyncio.CancelledError:  # the client has gone
            give_back(taken)
            raise
        for part in taken:
            queue = self.queue_by_number(part.queue)
            if queue is not None:
                deliveries = self._deliveries(queue, part.host, part.leases, room)
                room = max(0, room - sum(len(delivery.body) for delivery in deliveries))
                found += [(queue, delivery) for delivery in deliveries]
        return found

    def _deliveries(
        self, queue: Queue, host: ShardHost, leases: list[Lease], room: int = ANSWER_BYTES_MAX
    ) -> list[Delivery]:
        """The leased messages with their receipts; those that do not fit into one answer are given back."""
        if len(leases) > FEW_LEASES or room < ANSWER_BYTES_MAX:
            leases = _fitting(queue, host, leases, room)
        shard, log = host.shard, host.log
        number = shard.number
        receipts = self._receipts.seal_many(queue.account, queue.number, number, leases)
        deliveries: list[Delivery] = []
        for lease, receipt in zip(leases, receipts, strict=True):
            try:
                payload = read_message(shard, log, lease)
            except MessageGone:
                continue  # purged before the reply could leave
            except LogError as problem:
                self._unreadable(queue, lease, problem)
                continue
            lineage = Lineage.decode(payload.lineage) if payload.lineage else None
            own_id = lineage.message_id if lineage is not None else ""
            deliveries.append(
                Delivery(
                    own_id or message_id(number, lease.sequence),
                    receipt,
                    payload.body,
                    payload.body_md5,
                    payload.attributes,
                    payload.sender,
                    payload.group,
                    payload.dedup_id,
                    payload.trace,
                    lease.sequence,
                    lease.sent_ms,
                    lease.first_received_ms,
                    lease.receive_count,
                    lease.deadline_ms,
                    lease.priority,
                    lineage,
                    _failure(shard, lease) if shard.failures else None,
                    payload.content,
                )
            )
        return deliveries

    def _unreadable(self, queue: Queue, lease: Lease, problem: LogError) -> None:
        """A body that cannot be read keeps its message where it is, and the others go out."""
        text = f"Message {message_id(queue.shard, lease.sequence)} of {queue.name} cannot be read: {problem.message}"
        self._alarms.put(f"unreadable:{queue.number}", text, severity="critical", queue=queue.name)

    # --- the same without a task: nothing is awaited, and `host.commit.call` calls back once it is committed

    def send_plain(
        self,
        queue: Queue,
        bodies: Sequence[bytes],
        digests: Sequence[bytes],
        sender: str,
        invocation: str,
        content: int = 0,
        producer: str = "",
        producer_sequence: int = 0,
    ) -> tuple[ShardHost, int] | None:
        """Send messages that are only bodies: the first sequence, the others follow. None: call `send` instead."""
        host = self._shards[queue.shard].host()
        key = key_hash(queue.number, invocation) if invocation else 0
        first = host.send_plain(queue.number, bodies, digests, sender, key, content, producer, producer_sequence)
        return (host, first) if first else None

    def host(self, queue: Queue) -> ShardHost:
        """Where a queue's requests can be gathered and run together. Raises Unavailable."""
        return self._shards[queue.shard].host()

    def claims(self, queue: Queue, receipts: Sequence[str]) -> list[tuple[int, int, int]] | None:
        """What receipts claim, if all of them are in order."""
        return self._receipts.open_many(queue.account, queue.number, queue.shard, receipts)

    def receive_front(
        self, queue: Queue, max_messages: int, visibility_ms: int | None, holder: str
    ) -> tuple[ShardHost, FirstLeases] | None:
        """Lease what is at the front, if there is no choice or wait; None: call `receive` instead.

        `host.commit.call` says when `deliver_plain` may be called.
        """
        host = self._shards[queue.shard].host()
        leases = host.receive_front(queue.number, max_messages, visibility_ms, holder[:HOLDER_LENGTH_MAX])
        return None if leases is None else (host, leases)

    def deliver_plain(self, queue: Queue, host: ShardHost, leases: FirstLeases) -> list[Plain] | None:
        """The leased messages, if all of them are nothing but a text; None: call `deliver_front` instead."""
        found = self.deliver_run(queue, host, leases)
        if found is None:
            return None
        receipts, contents, digests, bodies = found
        if any(content & ~AS_IS for content in contents):
            return None
        return [*zip(message_ids(host.shard.number, leases.sequences), receipts, digests, bodies, strict=True)]

    def deliver_run(
        self, queue: Queue, host: ShardHost, leases: FirstLeases
    ) -> tuple[list[str], list[int], list[bytes], list[bytes]] | None:
        """Receipts, contents, MD5s and bodies of the leased messages, if all of them are nothing else.

        None: call `deliver_front` instead. Ask `is_cold` before. A content may have `payload.NO_DIGEST` and
        `payload.AS_IS` in it.
        """
        overlays = host.shard.overlays
        if host.is_late(leases) or (overlays and not overlays.keys().isdisjoint(leases.slots)):
            return None
        extents = leases.extents
        if len(extents) > FEW_LEASES and sum([extent >> 32 for extent in extents]) > ANSWER_BYTES_MAX:
            return None
        try:
            found = read_run(host.log, leases.positions, leases.extents)
        except LogError:
            return None
        if found is None:
            return None
        seal = self._receipts.seal_first
        return seal(queue.account, queue.number, queue.shard, leases.slots, leases.sequences), *found

    def is_cold(self, host: ShardHost, leases: FirstLeases) -> bool:
        """Whether reading these messages would have to wait for the disk: then `warm` first."""
        return bool(_cold(host, leases.positions))

    async def warm(self, host: ShardHost, leases: FirstLeases) -> None:
        await self._warm(host, leases.positions)

    async def deliver_front(self, queue: Queue, host: ShardHost, front: FirstLeases) -> list[Delivery]:
        """The leased messages, whatever they are."""
        leases = host.shard.expand(front)
        if host.is_late(front):
            leases = await host.extend_late(queue.number, leases, front.leased_ms)
        await self._warm(host, front.positions)
        return self._deliveries(queue, host, leases)

    def give_back(self, queue: Queue, host: ShardHost, front: FirstLeases) -> None:
        """The client went before its answer left: nobody holds these messages, so the next one may."""
        host.give_back(queue.number, host.shard.expand(front))

    def delete_plain(
        self, queue: Queue, receipts: Sequence[str], strict: bool = False
    ) -> tuple[ShardHost, list[BatonError | None]] | None:
        """Delete by receipts that are all in order; None: call `delete` instead."""
        claims = self._receipts.open_many(queue.account, queue.number, queue.shard, receipts)
        if claims is None:
            return None
        host = self._shards[queue.shard].host()
        return host, host.delete(queue.number, cast("list[Claim]", claims), strict)

    # --- with a receipt

    async def delete(self, queue: Queue, receipts: Sequence[str], strict: bool = False) -> list[BatonError | None]:
        """`strict`: only the current lease's receipt counts, whatever the queue says."""
        return await self._with_claims(
            queue, receipts, lambda host, places, claims: host.delete(queue.number, claims, strict)
        )

    async def change_visibility(
        self, queue: Queue, changes: Sequence[tuple[str, int]], strict: bool = False
    ) -> list[BatonError | None]:
        """Each lease now ends so many milliseconds from now; 0 gives the message back."""
        results = await self.change_visibility_until(queue, changes, strict)
        return [result if isinstance(result, BatonError) else None for result in results]

    async def change_visibility_until(
        self, queue: Queue, changes: Sequence[tuple[str, int]], strict: bool = False
    ) -> list[int | BatonError]:
        """The same, and when each lease ends now, in milliseconds since 1970; 0: it is over."""
        deadlines: dict[int, int] = {}

        def change(host: ShardHost, places: list[int], claims: list[Claim]) -> list[BatonError | None]:
            wanted = [(claim, changes[at][1]) for at, claim in zip(places, claims, strict=True)]
            answers = host.change_visibility(queue.number, wanted, strict)
            deadlines.update({at: host.deadline(claim) for at, claim in zip(places, claims, strict=True)})
            return answers

        problems = await self._with_claims(queue, [receipt for receipt, _ in changes], change)
        return [deadlines.get(at, 0) if problem is None else problem for at, problem in enumerate(problems)]

    async def _with_claims(
        self,
        queue: Queue,
        receipts: Sequence[str],
        act: Callable[[ShardHost, list[int], list[Claim]], list[BatonError | None]],
    ) -> list[BatonError | None]:
        """Open the receipts, act on those that are ours, and give each its result in its place."""
        results: list[BatonError | None] = [None] * len(receipts)
        places: list[int] = []
        claims: list[Claim] = []
        for at, receipt in enumerate(receipts):
            try:
                claims.append(self.open_receipt(queue, receipt))
                places.append(at)
            except ReceiptInvalid as problem:
                results[at] = problem
        if not claims:
            return results
        host = self._shards[queue.shard].host()
        answers = act(host, places, claims)
        point = host.point()
        if point is not None:
            await point
        for at, answer in zip(places, answers, strict=True):
            results[at] = answer
        return results

    def open_receipt(self, queue: Queue, receipt: str) -> Claim:
        shard, claim = self._receipts.open_at(queue.account, queue.number, receipt)
        if shard != queue.shard:
            raise invalid(receipt)
        return claim

    async def nack(
        self,
        queue: Queue,
        receipt: str,
        delay_ms: int | None = None,
        reason: str = "",
        error_class: str = "",
        dead_letter: bool = False,
    ) -> None:
        """Give a message back, saying why; `dead_letter` sends it to the dead letters at once.

        Without a delay the queue's retry policy says when it is tried again; a queue without one: at once.
        """
        (problem,) = await self.nack_many(queue, [(receipt, delay_ms, reason, error_class, dead_letter, False)])
        if problem is not None:
            raise problem

    async def nack_many(self, queue: Queue, nacks: Sequence[NackRequest]) -> list[BatonError | None]:
        """Give messages back; one result each, in order."""
        return await self._with_claims(
            queue,
            [nack[0] for nack in nacks],
            lambda host, places, claims: host.nack(
                queue.number, [Nack(claim, *nacks[at][1:]) for at, claim in zip(places, claims, strict=True)]
            ),
        )

    async def counters(self, queue: Queue) -> Counters:
        host = self._shards[queue.shard].host()
        counters = host.counters(queue.number)
        await committed(host)
        return counters

    async def peek(self, queue: Queue, after_sequence: int, limit: int) -> list[Peeked]:
        """Messages in order of arrival, whatever their state, without leasing them."""
        return await look(self._shards[queue.shard].host(), queue.number, after_sequence, limit)

    # --- the clock ------------------------------------------------------------------------------

    async def advance_clock(self, forward_ms: int) -> int:
        """Move the clock forward and do what is due by then; returns the time it shows. Development profile only."""
        if not self.dev:
            raise InvalidInput("The clock can only be moved in the development profile.")
        if not 0 <= forward_ms <= 10 * 366 * 86_400_000:
            raise InvalidInput("The clock can be moved forward by up to ten years at a time.")
        self._clock.advance(forward_ms)
        for keeper in self._shards:
            if keeper.serving:
                await self._catch_up(keeper.host())
        return self._clock.now_ms()

    async def _catch_up(self, host: ShardHost) -> None:
        for _ in range(CLOCK_STEPS_MAX):
            host.tick()
            await committed(host)
            due_ms = host.shard.next_due()
            if due_ms is None or due_ms > self._clock.now_ms():
                return


def _fitting(queue: Queue, host: ShardHost, leases: list[Lease], room: int) -> list[Lease]:
    """As many of the leases as fit into `room` bytes; the others were never handed out, and are the next one's."""
    first = room == ANSWER_BYTES_MAX  # a single message goes out, whatever its size
    for at, lease in enumerate(leases):
        room -= lease.length
        if room < 0 and (at or not first):
            host.give_back(queue.number, leases[at:])
            return leases[:at]
    return leases


def _cold(host: ShardHost, positions: Sequence[int]) -> list[int]:
    """The frames among these places that are not in memory."""
    is_cold = host.log.is_cold
    return [number for number in {position >> 16 for position in positions} if is_cold(number)]


def _failure(shard: Shard, lease: Lease) -> Failure | None:
    return shard.failures.get(lease.slot) if shard.columns.sequence[lease.slot] == lease.sequence else None


__all__ = ["Broker", "Delivery", "Peeked", "Queue", "Sent"]
