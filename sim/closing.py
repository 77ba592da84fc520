"""The quiet phase after all faults and floods: everything must be served again, in a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from batonq.core.shard.commands.remembered_requests import ONCE_WINDOW_MIN_MS, SDK_NAME_WINDOW_MS
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.broker import Broker
from batonq.node.cluster import node_server as answering
from batonq.node.settings import Settings
from sim.bodies import make_body
from sim.clients import Client, Surroundings, Work, up_to_date
from sim.history import OK, PAUSE, Call, Delivered, Outgoing, Receiving, Sending, Watching
from sim.limits import TinyLimits
from sim.machine import Gone
from sim.pausing import FREE
from sim.scenario import ACCOUNT, NARROW, QueuePlan

ANSWERED_S = 60.0  # requests in progress when the faults end are answered by then
AGAIN_S = 0.5
PAUSE_MAX_S = 10.0
SOON_S = 10.0  # a request is accepted by then: a shard may be about to be opened
PROMPT_S = 5.0  # a long poll has received a deliverable message by then
LONG_POLL_MS = 20_000
QUICK_ROUNDS = 30  # of draining, before it waits for messages that return late
LATE_S = 30.0
SLACK_S = 5.0
USED_UP = 8  # messages in front of one that can be delivered

Poll = Callable[[], Coroutine[Any, Any, Receiving | Watching]]


class Run(Surroundings, Protocol):
    """What the closing phase sees of the simulation."""

    @property
    def broken(self) -> str: ...


@dataclass(slots=True, frozen=True)
class Windows:
    """How long each kind of entry is remembered, in seconds."""

    once_s: float
    request_s: float
    producer_s: float

    @classmethod
    def of(cls, settings: Settings) -> Windows:
        once_s = max(settings.idempotency_hours * 3600, ONCE_WINDOW_MIN_MS / 1000)
        return cls(once_s, SDK_NAME_WINDOW_MS / 1000, settings.producer_idle_hours * 3600)


class Closing:
    def __init__(
        self, around: Run, random: Random, plans: list[QueuePlan], settings: Settings, tiny: TinyLimits
    ) -> None:
        self._around = around
        self._random = random
        self._plans = {plan.name: plan for plan in plans}
        self._windows = Windows.of(settings)
        # A node with too many remembered calls accepts no further call for this long.
        self._busy_s = answering.REMEMBERED_S + SLACK_S if "NAMES_MAX" in tiny.values else 0.0
        self._client = Client("closing", around, random)
        self._requests = 0
        self._has_found = False

    async def all_answered(self) -> None:
        """Check that the requests in progress when the faults ended are answered."""
        since_s = self._around.loop.time()
        late: list[str] = []
        while self._around.in_flight and not self._around.broken:
            now_s = self._around.loop.time()
            late = [
                f"call {number} ({call.what})"
                for number, call in self._around.in_flight.items()
                if now_s > max(call.started_s, since_s) + call.wait_s + ANSWERED_S
            ]
            if late or now_s > since_s + 2 * ANSWERED_S:
                break
            await asyncio.sleep(AGAIN_S)
        for text in late[:5]:
            self._around.violated("liveness", f"{text} has no answer {ANSWERED_S:.0f} s after all was mended")

    # --- emptying the queues -----------------------------------------------------------------------

    async def resume(self) -> None:
        """Let every queue deliver and accept everything again."""
        for queue in list(self._around.queues):
            await self._steer(queue, PAUSE, lambda broker, entry: broker.set_attributes(entry, FREE))

    async def drain(self, rounds_max: int) -> None:
        """Receive and delete until only dead letters are left."""
        if NARROW in self._around.queues:
            room = {"Baton.MaximumMessages": "0"}
            await self._steer(NARROW, "set", lambda broker, entry: broker.set_attributes(entry, room))
        left = list(self._around.queues)
        for at in range(rounds_max):
            for queue in left:
                received = await self._client.receive(queue, 10, 30_000, 0)
                while received.deliveries:
                    await self._client.delete(*received.deliveries)
                    received = await self._client.receive(queue, 10, 30_000, 0)
            left = [queue for queue in self._around.queues if not await self._is_empty(queue)]
            if not left or self._around.broken:
                return
            await asyncio.sleep(1.0 if at < QUICK_ROUNDS else LATE_S)
        text = f"after {rounds_max} rounds there are still messages in {', '.join(left)}"
        self._around.violated("liveness", text)

    async def _is_empty(self, queue: str) -> bool:
        around = self._around
        machine = around.machine_for(self._random)
        node = machine.node
        if node is None:
            return False
        called = around.known[queue].called

        async def count(broker: Broker) -> bool:
            counters = await broker.counters(broker.queue(ACCOUNT, called))
            return not (counters.visible or counters.in_flight or counters.delayed or counters.owed)

        try:
            return await machine.run(up_to_date(node.broker, count))
        except QueueDoesNotExist:
            return True
        except (Gone, BatonError):
            return False

    # --- every queue serves ------------------------------------------------------------------------

    async def examine(self, after_all_is_forgotten: bool) -> None:
        """Use every queue in every way."""
        for plan in self._plans.values():
            if plan.fleeting:  # it may have been deleted just before the faults ended
                await self._around.make_queue(plan)
        if after_all_is_forgotten:
            await self._forget_all()
        ways = ("plain", "invocation", "once", "producer")
        made = [queue for queue in self._around.queues if self._is_made(queue)]
        for queue in made:  # dead letters stay in some of them, and count towards limits
            await self._purge(queue)
        for at, queue in enumerate(made):
            if self._around.broken or self._has_found:
                return
            for other in made:
                if self._plans[self._around.known[other].called].dead_letters:
                    await self._purge(other)
            await self._serve_a_poll(queue, ways[at % len(ways)], by_pattern=False)
            await self._serve_a_poll(queue, ways[(at + 2) % len(ways)], by_pattern=True)
            await self._serve_behind_used_up(queue)

    def _is_made(self, queue: str) -> bool:
        """Whether the queue is part of the scenario: other queues may be about to be deleted."""
        return self._around.known[queue].called in self._plans

    async def _forget_all(self) -> None:
        windows = self._windows
        await asyncio.sleep(max(windows.once_s, windows.request_s, windows.producer_s, self._keys_s()) + SLACK_S)

    def _keys_s(self) -> float:
        return max((facts.dedup_window_ms for facts in self._around.queues.values()), default=0) / 1000

    async def _serve_a_poll(self, queue: str, way: str, by_pattern: bool) -> None:
        """Check that a waiting long poll promptly gets a message that is sent meanwhile."""
        poll = self._poll_by_pattern(queue) if by_pattern else self._poll_of(queue)
        polling = self._around.loop.create_task(poll())
        await asyncio.sleep(0.2)
        message = await self._send(queue, f"group of {queue}", way)
        if message is not None:
            await self._expect(queue, message, poll, polling)
        else:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def _poll_of(self, queue: str) -> Poll:
        return lambda: self._client.receive(queue, 1, 30_000, LONG_POLL_MS)

    def _poll_by_pattern(self, queue: str) -> Poll:
        """A long poll over all queues. Patterns exclude dead-letter queues, so those are named."""
        patterns = ["*", self._around.known[queue].called]
        return lambda: self._client.receive_any(patterns, 1, 30_000, LONG_POLL_MS)

    async def _expect(
        self, queue: str, message: Outgoing, poll: Poll, polling: asyncio.Task[Receiving | Watching]
    ) -> None:
        """Check that the waiting poll gets the message promptly. A poll that was answered too early is repeated."""
        since_s = self._around.loop.time()
        while True:
            call = await polling
            mine = [held for held in call.deliveries if held.number == message.number]
            await self._delete(call.deliveries)
            late_s = self._around.loop.time() - since_s
            if mine or late_s > PROMPT_S + self._busy_s:
                break
            await asyncio.sleep(0.1)
            polling = self._around.loop.create_task(poll())
        if late_s > PROMPT_S + self._busy_s:
            self._around.violated(
                "liveness",
                f"message #{message.number} could be had from {queue}, and {late_s:.1f} s a long poll waited",
            )

    async def _serve_behind_used_up(self, queue: str) -> None:
        """Check that a long poll promptly gets a message that is behind messages without receives left."""
        plan = self._plans[self._around.known[queue].called]
        receives = plan.receives_max
        if not receives:
            return
        for at in range(USED_UP):
            await self._send(queue, f"used up {at}", "unkeyed")
        for _ in range(receives):
            held: list[Delivered] = []
            for _ in range(USED_UP):
                held += (await self._client.receive(queue, 10, 30_000, 0)).deliveries
                if len(held) >= USED_UP:
                    break
            for one in held:
                await self._client.change(one, 0)
        message = await self._send(queue, "good", "unkeyed")
        if message is not None:
            poll = self._poll_of(queue)
            await self._expect(queue, message, poll, self._around.loop.create_task(poll()))
        await self._purge(queue)

    # --- requests that must succeed ----------------------------------------------------------------

    def _message(self, called: str, group: str, way: str) -> Outgoing:
        plan = self._plans[called]
        number = self._around.next_message()
        return Outgoing(
            number=number,
            body=make_body(number, self._random),
            group=group if plan.fifo else "",
            dedup_id=f"key of {number}" if plan.keyed and way != "unkeyed" else "",
            delay_ms=None if plan.fifo else 0,
        )

    async def _send(self, queue: str, group: str, way: str) -> Outgoing | None:
        """Send a message and return it, if it is accepted within the time in which a full table has room again."""
        self._requests += 1
        called = self._around.known[queue].called
        message = self._message(called, group, way)
        windows = self._windows
        patience_s = SOON_S + {"once": windows.once_s + windows.request_s, "producer": windows.producer_s}.get(way, 0.0)
        if message.dedup_id:  # the queues of a shard share its table
            patience_s += self._keys_s()
        name = f"closing-{self._requests}"

        async def send() -> Sending:
            nonlocal message
            if way in ("plain", "unkeyed"):  # nothing identifies a repetition
                message = self._message(called, group, way)
                return await self._client.send(queue, [message], "")
            if way == "producer":
                return await self._client.send(queue, [message], "", producer=name, first=1)
            return await self._client.send(queue, [message], name, once=way == "once")

        accepted = await self._until_ok(f"{queue} does not accept a message ({way})", send, patience_s)
        return message if accepted else None

    async def _steer(self, queue: str, kind: str, work: Work[object]) -> None:
        ask = partial(self._client.steer, queue, kind, work)
        await self._until_ok(f"{kind} of {queue} fails", ask, 2 * SOON_S)

    async def _purge(self, queue: str) -> None:
        await self._steer(queue, "purge", lambda broker, entry: broker.purge_queue(entry))

    async def _delete(self, held: list[Delivered]) -> None:
        if held:
            await self._client.delete(*held)

    async def _until_ok(self, otherwise: str, ask: Callable[[], Awaitable[Call]], patience_s: float) -> bool:
        """Repeat a request until it succeeds, at growing intervals."""
        patience_s += self._busy_s
        give_up_s = self._around.loop.time() + patience_s
        pause_s = AGAIN_S
        while True:
            call = await ask()
            if call.outcome == OK and all(answer.outcome == OK for answer in getattr(call, "answers", ())):
                return True
            if self._around.loop.time() > give_up_s or self._around.broken:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        outcomes = [answer.outcome for answer in getattr(call, "answers", ())] or [call.outcome]
        self._found("liveness", f"{otherwise}, {patience_s:.0f} s long: {', '.join(outcomes)}")
        return False

    def _found(self, checker: str, text: str) -> None:
        self._around.violated(checker, text)
        self._has_found = True
