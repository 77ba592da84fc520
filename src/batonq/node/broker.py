"""The broker: the interface that the front doors call.

The broker routes a command to the shard that holds the queue, on this node or another one. For a queue on several
shards it splits the command among them. It returns the outcome once that is committed.

queue_control.py has the operations on queues and keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from batonq.core.catalog.entries import AccessKey
from batonq.core.commands import (
    Accepted,
    ChangeVisibility,
    Command,
    Counters,
    Delete,
    ExactCounters,
    Failing,
    Nack,
    Once,
    Receive,
    Send,
    Sent,
)
from batonq.core.ids import key_hash
from batonq.core.payload import STORED, Payload, decode_envelope
from batonq.core.records import PAYLOADS_VERSION
from batonq.errors import BatonError, InvalidInput, NotOwner, QueueDoesNotExist, ReceiptInvalid, Unavailable
from batonq.node.alarms.book import AlarmBook
from batonq.node.backup.backups import Backups
from batonq.node.catalog.access_keys import create_key
from batonq.node.catalog.catalog_host import CatalogHost
from batonq.node.catalog.queue_control import Queue
from batonq.node.catalog.topic_control import Topic, TopicControl
from batonq.node.clock import Clock
from batonq.node.jobs.job_control import JobControl
from batonq.node.jobs.replay_scan import replay_page
from batonq.node.messages.body_reader import BodyReader
from batonq.node.messages.consumers import Consumers
from batonq.node.messages.envelope import render
from batonq.node.messages.large_payloads import LargePayloads
from batonq.node.messages.lease_holders import Holding, merged
from batonq.node.messages.message_control import MessageControl
from batonq.node.messages.peek import ANY_MESSAGE, EXAMINED_MAX, Peeked, PeekFilter, PeekPage, Situation
from batonq.node.messages.queue_figures import ShardFigures
from batonq.node.messages.reader_control import ReaderControl
from batonq.node.messages.receipts import Receipts
from batonq.node.messages.received import ANSWER_BYTES_MAX, Deliveries, Delivery, Received
from batonq.node.messages.retained_reader import RetainedReader
from batonq.node.monitoring.monitor import ServerMonitor
from batonq.node.monitoring.tracing import BrokerTracing
from batonq.node.operations.history import History
from batonq.node.operations.report_files import ReportFiles
from batonq.node.routing.local_shard import LocalShard
from batonq.node.routing.multi_queue_receive import Selection, give_back, receive_all_over, receive_any
from batonq.node.routing.ports import Route, ShardPort
from batonq.node.routing.splitter import Spreading, joined
from batonq.node.routing.submission import Done, Waiting, client_error, submitted, tell
from batonq.node.schedules.schedule_control import ScheduleControl
from batonq.node.settings import Settings
from batonq.node.shard_host.host import ShardHost, committed
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.tasks import Tasks
from batonq.queue_attributes import MESSAGE_BYTES_DEFAULT

HOLDER_LENGTH_MAX = 256
CLOCK_STEPS_MAX = 100_000
SELECTIONS_KEPT = 256

Claims = Sequence[tuple[int, int, int]]

EMPTY_RECEIVES_MAX = 10_000  # queues that are counted before those that are gone are forgotten


class Steps:
    """Work in several steps, with a caller that waits for its outcome."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abandon(self) -> None:
        self._task.cancel()


