"""Clients of a node, behind a network that loses requests and answers.

Every call is recorded before it is made and when its answer arrives (see history.py), in terms that the checkers
understand. Each client makes its decisions with its own random numbers.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from batonq.api.send_builder import SendBuilder
from batonq.core.commands import Accepted, Failing, Receive, Send
from batonq.core.ids import request_hash
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.broker import Broker, Delivery, Queue, Received, Sent
from batonq.node.routing.submission import Done, submitted
from batonq.priorities import NORMAL_PRIORITY
from sim.bodies import number_of
from sim.breaks import BrokenOff
from sim.checks.evidence import QueueFacts
from sim.history import (
    OK,
    UNKNOWN,
    Answer,
    Call,
    Delivered,
    History,
    Holding,
    Outgoing,
    Receiving,
    Sending,
    Steering,
    Watching,
)
from sim.loop import SimLoop
from sim.machine import Gone, Machine
from sim.scenario import ACCOUNT, QueuePlan

ANSWER_S = 120.0  # a serving node answers within this time, whatever the disk does
UNREACHED = "unreached"  # the request never reached a node, so it had no effect

Value = TypeVar("Value")
Work = Callable[[Broker, Queue], Coroutine[Any, Any, Value]]
Serve = Callable[[Broker], Awaitable[Value]]  # the node's side of a call
Begin = Callable[[Broker, Queue, Done], None]


class InFlight(NamedTuple):
    """A call without an answer so far."""

    what: str
    started_s: float
    wait_s: float  # how long the call asked to wait


class Surroundings(Protocol):
    """What clients see of the simulation."""

    loop: SimLoop
    history: History
    queues: dict[str, QueueFacts]  # that exist now
    known: dict[str, QueueFacts]  # that ever existed
    lost_answers: float
    calls_left: int
    in_flight: dict[int, InFlight]  # calls without an answer so far, by number

    def machine_for(self, random: Random) -> Machine:
        """The machine to send a call to."""

    def violated(self, checker: str, text: str) -> None: ...
    def next_message(self) -> int: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def current_name(self, called: str) -> str: ...
    async def make_queue(self, plan: QueuePlan) -> None: ...


class Client:
    """With `hurried`, requests arrive without delay, so that many arrive in one turn of the event loop."""

    def __init__(self, name: str, around: Surroundings, random: Random, hurried: bool = False) -> None:
        self.name = name
        self.around = around
        self.random = random
        self._hurried = hurried

    async def send(
        self,
        queue: str,
        messages: list[Outgoing],
        invocation: str,
        patience_s: float = 0.0,
        producer: str = "",
        first: int = 0,
        first_try: bool = False,
        once: bool = False,
    ) -> Sending:
        """Send messages in one request, named by its invocation or, with a producer, numbered from `first` on. `once`:
        the invocation is an Idempotency-Key.
        """
        call = Sending(*self._head(queue), invocation=invocation, messages=messages, producer=producer, once=once)
        numbers = " ".join(f"#{message.number}," for message in messages)
        if producer:
            invocation = ""
        say = f"send {queue} {numbers} {'once ' if once else ''}as {invocation or f'{producer} {first}'}"

        def tell(sent: Sent) -> str:
            call.answers = [_answer(result) for result in sent.results()]
            return " ".join(
                f"#{message.number} {'again ' if answer.duplicate else ''}{answer.sequence or answer.outcome}"
                for message, answer in zip(messages, call.answers, strict=True)
            )

        async def work(broker: Broker, entry: Queue) -> Sent:
            request = 0 if once else request_hash(entry.number, invocation)
            command = _send(entry.number, messages, request, producer, first)
            if once:
                command.once = broker.once(invocation, numbers)
            sent: Sent = await submitted(
                lambda one, done: broker.send(entry, one, done, first_try),  # type: ignore[arg-type]
                command,
            )
            return sent

        await self._ask(call, say, self._on_queue(call, work), tell, patience_s)
        return call

    async def receive(
        self,
        queue: str,
        count: int,
        visibility_ms: int | None,
        wait_ms: int,
        attempt: str = "",
        patience_s: float = 0.0,
    ) -> Receiving:
        call = Receiving(*self._head(queue), visibility_ms=visibility_ms, wait_ms=wait_ms, attempt=attempt)
        lasts_ms = self.around.known[queue].visibility_ms if visibility_ms is None else visibility_ms

        def tell(received: Received) -> str:
            call.deliveries = [_delivered(call, delivery, lasts_ms) for delivery in received.deliveries()]
            return _told(call.deliveries)

        whole = self.random.random() < 0.5  # else an answer with only the bodies is enough

        async def work(broker: Broker, entry: Queue) -> Received:
            command = Receive(entry.number, count, visibility_ms, self.name, attempt, wait_ms, whole)
            received: Received = await submitted(partial(broker.receive, entry), command)
            return received

        say = f"receive {queue} {count} for {visibility_ms} ms, waiting {wait_ms} ms {attempt}"
        await self._ask(call, say, self._on_queue(call, work), tell, patience_s, wait_ms / 1000)
        return call

    async def receive_any(
        self, patterns: list[str], count: int, visibility_ms: int | None, wait_ms: int, patience_s: float = 0.0
    ) -> Watching:
        """Receive from many queues in one request. The deliveries are recorded as one receive per queue."""
        names = " ".join(patterns)
        call = Watching(*self._head(names), wait_ms=wait_ms)
        receives: dict[str, Receiving] = {}

        def tell(found: list[tuple[Queue, Delivery]]) -> str:
            for entry, delivery in found:
                name = self._name_of(entry.number)
                receive = receives.get(name)
                if receive is None:
                    receive = receives[name] = self.around.history.add(
                        Receiving(*self._head(name), visibility_ms=visibility_ms, wait_ms=wait_ms)
                    )
                lasts_ms = self.around.known[name].visibility_ms if visibility_ms is None else visibility_ms
                receive.deliveries.append(_delivered(receive, delivery, lasts_ms))
            call.deliveries = [delivered for receive in receives.values() for delivered in receive.deliveries]
            return _told(call.deliveries)

        async def serve(broker: Broker) -> list[tuple[Queue, Delivery]]:
            selection = broker.select(ACCOUNT, patterns)
            return await broker.receive_any(selection, count, visibility_ms, wait_ms, self.name)

        say = f"receive any of {names} {count} for {visibility_ms} ms, waiting {wait_ms} ms"
        await self._ask(call, say, serve, tell, patience_s, wait_ms / 1000)
        for receive in receives.values():
            receive.started_s, receive.ended_s, receive.outcome = call.started_s, call.ended_s, call.outcome
            receive.started_ms, receive.ended_ms = call.started_ms, call.ended_ms
        return call

    def _name_of(self, number: int) -> str:
        return next(facts.name for facts in self.around.known.values() if facts.number == number)

    async def delete(self, *held: Delivered) -> list[Holding]:
        calls = [Holding(*self._head(one.queue, at), kind="delete", receipt=one.receipt) for at, one in enumerate(held)]
        receipts = [one.receipt for one in held]
        await self._hold(calls, held, "delete", lambda broker, entry, done: broker.delete(entry, receipts, done))
        return calls

    async def change(self, held: Delivered, visibility_ms: int) -> Holding:
        call = Holding(*self._head(held.queue), kind="change", receipt=held.receipt, value_ms=visibility_ms)
        await self._hold(
            [call],
            [held],
            f"change to {visibility_ms} ms",
            lambda broker, entry, done: broker.change_visibility(entry, [held.receipt], [visibility_ms], done),
        )
        return call

    async def nack(self, held: Delivered, delay_ms: int, dead_letter: bool) -> Holding:
        call = Holding(
            *self._head(held.queue), kind="nack", receipt=held.receipt, value_ms=delay_ms, dead_letter=dead_letter
        )

        failing = Failing(delay_ms, "no luck", "Simulated", dead_letter)
        to = " to the dead letters" if dead_letter else ""
        await self._hold(
            [call],
            [held],
            f"nack for {delay_ms} ms{to}",
            lambda broker, entry, done: broker.nack(entry, [held.receipt], [failing], done),
        )
        return call

    async def steer(self, queue: str, kind: str, work: Work[object], detail: str = "") -> Steering:
        call = Steering(*self._head(queue), kind=kind, detail=detail)
        serve = self._on_queue(call, work)
        await self._ask(call, f"{kind} {queue} {detail}", serve, lambda result: "" if result is None else str(result))
        return call

    async def _hold(
        self, calls: list[Holding], held: tuple[Delivered, ...] | list[Delivered], what: str, begin: Begin
    ) -> None:
        first, *others = calls
        for call in others:
            self.around.history.add(call)
        words = " ".join(f"#{one.number}, {one.sequence}" for one in held)
        told = False

        def tell(results: Sequence[BatonError | int | None]) -> str:
            nonlocal told
            told = True
            for call, result in zip(calls, results, strict=True):
                call.outcome = result.code if isinstance(result, BatonError) else OK
            return " ".join(f"#{one.number} {call.outcome}" for one, call in zip(held, calls, strict=True))

        def work(broker: Broker, entry: Queue) -> Coroutine[Any, Any, Any]:
            return called_back(lambda done: begin(broker, entry, done))

        await self._ask(first, f"{what} {held[0].queue} {words}", self._on_queue(first, work), tell)
        for call in others:
            call.started_ms, call.ended_s, call.ended_ms = first.started_ms, first.ended_s, first.ended_ms
            if not told:
                call.outcome = first.outcome

    def _head(self, queue: str, offset: int = 0) -> tuple[int, str, str, float, int]:
        return self.around.history.next_number() + offset, self.name, queue, self.around.loop.time(), 0

    def _on_queue(self, call: Call, work: Work[Value]) -> Serve[Value]:
        """The node's side of a call that concerns one queue."""
        facts = self.around.known[call.queue]

        def serve(broker: Broker) -> Awaitable[Value]:
            entry = broker.queue(ACCOUNT, facts.called)
            if entry.number != facts.number and not isinstance(call, Holding):
                raise QueueDoesNotExist  # the name now belongs to another queue, on which old receipts are tried
            return work(broker, entry)

        return serve

    async def _ask(
        self,
        call: Call,
        what: str,
        serve: Serve[Value],
        tell: Callable[[Value], str],
        patience_s: float = 0.0,
        wait_s: float = 0.0,
    ) -> None:
        """Make a call, and record its outcome."""
        around = self.around
        around.history.add(call)
        around.calls_left -= 1
        say = around.history.say
        say(around.loop.time(), self.name, f"call {call.number}: {what}")
        told = ""
        around.in_flight[call.number] = InFlight(what, around.loop.time(), wait_s)
        try:
            result = await self._reach(call, serve, patience_s or ANSWER_S + wait_s)
            told = tell(result)
            if call.outcome == UNKNOWN:
                call.outcome = OK
        except BatonError as problem:
            call.outcome = problem.code
            told = problem.message
        except Gone:
            pass  # unknown, or unreached
        except BrokenOff:
            told = "the node failed"
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as problem:
            around.violated("exception", "".join(traceback.format_exception(problem)))
        except TimeoutError:
            if not patience_s:
                around.violated("liveness", f"call {call.number} ({what}) has no answer after {ANSWER_S} s")
        finally:
            del around.in_flight[call.number]
        call.ended_s = around.loop.time()
        say(call.ended_s, self.name, f"call {call.number}: {what} → {call.outcome} {told}")

    async def _reach(self, call: Call, serve: Serve[Value], patience_s: float) -> Value:
        """Send the call to a node, and wait for the answer."""
        around = self.around
        await self._travel()
        machine = around.machine_for(self.random)
        node = machine.node
        if node is None or self.random.random() < around.lost_answers / 2:
            call.outcome = UNREACHED
            raise Gone
        call.started_ms = machine.times_ms()[0]
        broker = node.broker
        try:
            async with asyncio.timeout(patience_s):
                result = await machine.run(up_to_date(broker, serve))
        finally:
            call.ended_ms = machine.times_ms()[1] if machine.node is not None else node.clock.now_ms()
        if self.random.random() < around.lost_answers:
            raise Gone
        await self._travel()
        return result

    async def _travel(self) -> None:
        if self._hurried:
            return
        await asyncio.sleep(self.random.choice((0.0, 0.0001, 0.001, 0.01)) * self.random.random())


