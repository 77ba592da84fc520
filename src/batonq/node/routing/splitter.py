"""Queues on several shards: decides which shards a request goes to, and merges their answers.

A message with a key waits for the shard of its key. A message without a key goes to a shard that has an owner. Receives
go where hints say that the first messages in order are (core/spread.py). A hint promises nothing, and leases nothing.
This node reads the hints of its own shards directly. It asks the other shards once per HINT_S while there is anything
to receive, and all of them at once when no messages are known. An empty receive costs one question per shard on another
node, and no record anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from batonq.core import spread as routing
from batonq.core.commands import Counters, Once, Receive, Send
from batonq.core.ids import AWAY, key_hash
from batonq.core.spread import Hint
from batonq.errors import BatonError, IdempotencyConflict, NotOwner, OverLimit, QueueDoesNotExist
from batonq.node.catalog.queue_control import Queue
from batonq.node.messages.peek import Peeked, PeekFilter, PeekPage
from batonq.node.messages.received import ANSWER_BYTES_MAX, Delivery, Received
from batonq.node.routing.ports import ShardPort
from batonq.node.routing.shard_attempts import Offer, Offering
from batonq.node.routing.spread_long_poll import Room
from batonq.node.routing.spread_sdk_retry import NamedSends, Results, results_of
from batonq.node.routing.submission import submitted
from batonq.node.shard_host.host import ShardHost
from batonq.node.tasks import Tasks

HINT_S = 0.2  # how long a hint from another node is valid, while messages are known somewhere
RECENT_WAIT_S = 0.05  # how long to wait for an answer while some hints are known
FRESH_WAIT_S = 1.0  # and while none are
HINTS_MAX = 10_000  # hints of other nodes that are remembered
ANY = -1  # stands for the shard whose turn it is

T = TypeVar("T")
GiveBack = Callable[[Queue, Sequence[Delivery]], Coroutine[Any, Any, None]]


class Spreading:
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        port: Callable[[int], ShardPort],
        port_at_once: Callable[[int], ShardPort | None],
        here: Callable[[int], ShardHost | None],
        queue: Callable[[int], Queue | None],
        version: Callable[[], int],
        seal: Callable[[Queue, Received], None],
        give_back: GiveBack,
        waiters_max: int,
        first_turn: int,
        refresh: Callable[[], Awaitable[bool]],
    ) -> None:
        """`port_at_once` gives the port of a shard that has an owner, else it returns None or raises NotOwner.
        `seal` adds receipts. `here` gives the host of a shard that this node serves. `queue` and `version` read the
        catalog as this node knows it.
        """
        self._loop = loop
        self._port = port
        self._port_at_once = port_at_once
        self._here = here
        self._queue = queue
        self._version = version
        self._seal = seal
        self._give_back = give_back
        self._waiters_max = waiters_max
        self._refresh = refresh
        self._first_turn = first_turn  # nodes should not all begin with the same shard
        self._turns: dict[int, int] = {}  # queue → whose turn it is to get messages without a key
        # Hints of other nodes: (queue, shard) → (when, hint).
        self._known: dict[tuple[int, int], tuple[float, Hint]] = {}
        self._asking: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._rooms: dict[int, Room] = {}
        self._ending = False
        self._named = NamedSends(self)

    def stop_waiting(self) -> None:
        """Answer every long poll now, and accept no new ones."""
        self._ending = True
        for room in self._rooms.values():
            room.end()

    async def ask(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]]) -> T:
        """Ask one shard.

        If the shard does not know the queue, it is brought up to this node's version of the catalog and asked again.
        Then the shard's answer counts, not what this node knows.
        """
        return await self._ask_port(queue, self._port(shard), ask)

    async def ask_at_once(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]]) -> T:
        """Like `ask`, for a shard that has an owner now. Otherwise raises NotOwner, without having asked anything."""
        port = self._port_at_once(shard)
        if port is None:
            raise NotOwner(f"No node owns shard {shard} right now.")
        return await self._ask_port(queue, port, ask)

    async def _ask_port(self, queue: Queue, port: ShardPort, ask: Callable[[ShardPort], Awaitable[T]]) -> T:
        try:
            return await ask(port)
        except QueueDoesNotExist:
            if self._queue(queue.number) is None:
                raise
            await port.reach(queue.number, self._version())
            return await ask(port)

    async def of_all(self, queue: Queue, ask: Callable[[ShardPort], Awaitable[T]]) -> list[T]:
        """The answers of all shards, in their order. Raises when a shard has no answer."""
        return await asyncio.gather(*(self.ask(queue, shard, ask) for shard in queue.shards))

    # --- sending --------------------------------------------------------------------------------

    async def send(self, queue: Queue, command: Send, first_try: bool) -> Results:
        """Send messages. Returns one result per message, in order.

        `first_try`: an SDK says that this is its first attempt.
        """
        name = command.request
        if not command.is_keyed(queue.fifo):
            if name:
                return await self._named.send(queue, command, name, first_try)
            results = await self._send_anywhere(queue, command)
            return await self.send_moved(queue, command, results)
        # A shard knows a request by its name, so each shard must get all of its part at once.
        offering = self._sending(queue, command, name)
        await offering.run()
        if command.bodies and len(offering.problems) == len(command.bodies):
            raise offering.problems[0]
        return offering.results

    async def send_moved(self, queue: Queue, command: Send, results: Results) -> Results:
        """Send on the messages that the asked shard no longer accepts.

        These are messages of a queue that was on one shard, or messages without a key.
        """
        if not any(isinstance(result, NotOwner) for result in results):
            return results
        name = command.request
        if name and not command.is_keyed(queue.fifo):
            return await self._named.send(await self.newest(queue), command, name, first_try=False)
        offering = self._sending(queue, command, name)
        await offering.go_on(results)
        return offering.results

    def _sending(self, queue: Queue, command: Send, name: int) -> Offering:
        async def offer(shard: int, places: list[int], turn: int) -> Results:
            some = command.pick(places)
            # The shard may know another part by that name.
            by = key_hash(name, "moved", turn) | AWAY if name and turn > 1 else name
            if shard == ANY:
                return await self._send_anywhere(queue, some)
            return await self.ask(queue, shard, lambda port: results_of(port, replace(some, request=by)))

        return self._offering(queue, command, offer, name, queue.shard if len(queue.shards) == 1 else ANY)

    def _offering(self, queue: Queue, command: Send, offer: Offer, name: int, unkeyed: int = ANY) -> Offering:
        """Plan the ways of the messages.

        Messages without a key follow the hash of the request's name. Without a name, they begin at `unkeyed`.
        """

        def ways(queue: Queue, unkeyed: int) -> list[list[int]]:
            other = queue.spread.asked(name) if name else [unkeyed]
            keys = [command.key_at(at, queue.fifo) for at in range(len(command.bodies))]
            return [queue.spread.asked(key_hash(key)) if key else other for key in keys]

        async def newest() -> list[list[int]]:
            known = await self.newest(queue)
            return ways(known, known.spread.first)

        return Offering(command, ways(queue, unkeyed), offer, newest)

    async def tell(self, queue: Queue, shard: int, at_once: bool) -> None:
        """Make sure that a shard knows what this node knows of the queue.

        `at_once`: raise NotOwner if the shard has no owner now.
        """
        ask = self.ask_at_once if at_once else self.ask
        await ask(queue, shard, lambda port: port.reach(queue.number, self._version()))

    async def newest(self, queue: Queue) -> Queue:
        """A queue that has grown, as the catalog knows it."""
        known = self._queue(queue.number)
        if known is None or known.spread == queue.spread:
            await self._refresh()
            known = self._queue(queue.number)
        if known is None:
            raise QueueDoesNotExist
        return known

    async def _send_anywhere(self, queue: Queue, command: Send) -> Results:
        """Send to the shard whose turn it is, or to the next one if that shard has no owner or no space."""
        results: Results = []
        command = replace(command, request=0)
        left: Sequence[int] = range(len(command.bodies))  # places that have no successful answer yet
        shards = self._in_turn(queue)
        for shard in shards:
            some = command.pick(left)
            try:
                answers = await self.ask_at_once(queue, shard, lambda port: results_of(port, some))  # noqa: B023
            except NotOwner:
                continue
            except BatonError as problem:
                if not results:
                    raise
                answers = [problem.with_traceback(None)] * len(left)  # the others are stored
            if not results:
                results = answers
            for place, answer in zip(left, answers, strict=True):
                results[place] = answer
            left = [place for place in left if isinstance(results[place], OverLimit)]
            if not left:
                break
        return results or await self.ask(queue, shards[0], lambda port: results_of(port, command))

    def _in_turn(self, queue: Queue) -> tuple[int, ...]:
        shards = queue.spread.taking
        at = self._turns.get(queue.number, self._first_turn) % len(shards)
        if queue.number not in self._turns and len(self._turns) >= HINTS_MAX:
            self._turns.clear()
        self._turns[queue.number] = at + 1
        return shards[at:] + shards[:at]

    async def send_once(self, queue: Queue, command: Send, once: Once) -> tuple[Results, bool]:
        """Send an idempotent request.

        Each shard remembers its part, so a request that failed in part can be retried. The shard of the
        request's name is asked first, in case the name belongs to another request. Messages without a key go to that
        shard.
        """
        hashed = key_hash(once.name)
        home = queue.spread.asked(hashed)[0]
        known = [False] * len(command.bodies)
        asked_home: asyncio.Future[None] = self._loop.create_future()

        async def ask(shard: int, places: Sequence[int], by: Once) -> tuple[Results, bool]:
            some = replace(command.pick(places), once=by)
            sent = await self.ask(queue, shard, lambda port: submitted(port.submit, some))
            return [*sent.results()], sent.replayed

        async def offer(shard: int, places: list[int], turn: int) -> Results:
            if shard != home:
                await asked_home
            by = once._replace(name=f"{once.name}\n{turn}") if turn > 1 else once
            try:
                answers, is_known = await ask(shard, places, by)
                if any(isinstance(answer, IdempotencyConflict) for answer in answers):
                    raise IdempotencyConflict
            except BatonError as problem:
                if not asked_home.done():
                    asked_home.set_exception(problem)
                raise
            if not asked_home.done():
                asked_home.set_result(None)
            for place in places:
                known[place] = is_known
            return answers

        offering = self._offering(queue, command, offer, hashed)
        try:
            if not offering.begins_at(home):
                for answer in (await ask(home, (), once))[0]:
                    if isinstance(answer, BatonError):
                        raise answer
                asked_home.set_result(None)
            await offering.run()
            for problem in offering.problems.values():
                raise problem
        except IdempotencyConflict as conflict:
            return [conflict] * len(command.bodies), False
        finally:
            if not asked_home.cancel():
                asked_home.exception()  # already reported to the callers that waited for it
        return offering.results, all(known)

    # --- receiving ------------------------------------------------------------------------------

    async def receive(self, queue: Queue, command: Receive) -> Sequence[Delivery]:
        wait_ms = command.wait_ms
        command = replace(command, wait_ms=0, attempt=command.attempt if queue.fifo else "")
        attempt = command.attempt
        if attempt:
            again = await self.of_all(queue, lambda port: self._receive(queue, port, replace(command, max_messages=0)))
            found: Sequence[Delivery] = [delivery for deliveries in again for delivery in deliveries]
            if found:
                return found

        async def take(asked: dict[int, int]) -> list[Delivery]:
            if attempt:  # one shard remembers the whole attempt, or nothing
                asked = dict(list(asked.items())[:1])
            return await self._take(queue, asked, command)

        found = await self._take_by_hints(queue, command.max_messages, take)
        if found or wait_ms <= 0 or self._ending:
            return found
        return await self._wait(queue, command.max_messages, wait_ms, take)

    async def _receive(self, queue: Queue, port: ShardPort, command: Receive) -> Sequence[Delivery]:
        """The messages of one shard, with their receipts."""
        received: Received = await submitted(port.submit, command)
        try:
            self._seal(queue, received)
            return received.deliveries()
        except Exception:
            received.give_back()
            raise

    async def _take_by_hints(
        self, queue: Queue, max_messages: int, take: Callable[[dict[int, int]], Awaitable[list[Delivery]]]
    ) -> list[Delivery]:
        """Take messages by the known hints, then by fresh hints: the result is empty only if there were no messages."""
        here = [shard for shard in queue.shards if self._here(shard) is not None]
        for hints in (await self._recent_hints(queue), None):
            if hints is None:
                hints = await self._fresh_hints(queue)
            asked = routing.shares(max_messages, list(hints.items()), queue.policy.ageing_ms, here)
            found = await take(asked) if asked else []
            if found:
                return found
        return []

    async def _recent_hints(self, queue: Queue) -> dict[int, Hint]:
        """The hints of this node's shards, and recent hints from other nodes.

        Shards without a recent hint are asked. They are waited for briefly if any hint is known; if none is,
        `_fresh_hints` asks all shards.
        """
        hints: dict[int, Hint] = {}
        old: list[int] = []
        for shard in queue.shards:
            host = self._here(shard)
            if host is not None:
                with suppress(BatonError):
                    hints[shard] = host.hint(queue.number)
            else:
                told_s, hints[shard] = self._known.get((queue.number, shard), (-HINT_S, Hint(0)))
                if self._loop.time() - told_s >= HINT_S:
                    old.append(shard)
        if old and any(hint.visible for hint in hints.values()):
            asking = [self._asking.get((queue.number, shard)) or self._ask_soon(queue, shard) for shard in old]
            await asyncio.wait(asking, timeout=RECENT_WAIT_S)
            for shard in old:
                hints[shard] = self._known.get((queue.number, shard), (0.0, Hint(0)))[1]
        return hints

    def _ask_soon(self, queue: Queue, shard: int) -> asyncio.Task[None]:
        key = (queue.number, shard)

        async def ask() -> None:
            try:
                await self._hint(queue, shard)
            except BatonError:
                self._note(queue.number, shard, Hint(0))
            finally:
                self._asking.pop(key, None)

        task = self._asking[key] = self._tasks.spawn(ask())
        return task

    async def _fresh_hints(self, queue: Queue) -> dict[int, Hint]:
        """The hints of all shards, asked for now.

        A shard that cannot be asked, or does not answer, is left out. Raises when all shards are left out.
        """
        asking = {shard: self._loop.create_task(self._hint(queue, shard)) for shard in queue.shards}
        try:
            await asyncio.wait(asking.values(), timeout=FRESH_WAIT_S)
        finally:
            for task in asking.values():
                task.cancel()
        hints: dict[int, Hint] = {}
        for shard, task in asking.items():
            problem = task.exception() if task.done() and not task.cancelled() else None
            if problem is not None and (isinstance(problem, QueueDoesNotExist) or not isinstance(problem, BatonError)):
                raise problem
            if task.done() and not task.cancelled() and problem is None:
                hints[shard] = task.result()
        if not hints:  # no shard answered: it is worth waiting for an owner
            first = queue.shards[0]
            hints[first] = await self.ask(queue, first, lambda port: port.hint(queue.number, 0, 0))
        return hints

    async def _hint(self, queue: Queue, shard: int, wait_ms: int = 0, waiting: int = 0) -> Hint:
        hint = await self.ask_at_once(queue, shard, lambda port: port.hint(queue.number, wait_ms, waiting))
        self._note(queue.number, shard, hint)
        return hint

    def _note(self, queue: int, shard: int, hint: Hint) -> None:
        if self._here(shard) is None:
            if len(self._known) >= HINTS_MAX:
                self._known.clear()
            self._known[queue, shard] = (self._loop.time(), hint)

    async def _take(self, queue: Queue, asked: dict[int, int], command: Receive) -> list[Delivery]:
        """Lease this many messages from each shard. A shard that fails does not prevent leases from the others."""
        attempt = command.attempt

        async def take_one(shard: int) -> Sequence[Delivery]:
            some = replace(command, max_messages=asked[shard])
            return await self.ask(queue, shard, lambda port: self._receive(queue, port, some))

        tasks = [self._loop.create_task(take_one(shard)) for shard in asked]
        try:
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:  # the client disconnected; calls in progress give their messages back themselves
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is None and not attempt:
                    self._tasks.spawn(self._give_back(queue, task.result()))
            raise
        found: list[Delivery] = []
        problems: list[BaseException] = []
        for shard, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                problems.append(answer)
                self._note(queue.number, shard, Hint(0))
            else:
                found += answer
                if len(answer) < asked[shard]:
                    self._note(queue.number, shard, Hint(0))
        if not found and problems:
            for problem in problems:
                if len(problems) == len(asked) or isinstance(problem, OverLimit | QueueDoesNotExist):
                    raise problem
        if not queue.fifo and len(asked) > 1:
            ageing_ms = queue.policy.ageing_ms
            found.sort(key=lambda one: Hint(1, one.priority, one.sent_ms).rank(ageing_ms))
        return self._fitting(queue, found)

    def _fitting(self, queue: Queue, found: list[Delivery]) -> list[Delivery]:
        """As many messages as fit into one answer. The rest is given back."""
        size = 0
        for count, delivery in enumerate(found):
            size += len(delivery.body)
            if count and size > ANSWER_BYTES_MAX:
                self._tasks.spawn(self._give_back(queue, found[count:]))
                return found[:count]
        return found

    async def _wait(
        self,
        queue: Queue,
        max_messages: int,
        wait_ms: int,
        take: Callable[[dict[int, int]], Awaitable[list[Delivery]]],
    ) -> list[Delivery]:
        room = self._rooms.get(queue.number) or Room(
            lambda: self._queue(queue.number), self._hint, self._loop, self._waiters_max
        )
        if len(room.polls) >= room.waiters_max:
            raise OverLimit("The limit of long polls on this queue is reached. Retry, or use fewer connections.")
        poll = room.enter(max_messages)
        self._rooms[queue.number] = room
        try:
            async with asyncio.timeout(wait_ms / 1000) as limit:
                while (shard := await poll.woken) is not None:
                    deadline_s = limit.when()
                    limit.reschedule(None)  # a call in progress is not given up
                    found = await take({shard: max_messages})
                    if found or deadline_s is None or self._loop.time() >= deadline_s:
                        return found
                    limit.reschedule(deadline_s)
                    room.again(poll)
        except TimeoutError:
            return []
        finally:
            room.leave(poll)
            if not room.polls and self._rooms.get(queue.number) is room:
                del self._rooms[queue.number]
        return []

    async def waiting(self, queue: Queue) -> int:
        """How many long polls wait: those of this node, and those that other nodes reported when they last asked."""
        room = self._rooms.get(queue.number)
        told = await self.of_all(queue, lambda port: port.waiting(queue.number))
        return max(len(room.polls) if room is not None else 0, *told)

    # --- inspection -----------------------------------------------------------------------------

    async def counters(self, queue: Queue) -> Counters:
        return summed(await self.of_all(queue, lambda port: port.counters(queue.number)))

    async def peek(self, queue: Queue, after: int, limit: int, wanted: PeekFilter, examine_max: int) -> PeekPage:
        """Messages of one shard after another. `after` is the number of a message."""
        found: list[Peeked] = []
        examined = 0
        reached = after
        at, after = queue.spread.place_of_number(after)
        shards = queue.shards[at:]
        for shard in shards:
            page = await self._peek_one(queue, shard, after, limit - len(found), wanted, examine_max - examined)
            found += page.messages
            examined += page.examined
            reached = page.after if page.examined else reached
            is_over = not page.complete or len(found) >= limit or examined >= examine_max
            if is_over:
                return PeekPage(found, examined, reached, page.complete and shard == shards[-1])
            after = 0
        return PeekPage(found, examined, reached, True)

    async def _peek_one(
        self, queue: Queue, shard: int, after: int, limit: int, wanted: PeekFilter, examine_max: int
    ) -> PeekPage:
        return await self.ask(queue, shard, lambda port: port.peek(queue.number, after, limit, wanted, examine_max))


def summed(parts: Sequence[Counters]) -> Counters:
    """The counters of a whole queue: exact for the log positions at which each shard's were read."""
    oldest = min((part.oldest_sent_ms for part in parts if part.oldest_sent_ms), default=0)
    visible = min((part.oldest_visible_ms for part in parts if part.oldest_visible_ms), default=0)
    return Counters(*map(sum, zip(*parts, strict=True)))._replace(oldest_sent_ms=oldest, oldest_visible_ms=visible)


async def joined(
    count: int, parts: dict[int, list[int]], act: Callable[[int, list[int]], Awaitable[Sequence[T | BatonError]]]
) -> list[T | BatonError]:
    """The results of all parts, each in its place.

    A failed part has its problem in each of its places. When all parts failed, the problem is raised.
    """
    answers = await asyncio.gather(
        *(act(shard, places) for shard, places in parts.items()), return_exceptions=len(parts) > 1
    )
    results: list[Any] = [None] * count
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    for places, answer in zip(parts.values(), answers, strict=True):
        if isinstance(answer, BaseException):
            if len(failed) == len(parts) or not isinstance(answer, BatonError):
                raise answer
            answer = [answer] * len(places)
        for place, result in zip(places, answer, strict=True):
            results[place] = result
    return results