class Broker(JobControl, TopicControl):
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        catalog: CatalogHost,
        shards: Sequence[ShardKeeper],
        receipts: Receipts,
        alarms: AlarmBook,
        random_bytes: Callable[[int], bytes],
        route: Route | None = None,
        tracing: BrokerTracing | None = None,
        threads: bool = True,
    ) -> None:
        self.dev = settings.dev
        self.purge_wait_ms = settings.purge_wait_ms
        self.account = settings.account
        self.backups: Backups  # set by the node
        self.read_admin_token: Callable[[], str] = str  # set by the node
        super().__init__(loop, catalog, shards, self.local_port if route is None else self._routed_port)
        self._route = route  # None: no other node serves shards
        self.tracing = tracing  # None: no spans are exported
        self._clock = clock
        self.settings = settings
        self._receipts = receipts
        self._random_bytes = random_bytes
        self._deliveries = Deliveries(loop, alarms, self._in_envelope)
        self.bodies = BodyReader(threads=threads)
        self._tasks = Tasks()
        self._ports: dict[int, ShardPort] = {}
        self.empty_receives: dict[int, int] = {}  # receives of each queue that got no message, for metrics
        self._selections: dict[tuple[str, ...], Selection] = {}
        self._spreading = Spreading(
            loop=loop,
            port=self._port,
            port_at_once=self._port_at_once,
            here=self._host_here,
            queue=self.queue_by_number,
            version=lambda: self._catalog.current().version,
            seal=self._seal,
            give_back=self._give_back,
            waiters_max=settings.waiters_per_queue_max,
            first_turn=key_hash(settings.node),
            refresh=self.refresh,
        )
        self.messages = MessageControl(
            self._spreading.ask,
            self.peek,
            self._port,
            self.queue_by_number,
            lambda: self._catalog.current().shards,
            catalog.too_old,
            lambda peeked: self.payloads.show(peeked),
        )
        self.schedules = ScheduleControl(
            self._spreading.ask,
            self._port,
            self.queue_by_number,
            lambda: self._catalog.current().shards,
            catalog.too_old,
        )
        self.readers = ReaderControl(
            self._spreading.ask,
            self._send_all,
            self.queue_by_number,
            clock.now_ms,
            lambda page: self.payloads.complete(page),
        )
        self.consumers = Consumers(clock.now_ms)
        self.payloads = LargePayloads(alarms)  # the node sets the one of its store
        self.monitor: ServerMonitor  # set by the node
        self.history = History(shards=shards, rate_bytes=settings.history_rate_bytes, seconds=loop.time)
        self.reports = ReportFiles(settings.reports)

    @cached_property
    def admin_token(self) -> str:
        """Read when somebody first asks: a simulated node has no file for it."""
        return self.read_admin_token()

    def local_port(self, shard: int) -> ShardPort:
        """Return the port of a shard that this node serves."""
        port = self._ports.get(shard)
        if port is None:
            port = self._ports[shard] = LocalShard(
                self._shards[shard], self._deliveries, self.reach, self.receive_matching, self.bodies
            )
        return port

    def serves(self, shard: int) -> bool:
        """Whether this node serves the shard now."""
        return shard < len(self._shards) and self._shards[shard].holds

    def _routed_port(self, shard: int) -> ShardPort:
        assert self._route is not None
        return self.local_port(shard) if self.serves(shard) else self._route.port(shard)

    def _port_at_once(self, shard: int) -> ShardPort | None:
        """The shard's port if this node knows a current owner, else None."""
        if self.serves(shard):
            return self.local_port(shard)
        return None if self._route is None else self._route.port_at_once(shard)

    def _host_here(self, shard: int) -> ShardHost | None:
        return self._shards[shard].host() if self.serves(shard) else None

    def stop_waiting(self) -> None:
        """Answer the long polls that span several shards: the node is stopping."""
        self._spreading.stop_waiting()

    async def refresh(self) -> bool:
        """Refresh the catalog before a queue is reported as missing. Returns whether this node's copy was outdated."""
        return await self._catalog.refresh()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def create_key(self, *, account: str, name: str, role: str, lasts_ms: int) -> AccessKey:
        """Create an access key. `lasts_ms` 0: it never expires."""
        return await create_key(
            self._catalog,
            self._random_bytes,
            account=account,
            own_account=self.account,
            name=name,
            role=role,
            lasts_ms=lasts_ms,
        )

    # --- messages -------------------------------------------------------------------------------

    def body_bytes_max(self, queue: Queue | Topic) -> int:
        """The maximum size of a message: with a payload store it is larger, unless it is published to a topic, or the
        queue has a lower limit of its own.
        """
        own = queue.message_bytes_max
        if self.payloads.enabled and own == MESSAGE_BYTES_DEFAULT and isinstance(queue, Queue):
            return self.payloads.bytes_max
        return own

    def all_ports(self) -> list[ShardPort]:
        """The ports of all shards, wherever they are served."""
        return [self._port(shard) for shard in sorted(self._catalog.current().shards)]

    def send(
        self,
        queue: Queue | Topic,
        command: Send,
        done: Done,
        first_try: bool = False,
        is_internal: bool = False,
    ) -> None:
        """Send messages to a queue, or publish them to a topic, and call `done` with Sent or a BatonError.

        `first_try`: the SDK that named the request says that this is its first attempt. `is_internal`: the messages are
        from the retained history.
        """
        if self.tracing is not None and command.traces:
            done = self.tracing.sending(queue.name, command, done)
        if (command.attributes or self.payloads.enabled) and self.payloads.concern(command, isinstance(queue, Topic)):
            self._begin(lambda: self._send_large(queue, command, first_try, is_internal), done)
            return
        self._send(queue, command, done, first_try)

    async def _send_large(self, queue: Queue | Topic, command: Send, first_try: bool, is_internal: bool) -> Sent:
        """Put large bodies into the payload store first: a message that is acknowledged has its body there. Mark those
        that the client has put there.
        """
        small, refused = self.payloads.refer(command, is_internal)
        is_large = isinstance(queue, Queue) and self.payloads.exceeds(small)
        if is_large or small is not command:
            older = await self._catalog.too_old(PAYLOADS_VERSION)
            if older:
                raise Unavailable(f"Messages with bodies in the payload store cannot be sent yet. {older}")
        if is_large:
            small = await self.payloads.offload(small)
        sent: Sent = await submitted(lambda one, done: self._send(queue, small, done, first_try), small)
        if refused and sent.each:
            each = [refused.get(at, one) if isinstance(one, InvalidInput) else one for at, one in enumerate(sent.each)]
            return replace(sent, each=each)
        return sent

    def _send(self, queue: Queue | Topic, command: Send, done: Done, first_try: bool) -> None:
        if len(queue.shards) > 1 and isinstance(queue, Queue):
            self._begin(lambda: self._send_spread(queue, command, first_try), done)
            return

        self._submit(queue.shards[0], command, partial(self._sent, queue, command, done))

    async def _send_all(self, queue: Queue, command: Send) -> Sent:
        """Send messages of the retained history, and return the outcome. Raises BatonError."""
        outcome: Sent = await submitted(lambda _, done: self.send(queue, command, done, is_internal=True), command)
        return outcome

    def _sent(self, queue: Queue | Topic, command: Send, done: Done, outcome: Sent | BatonError) -> None:
        if isinstance(outcome, Sent) and outcome.each and any(isinstance(one, NotOwner) for one in outcome.each):
            assert isinstance(queue, Queue), "a topic stays on its shard"
            self._begin(lambda: self._send_moved(queue, command, outcome), done)  # the queue has more shards now
        else:
            done(outcome)

    async def _send_spread(self, queue: Queue, command: Send, first_try: bool) -> Sent:
        if command.once is not None:
            results, replayed = await self._spreading.send_once(queue, command, command.once)
        else:
            results, replayed = await self._spreading.send(queue, command, first_try), False
        return Sent(0, 0, len(results), results, replayed)

    def serve_replays(self, host: ShardHost) -> None:
        """Let the replay jobs of a shard send messages."""
        read = partial(RetainedReader(self._deliveries.render).read, host)
        host.jobs.replay = lambda job, most: replay_page(host, read, self.resend, job, most)

    async def resend(self, number: int, command: Send) -> Sequence[Accepted | BatonError]:
        """Send messages of a replay job to the queue with this number. Returns one result per message."""
        queue = self.queue_by_number(number)
        if queue is None:
            await self.refresh()
            queue = self.queue_by_number(number)
        if queue is None:
            raise QueueDoesNotExist("The target queue was deleted.")
        try:
            sent: Sent = await submitted(partial(self.send, queue, is_internal=True), command)
        except QueueDoesNotExist:
            raise Unavailable(f"The shard does not know queue {queue.name} yet. Retry.") from None
        return [*sent.results()]

    async def _send_moved(self, queue: Queue, command: Send, outcome: Sent) -> Sent:
        if command.once is not None:
            await self.refresh()
            return await self._send_spread(self._now(queue), command, False)
        results = await self._spreading.send_moved(queue, command, [*outcome.each])
        return Sent(0, 0, len(results), results)

    def once(self, name: str, content: str) -> Once:
        """The record of a request that its sender named, kept for the time in this node's settings.

        `content` identifies what the request says. Reusing a name with different content raises IdempotencyConflict.
        """
        return Once(name, content, int(self.settings.idempotency_hours * 3_600_000))

    def receive(self, queue: Queue, command: Receive, done: Done) -> Waiting | None:
        """Lease messages, and call `done` with Received or a BatonError.

        A caller that cannot use the messages gives them back.
        """
        command.holder = command.holder[:HOLDER_LENGTH_MAX]
        if len(queue.shards) > 1:
            return self._begin(lambda: self._receive_spread(queue, command), done)

        return self._submit(queue.shards[0], command, partial(self._received, queue, command, done))

    def _received(self, queue: Queue, command: Receive, done: Done, outcome: Received | BatonError) -> None:
        if isinstance(outcome, Received):
            if not outcome:
                self._count_empty(queue)
            try:
                self._seal(queue, outcome)
            except Exception as problem:
                outcome.give_back()
                done(client_error(problem))
                return
            if outcome.stored:
                self._begin(lambda: self._with_bodies(queue, command, outcome.deliveries()), done)
                return
            if self.tracing is not None:
                self.tracing.received(queue.name, outcome)
        done(outcome)

    async def _with_bodies(self, queue: Queue, command: Receive, rows: Sequence[Delivery]) -> Received:
        """Leased messages with their bodies from the payload store. What cannot be handed over is given back, unless
        the client asks for the same leases again.
        """
        try:
            resolved = await self.payloads.resolve(rows, lambda row: row.group if queue.fifo else None)
        except BaseException:
            if not command.attempt:
                self._give_back_soon(queue, rows)
            raise
        if resolved.returned and not command.attempt:
            await self._give_back(queue, resolved.returned)
        if resolved.problem is not None and not resolved.complete:
            raise resolved.problem
        received = Received(0, rows=resolved.complete)
        if not command.attempt:
            received.give_back = lambda: self._give_back_soon(queue, resolved.complete)
        if self.tracing is not None:
            self.tracing.received(queue.name, received)
        return received

    def _count_empty(self, queue: Queue) -> None:
        counted = self.empty_receives
        if queue.number not in counted and len(counted) >= EMPTY_RECEIVES_MAX:
            queues = self._catalog.current().queues
            for number in [number for number in counted if number not in queues]:
                del counted[number]
        counted[queue.number] = counted.get(queue.number, 0) + 1

    def _seal(self, queue: Queue, received: Received) -> None:
        """Add the receipts."""
        seal = self._receipts.seal_leases
        received.receipts = seal(queue.account, queue.number, received.shard, received.leases)

    async def _receive_spread(self, queue: Queue, command: Receive) -> Received:
        rows = await self._spreading.receive(queue, command)
        if any(row.content & STORED for row in rows):
            return await self._with_bodies(queue, command, rows)
        received = Received(0, rows=rows)
        if not rows:
            self._count_empty(queue)
        if self.tracing is not None:
            self.tracing.received(queue.name, received)
        if not command.attempt:
            received.give_back = lambda: self._give_back_soon(queue, rows)
        return received

    def _in_envelope(self, queue: int, payload: Payload) -> Payload:
        """A copy of a published message as its subscriber gets it."""
        subscription = self.subscription_of(decode_envelope(payload.envelope).topic, queue)
        settings = self.settings
        base_url = settings.public_url or f"http://{settings.host}:{settings.port}"
        return render(payload, subscription.arn if subscription is not None else "", base_url)

    def _submit(self, shard: int, command: Command, done: Done) -> Waiting | None:
        """Submit a command to a shard, on this node or another one."""
        try:
            port = self._port(shard)
        except BatonError as problem:
            done(problem)
            return None
        return port.submit(command, done)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Any]], done: Done) -> Waiting:
        """Run work that takes several steps, and report its outcome to `done`."""

        async def run() -> None:
            try:
                outcome = await work()
            except Exception as problem:
                outcome = client_error(problem)
            tell(done, outcome)

        return Steps(self._tasks.spawn(run()))

    def select(self, account: str, patterns: Sequence[str]) -> Selection:
        """The queues of an account that match names and patterns (`hooks-*`), for `receive_any`."""
        key = (account, *patterns)
        selection = self._selections.pop(key, None) or Selection(self._catalog.current, account, patterns)
        self._selections[key] = selection  # the most recently used comes last
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
        """Lease messages from many queues in one request, shared fairly among the queues.

        Waits up to `wait_ms` for the first message.
        """
        found = await self._receive_any(queues, max_messages, visibility_ms, wait_ms, holder)
        if any(delivery.content & STORED for _, delivery in found):
            found = await self._found_with_bodies(found)
        if self.tracing is not None:
            for queue, delivery in found:
                self.tracing.delivered(queue.name, [delivery])
        return found

    async def _found_with_bodies(self, found: list[tuple[Queue, Delivery]]) -> list[tuple[Queue, Delivery]]:
        of = {delivery.receipt: queue for queue, delivery in found}

        def order_of(row: Delivery) -> tuple[int, str] | None:
            queue = of[row.receipt]
            return (queue.number, row.group) if queue.fifo else None

        try:
            resolved = await self.payloads.resolve([delivery for _, delivery in found], order_of)
        except BaseException:
            for queue, delivery in found:
                self._give_back_soon(queue, [delivery])
            raise
        for delivery in resolved.returned:
            await self._give_back(of[delivery.receipt], [delivery])
        if resolved.problem is not None and not resolved.complete:
            raise resolved.problem
        return [(of[delivery.receipt], delivery) for delivery in resolved.complete]

    async def _receive_any(
        self,
        queues: Selection | Sequence[Queue],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[Queue, Delivery]]:
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
        """Give back messages that will not reach the client.

        Messages that cannot be given back become visible again when their leases expire.
        """
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
        """Like `receive_any`, for one shard that this node serves."""
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
                await self._deliveries.warm(part.host, part.leases)
            for part in taken:
                queue = self.queue_by_number(part.queue)
                if queue is not None:
                    received = self._deliveries.read(queue.number, part.host, part.leases, True, room)
                    self._seal(queue, received)
                    room = max(0, room - sum(map(len, received.bodies)))
                    found += [(queue, delivery) for delivery in received.deliveries()]
        except BaseException:  # no client received these messages: the client disconnected, or no answer can be given
            give_back(taken)
            raise
        return found

    # --- with a receipt

    def delete(self, queue: Queue, receipts: Sequence[str], done: Done, strict: bool = False) -> None:
        """Delete messages. Calls `done` with a problem or None per receipt.

        `strict`: accept only the receipt of the current lease, whatever the queue's policy says.
        """
        self._with_claims(queue, receipts, lambda places, claims: Delete(queue.number, claims, strict), done)

    def change_visibility(
        self, queue: Queue, receipts: Sequence[str], visibilities_ms: Sequence[int], done: Done, strict: bool = False
    ) -> None:
        """Make each lease end this many milliseconds from now; 0 gives the message back.

        Calls `done` with a result per receipt: the end of the lease in milliseconds since 1970 (0: the lease is over),
        or a problem.
        """

        def change(places: Sequence[int], claims: Claims) -> ChangeVisibility:
            return ChangeVisibility(queue.number, claims, [visibilities_ms[at] for at in places], strict)

        self._with_claims(queue, receipts, change, done)

    def nack(self, queue: Queue, receipts: Sequence[str], failings: Sequence[Failing], done: Done) -> None:
        """Give messages back with a reason. Calls `done` with a problem or None per receipt."""
        self._with_claims(
            queue, receipts, lambda places, claims: Nack(queue.number, claims, [failings[at] for at in places]), done
        )

    def _with_claims(
        self,
        queue: Queue,
        receipts: Sequence[str],
        make: Callable[[Sequence[int], Claims], Command],
        done: Done,
    ) -> None:
        """Open the receipts, execute a command at each shard that they name, and call `done` with a result per
        receipt.
        """
        if len(queue.shards) == 1:
            (shard,) = queue.shards
            claims = self._receipts.open_many(queue.account, queue.number, shard, receipts)
            if claims is not None:
                self._submit(shard, make(range(len(receipts)), claims), done)
                return
        results: dict[int, BatonError] = {}
        parts: dict[int, list[int]] = {}
        opened: dict[int, tuple[int, int, int]] = {}
        for at, receipt in enumerate(receipts):
            try:
                shard, opened[at] = self._receipts.open_at(queue.account, queue.number, receipt)
                parts.setdefault(shard, []).append(at)
            except ReceiptInvalid as problem:
                results[at] = problem.with_traceback(None)  # a traceback would keep the request in memory

        async def act(shard: int, places: list[int]) -> Sequence[Any]:
            command = make(places, [opened[at] for at in places])
            outcome: Sequence[Any] = await submitted(self._port(shard).submit, command)
            return outcome

        async def act_at_all() -> list[Any]:
            found = await joined(len(receipts), parts, act)
            for at, refusal in results.items():
                found[at] = refusal
            return found

        self._begin(act_at_all, done)

    def _give_back_soon(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        self._tasks.spawn(self._give_back(queue, deliveries))

    async def _give_back(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Give back messages that no client was told about, so that they can be delivered to another consumer."""
        claims: dict[int, list[tuple[int, int, int]]] = {}
        for delivery in deliveries:
            with suppress(ReceiptInvalid):
                shard, claim = self._receipts.open_at(queue.account, queue.number, delivery.receipt)
                claims.setdefault(shard, []).append(claim)
        for shard, some in claims.items():
            with suppress(BatonError):
                await self._port(shard).give_back(queue.number, some)

    # --- inspection -----------------------------------------------------------------------------

    async def counters(self, queue: Queue | Topic) -> Counters:
        if len(queue.shards) > 1 and isinstance(queue, Queue):
            return await self._spreading.counters(queue)
        return await self._port(queue.shard).counters(queue.number)

    async def exact_counters(self, queue: Queue) -> dict[int, ExactCounters]:
        """The counters of each shard of a queue, with the log position that they describe."""
        number = queue.number
        parts = await self._spreading.of_all(queue, lambda port: port.exact_counters(number))
        return dict(zip(queue.shards, parts, strict=True))

    async def waiting(self, queue: Queue) -> int:
        """How many long polls wait on a queue."""
        if len(queue.shards) > 1:
            return await self._spreading.waiting(queue)
        return await self._port(queue.shard).waiting(queue.number)

    async def peek(
        self,
        queue: Queue | Topic,
        after: int,
        limit: int,
        wanted: PeekFilter = ANY_MESSAGE,
        examine_max: int = EXAMINED_MAX,
    ) -> PeekPage:
        """Messages in order of arrival, in any state, without leasing them. One shard follows another. Of a topic, the
        copies that wait are shown.

        `after` is 0 or the number (`view.sequence`) of a message.
        """
        if isinstance(queue, Queue) and (len(queue.shards) > 1 or queue.left):
            page = await self._spreading.peek(queue, after, limit, wanted, examine_max)
        else:
            page = await self._port(queue.shard).peek(queue.number, after, limit, wanted, examine_max)
        if any(one.content & STORED for one in page.messages):
            page = page._replace(messages=await self.payloads.show(page.messages))
        return page

    async def holders(self, queue: Queue | None = None) -> list[Holding]:
        """Who holds messages of a queue, or of any queue, and how many. Shards that do not answer are left out if no
        queue is named.
        """
        if queue is not None:
            number = queue.number
            parts = [
                await self._spreading.ask(queue, shard, lambda port: port.holders(number)) for shard in queue.shards
            ]
            return merged(parts)
        ports = [self._port(shard) for shard in sorted(self._catalog.current().shards)]
        told = await asyncio.gather(*(port.holders(0) for port in ports), return_exceptions=True)
        for part in told:
            if isinstance(part, BaseException) and not isinstance(part, BatonError):
                raise part
        return merged([part for part in told if not isinstance(part, BaseException)])

    async def figures(self, queue: Queue) -> list[ShardFigures]:
        """What each shard knows about why messages of a queue wait."""
        return await self._spreading.of_all(queue, lambda port: port.figures(queue.number))

    async def situation(self, queue: Queue | Topic) -> Situation:
        """What explains why the messages of a queue are not delivered, see peek.py."""
        return Situation(self.now_ms(), queue.policy, await self.counters(queue), self.queue_name)

    # --- the clock ------------------------------------------------------------------------------

    async def advance_clock(self, forward_ms: int) -> int:
        """Move the clock forward and do what is due by then. Returns the new time. Development profile only."""
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
            await asyncio.sleep(0)  # a command that writes no record is committed at once
            if not has_room:
                return
            due = [time for time in (host.shard.next_due(), host.schedules.due_ms) if time is not None]
            if not due or min(due) > self._clock.now_ms():
                return


__all__ = ["Broker", "Delivery", "Peeked", "Queue", "Received", "Sent"]