async def up_to_date(broker: Broker, serve: Serve[Value]) -> Value:
    """Run a call as a front door does: before it reports a missing queue, the node refreshes its catalog."""
    try:
        return await serve(broker)
    except QueueDoesNotExist:
        if not await broker.refresh():
            raise
    return await serve(broker)


async def called_back(begin: Callable[[Done], None]) -> Any:
    """Wait for the broker's callback and return its result. Raises BatonError."""
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if not outcome.done():
            outcome.set_result(result)

    begin(done)
    result = await outcome
    if isinstance(result, BatonError):
        raise result
    return result


def _told(deliveries: list[Delivered]) -> str:
    return " ".join(
        f"#{one.number}, {one.sequence} until {one.deadline_ms} for the {one.receive_count}. time" for one in deliveries
    )


def _send(queue: int, messages: list[Outgoing], request: int, producer: str, first: int) -> Send:
    """Build a Send command as a front door does."""
    builder = SendBuilder()
    for at, message in enumerate(messages):
        builder.add(message.body)
        builder.digests.append(hashlib.md5(message.body, usedforsecurity=False).digest())
        if message.group:
            builder.put("groups", message.group)
        if message.dedup_id:
            builder.put("dedup_ids", message.dedup_id)
        if message.priority != NORMAL_PRIORITY:
            builder.put("priorities", message.priority)
        if message.delay_ms is not None:
            builder.put("delays_ms", message.delay_ms)
        if message.ttl_ms is not None:
            builder.put("ttls_ms", message.ttl_ms)
        if message.max_receives:
            builder.put("max_receives", message.max_receives)
        if producer:
            builder.put("numbers", first + at)
    return builder.build(queue, "", request=request, producer=producer)


def _answer(result: Accepted | BatonError) -> Answer:
    if isinstance(result, BatonError):
        return Answer(result.code)
    return Answer(OK, result.message_id, result.sequence, result.duplicate)


def _delivered(call: Receiving, delivery: Delivery, lasts_ms: int) -> Delivered:
    return Delivered(
        call=call.number,
        queue=call.queue,
        number=number_of(delivery.body),
        body=delivery.body,
        message_id=delivery.message_id,
        receipt=delivery.receipt,
        group=delivery.group,
        sequence=delivery.sequence,
        sent_ms=delivery.sent_ms,
        began_ms=delivery.deadline_ms - lasts_ms,
        deadline_ms=delivery.deadline_ms,
        receive_count=delivery.receive_count,
        priority=delivery.priority,
        shard=_shard_of(delivery.receipt),
    )


def _shard_of(receipt: str) -> int:
    """The shard that a receipt names, see node/messages/receipts.py."""
    return int.from_bytes(urlsafe_b64decode(receipt)[3:5], "little")
