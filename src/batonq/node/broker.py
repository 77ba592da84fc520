"""The broker: what the front doors call. Finds the queue's shard, runs the command there, answers once it is committed.

Here is what is about messages; what is about queues and keys is in control.py. Most of it asks the shard through its
port (ports.py), wherever it is served; what must not wait goes to shards of this node only, and answers None else.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from batonq.core.commands import Claim, Counters, FirstLeases, Nack, Send
from batonq.core.ids import key_hash, request_hash
from batonq.core.shard.columns import as_run
from batonq.core.shard.once import Once
from batonq.errors import BatonError, InvalidInput, NotOwner, ReceiptInvalid
from batonq.node.cataloghost import CatalogHost
from batonq.node.clock import Clock
from batonq.node.control import Queue
from batonq.node.deliveries import ANSWER_BYTES_MAX, Deliveries, Delivery, Plain
from batonq.node.events import AlarmBoard
from batonq.node.history import History
from batonq.node.host import ShardHost, committed
from batonq.node.jobs import JobControl
from batonq.node.keeper import ShardKeeper
from batonq.node.localshard import LocalShard
from batonq.node.peeking import Peeked
from batonq.node.ports import Bodies, Route, Sent, ShardPort
from batonq.node.receipts import Receipts
from batonq.node.relayed import RelayedTexts
from batonq.node.relaying import Relaying
from batonq.node.settings import Settings
from batonq.node.spreading import Spreading, joined
from batonq.node.watching import Selection, give_back, receive_all_over, receive_any

HOLDER_LENGTH_MAX = 256
CLOCK_STEPS_MAX = 100_000
SELECTIONS_KEPT = 256

T = TypeVar("T")
# Receipt, delay in ms, reason, error class, whether to the dead letters, whether it was not tried.
NackRequest = tuple[str, int | None, str, str, bool, bool]


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
        route: Route | None = None,
    ) -> None:
        self.dev = settings.dev
        self.account = settings.account
        super().__init__(loop, catalog, shards, self.local_port if route is None else self._routed_port)
        self._route = route  # None: no other node serves any
        self._clock = clock
        self._settings = settings
        self._receipts = receipts
        self._random_bytes = random_bytes
        self._deliveries = Deliveries(loop, receipts, alarms)
        self._ports: dict[int, ShardPort] = {}
        self._selections: dict[tuple[str, ...], Selection] = {}
        self._spreading = Spreading(
            loop=loop,
            port=self._port,
            port_at_once=self._port_at_once,
            here=self._host_here,
            queue=self.queue_by_number,
            version=lambda: self._catalog.current().version,
            give_back=self._give_back,
            waiters_max=settings.waiters_per_queue_max,
            first_turn=key_hash(settings.node),
            refresh=self.refresh,
        )
        self.relaying = Relaying(loop, self.port, lambda shard: route is not None and route.knows(shard))
        self.history = History(shards=shards, rate_bytes=settings.history_rate_bytes, seconds=loop.time)

    def local_port(self, shard: int) -> ShardPort:
        """A shard of this node."""
        port = self._ports.get(shard)
        if port is None:
            port = self._ports[shard] = LocalShard(
                self._shards[shard], self._deliveries, self.reach, self.receive_matching
            )
        return port

    def serves(self, shard: int) -> bool:
        """Whether it is this node that serves a shard now."""
        return shard < len(self._shards) and self._shards[shard].holds

    def _routed_port(self, shard: int) -> ShardPort:
        assert self._route is not None
        return self.local_port(shard) if self.serves(shard) else self._route.port(shard)

    def _port_at_once(self, shard: int) -> ShardPort | None:
        """One that has an owner right now, as far as is known here."""
        if self.serves(shard):
            return self.local_port(shard)
        return None if self._route is None else self._route.port_at_once(shard)

    def _host_here(self, shard: int) -> ShardHost | None:
        return self._shards[shard].host() if self.serves(shard) else None

    def is_here(self, queue: Queue) -> bool:
        """Whether the queue's requests can be run by one shard, without asking another node. In a cluster of one they
        always can, or fail, if the queue has one shard.
        """
        return len(queue.shards) == 1 and (self._route is None or self.serves(queue.shard))

    def stop_waiting(self) -> None:
        """Answer long polls that do not wait at one shard: the node is stopping."""
        self._spreading.stop_waiting()

    async def refresh(self) -> bool:
        """Before a queue is said not to exist: whether what this node knew of the catalog was out of date."""
        return await self._catalog.refresh()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # --- messages -------------------------------------------------------------------------------

    async def send(
        self, queue: Queue, sends: Sequence[Send], invocation: str = "", first_try: bool = False
    ) -> list[Sent | BatonError]:
        """Send messages; one result each. `invocation` names the SDK's request, whose retry makes no second message;
        `first_try` if it is known to be none.
        """
        name = request_hash(queue.number, invocation)
        if len(queue.shards) > 1:
            return await self._spreading.send(queue, sends, name, first_try)
        results = await self._port(queue.shard).send(queue.number, sends, name)
        return await self._spreading.send_moved(queue, sends, results, name)

    async def send_once(
        self, queue: Queue, sends: Sequence[Send], name: str, content: str
    ) -> tuple[list[Sent | BatonError], bool]:
        """Send messages by a request that its sender named, and whether it was known: then nothing was sent.

        `content` is what the request says: the same name with another content is an IdempotencyConflict.
        """
        window_ms = int(self._settings.idempotency_hours * 3_600_000)
        once = Once(name, content, window_ms)
        if len(queue.shards) > 1:
            return await self._spreading.send_once(queue, sends, once)
        outcome = await self._port(queue.shard).send_once(queue.number, sends, once)
        if any(isinstance(result, NotOwner) for result in outcome[0]):  # the queue has grown meanwhile
            await self.refresh()
            return await self._spreading.send_once(self._now(queue), sends, once)
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
        holder = holder[:HOLDER_LENGTH_MAX]
        if len(queue.shards) > 1:
            return await self._spreading.receive(queue, max_messages, visibility_ms, wait_ms, holder, attempt)
        return await self._port(queue.shard).receive(queue, max_messages, visibility_ms, wait_ms, holder, attempt)

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
                raise InvalidInput("Name at least one queue. All queues must belong to the same account.")
            queues = self.select(accounts.pop(), [queue.name for queue in queues])
        holder = holder[:HOLDER_LENGTH_MAX]
        if self._route is not None:
            shards = sorted(queues.shards() if queues.by_names_only else self._catalog.current().shards)
            if not all(map(self.serves, shards)):
                ports = [self._port(shard) for shard in shards]
                found = await receive_all_over(
                    ports, queues, max_messages, visibility_ms, wait_ms, holder, self.give_back_found
                )
                known = ((self.queue_by_number(number), delivery) for number, delivery in found)
                return [(queue, delivery) for queue, delivery in known if queue is not None]
        return await self._receive_here(queues, self._shards, max_messages, visibility_ms, wait_ms, holder)

    async def give_back_found(self, found: Sequence[tuple[int, Delivery]]) -> None:
        """These do not get to whoever asked. Those that cannot be given back come back when their leases run out."""
        for number in {number for number, _ in found}:
            queue = self.queue_by_number(number)
            if queue is not None:
                await self._give_back(queue, [delivery for of, delivery in found if of == number])

    async def receive_matching(
        self,
        shard: int,
        account: str,
        patterns: Sequence[str],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[int, Delivery]]:
        """The same of one shard that is served here."""
        selection = self.select(account, patterns)
        keepers = [self._shards[shard]]
        found = await self._receive_here(selection, keepers, max_messages, visibility_ms, wait_ms, holder)
        return [(queue.number, delivery) for queue, delivery in found]

    async def _receive_here(
        self,
        queues: Selection,
        keepers: Sequence[ShardKeeper],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[Queue, Delivery]]:
        taken = await receive_any(queues, keepers, self._loop, max_messages, visibility_ms, wait_ms, holder)
        found: list[tuple[Queue, Delivery]] = []
        room = ANSWER_BYTES_MAX
        try:
            for part in taken:
                await self._deliveries.warm(part.host, [lease.position for lease in part.leases])
            for part in taken:
                queue = self.queue_by_number(part.queue)
                if queue is not None:
                    deliveries = self._deliveries.of(queue, part.host, part.leases, room)
                    room = max(0, room - sum(len(delivery.body) for delivery in deliveries))
                    found += [(queue, delivery) for delivery in deliveries]
        except BaseException:  # the client has gone, or there is no answer to give: nobody got these
            give_back(taken)
            raise
        return found

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
        if not self.is_here(queue):
            return None
        host = self._shards[queue.shard].host()
        key = request_hash(queue.number, invocation)
        first = host.send_plain(queue.number, bodies, digests, sender, key, content, producer, producer_sequence)
        return (host, first) if first else None

    def is_elsewhere(self, queue: Queue) -> bool:
        """Whether the queue's requests can be run by one shard, which another node serves."""
        return len(queue.shards) == 1 and self._route is not None and not self.serves(queue.shard)

    def is_relayed(self, queue: Queue) -> bool:
        """Whether plain calls of such a queue can be given to `relaying`."""
        return self.is_elsewhere(queue) and self.relaying.takes(queue.shard)

    def seal_relayed(self, queue: Queue, found: RelayedTexts) -> list[str]:
        """The receipts of what was relayed."""
        slots, sequences = as_run(found.slots), array("Q", found.sequences)
        return self._receipts.seal_first(queue.account, queue.number, queue.shard, slots, sequences)

    async def send_elsewhere(self, queue: Queue, plain: Bodies) -> int | list[Sent | BatonError]:
        """`send_plain` of a queue that is elsewhere: the first sequence, or one result each."""
        answer = await self._port(queue.shard).send_plain(queue.number, plain)
        if isinstance(answer, int):
            return answer
        return await self._spreading.send_moved(queue, plain.sends(), answer, 0)

    async def delete_elsewhere(self, queue: Queue, claims: Sequence[tuple[int, int, int]]) -> list[BatonError | None]:
        """`delete_plain` of a queue that is elsewhere, strictly, by what its receipts claim."""
        return await self._port(queue.shard).delete(queue.number, [Claim(*claim) for claim in claims], True)

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
        if not self.is_here(queue):
            return None
        host = self._shards[queue.shard].host()
        leases = host.receive_front(queue.number, max_messages, visibility_ms, holder[:HOLDER_LENGTH_MAX])
        return None if leases is None else (host, leases)

    def deliver_plain(self, queue: Queue, host: ShardHost, leases: FirstLeases) -> list[Plain] | None:
        """The leased messages, if all of them are nothing but a text; None: call `deliver_front` instead."""
        return self._deliveries.plain(queue, host, leases)

    def deliver_run(
        self, queue: Queue, host: ShardHost, leases: FirstLeases
    ) -> tuple[list[str], list[int], list[bytes], list[bytes]] | None:
        """See Deliveries.run; None: call `deliver_front` instead. Ask `is_cold` before."""
        return self._deliveries.run(queue, host, leases)

    def is_cold(self, host: ShardHost, leases: FirstLeases) -> bool:
        """Whether reading these messages would have to wait for the disk: then `warm` first."""
        return self._deliveries.is_cold(host, leases)

    async def warm(self, host: ShardHost, leases: FirstLeases) -> None:
        await self._deliveries.warm(host, leases.positions)

    async def deliver_front(self, queue: Queue, host: ShardHost, front: FirstLeases) -> list[Delivery]:
        """The leased messages, whatever they are."""
        return await self._deliveries.front(queue, host, front)

    def give_back(self, queue: Queue, host: ShardHost, front: FirstLeases) -> None:
        """The client went before its answer left: nobody holds these messages, so the next one may."""
        host.give_back(queue.number, host.shard.expand(front))

    def delete_plain(
        self, queue: Queue, receipts: Sequence[str], strict: bool = False
    ) -> tuple[ShardHost, list[BatonError | None]] | None:
        """Delete by receipts that are all in order; None: call `delete` instead."""
        if not self.is_here(queue):
            return None
        claims = self._receipts.open_many(queue.account, queue.number, queue.shard, receipts)
        if claims is None:
            return None
        host = self._shards[queue.shard].host()
        return host, host.delete(queue.number, cast("list[Claim]", claims), strict)

    # --- with a receipt

    async def delete(self, queue: Queue, receipts: Sequence[str], strict: bool = False) -> list[BatonError | None]:
        """`strict`: only the current lease's receipt counts, whatever the queue says."""
        return await self._with_claims(
            queue, receipts, lambda port, places, claims: port.delete(queue.number, claims, strict)
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
        return await self._with_claims(
            queue,
            [receipt for receipt, _ in changes],
            lambda port, places, claims: port.change_visibility(
                queue.number, [(claim, changes[at][1]) for at, claim in zip(places, claims, strict=True)], strict
            ),
        )

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
            lambda port, places, claims: port.nack(
                queue.number, [Nack(claim, *nacks[at][1:]) for at, claim in zip(places, claims, strict=True)]
            ),
        )

    async def _with_claims(
        self,
        queue: Queue,
        receipts: Sequence[str],
        act: Callable[[ShardPort, list[int], list[Claim]], Awaitable[Sequence[T | BatonError]]],
    ) -> list[T | BatonError]:
        """Open the receipts, act on those that are ours, each at the shard that it names, and give each its result in
        its place.
        """
        invalid: dict[int, BatonError] = {}
        parts: dict[int, list[int]] = {}
        claims: dict[int, Claim] = {}
        for at, receipt in enumerate(receipts):
            try:
                shard, claims[at] = self._receipts.open_at(queue.account, queue.number, receipt)
                parts.setdefault(shard, []).append(at)
            except ReceiptInvalid as problem:
                invalid[at] = problem

        def act_at(shard: int, places: list[int]) -> Awaitable[Sequence[T | BatonError]]:
            return act(self._port(shard), places, [claims[at] for at in places])

        results = await joined(len(receipts), parts, act_at)
        for at, refusal in invalid.items():
            results[at] = refusal
        return results

    async def _give_back(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Nobody was told of these: the next one may have them."""
        claims: dict[int, list[Claim]] = {}
        for delivery in deliveries:
            with suppress(ReceiptInvalid):
                shard, claim = self._receipts.open_at(queue.account, queue.number, delivery.receipt)
                claims.setdefault(shard, []).append(claim)
        for shard, some in claims.items():
            with suppress(BatonError):
                await self._port(shard).give_back(queue.number, some)

    # --- looking --------------------------------------------------------------------------------

    async def counters(self, queue: Queue) -> Counters:
        if len(queue.shards) > 1:
            return await self._spreading.counters(queue)
        return await self._port(queue.shard).counters(queue.number)

    async def waiting(self, queue: Queue) -> int:
        """How many long polls wait on a queue."""
        if len(queue.shards) > 1:
            return await self._spreading.waiting(queue)
        return await self._port(queue.shard).waiting(queue.number)

    async def peek(self, queue: Queue, after: int, limit: int) -> list[Peeked]:
        """Messages in order of arrival, whatever their state, without leasing them; of a queue on several shards, one
        shard after the other. `after` is 0 or the number (`view.sequence`) of a message.
        """
        if len(queue.shards) > 1 or queue.left:
            return await self._spreading.peek(queue, after, limit)
        return await self._port(queue.shard).peek(queue.number, after, limit)

    # --- the clock ------------------------------------------------------------------------------

    async def advance_clock(self, forward_ms: int) -> int:
        """Move the clock forward and do what is due by then; returns the time it shows. Development profile only."""
        if not self.dev:
            raise InvalidInput("The clock can only be moved in the development profile.")
        if not 0 <= forward_ms <= 10 * 366 * 86_400_000:
            raise InvalidInput("The clock can be moved forward by at most ten years at a time.")
        self._clock.advance(forward_ms)
        for keeper in self._shards:
            if keeper.serving:
                await self._catch_up(keeper.host())
        return self._clock.now_ms()

    async def _catch_up(self, host: ShardHost) -> None:
        for _ in range(CLOCK_STEPS_MAX):
            has_room = host.tick()
            await committed(host)
            await asyncio.sleep(0)  # what needs no record is committed at once
            if not has_room:
                return
            due_ms = host.shard.next_due()
            if due_ms is None or due_ms > self._clock.now_ms():
                return


__all__ = ["Broker", "Delivery", "Peeked", "Queue", "Sent"]
