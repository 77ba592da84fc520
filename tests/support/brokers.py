"""Commands that are awaited, from messages one by one: at a broker, a port or a host under test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from batonq.core.commands import Accepted, ChangeVisibility, Claim, Command, Delete, Failing, Receive
from batonq.core.commands import Nack as NackCommand
from batonq.core.ids import request_hash
from batonq.errors import BatonError
from batonq.node.broker import Broker, Delivery, Peeked, Queue, Received
from batonq.node.routing.submission import Done, Waiting, submitted
from tests.support.ask import Message, Nack, batch


class Port(Protocol):
    def submit(self, command: Command, done: Done) -> Waiting | None: ...


Result = Accepted | BatonError


# --- a broker -----------------------------------------------------------------------------------


async def send(
    broker: Broker, queue: Queue, messages: Sequence[Message], invocation: str = "", first_try: bool = False
) -> list[Result]:
    """One result each. `invocation` names the SDK's request."""
    command = batch(queue.number, messages, request_hash(queue.number, invocation))
    sent = await submitted(lambda command, done: broker.send(queue, command, done, first_try), command)  # type: ignore[arg-type]
    return [*sent.results()]


async def send_once(
    broker: Broker, queue: Queue, messages: Sequence[Message], name: str, content: str
) -> tuple[list[Result], bool]:
    """Messages of a request that its sender named, and whether it was known."""
    command = batch(queue.number, messages, once=broker.once(name, content))
    sent = await submitted(lambda command, done: broker.send(queue, command, done), command)  # type: ignore[arg-type]
    return [*sent.results()], sent.replayed


async def received(
    broker: Broker,
    queue: Queue,
    max_messages: int,
    visibility_ms: int | None,
    wait_ms: int,
    holder: str,
    attempt: str = "",
) -> Received:
    command = Receive(queue.number, max_messages, visibility_ms, holder, attempt, wait_ms, whole=True)
    outcome: Received = await submitted(lambda command, done: broker.receive(queue, command, done), command)  # type: ignore[arg-type]
    return outcome


async def receive(
    broker: Broker,
    queue: Queue,
    max_messages: int,
    visibility_ms: int | None,
    wait_ms: int,
    holder: str,
    attempt: str = "",
) -> list[Delivery]:
    return [*(await received(broker, queue, max_messages, visibility_ms, wait_ms, holder, attempt)).deliveries()]


async def delete(
    broker: Broker, queue: Queue, receipts: Sequence[str], strict: bool = False
) -> list[BatonError | None]:
    results: list[BatonError | None] = await _answer(lambda done: broker.delete(queue, receipts, done, strict))
    return results


async def change_visibility_until(
    broker: Broker, queue: Queue, changes: Sequence[tuple[str, int]], strict: bool = False
) -> list[int | BatonError]:
    receipts, visibilities_ms = [receipt for receipt, _ in changes], [ms for _, ms in changes]
    results: list[int | BatonError] = await _answer(
        lambda done: broker.change_visibility(queue, receipts, visibilities_ms, done, strict)
    )
    return results


async def change_visibility(
    broker: Broker, queue: Queue, changes: Sequence[tuple[str, int]], strict: bool = False
) -> list[BatonError | None]:
    results = await change_visibility_until(broker, queue, changes, strict)
    return [result if isinstance(result, BatonError) else None for result in results]


async def nack_many(broker: Broker, queue: Queue, nacks: Sequence[tuple[Any, ...]]) -> list[BatonError | None]:
    """Each is a receipt and how its message is given back, see Failing."""
    receipts, failings = [nack[0] for nack in nacks], [Failing(*nack[1:]) for nack in nacks]
    results: list[BatonError | None] = await _answer(lambda done: broker.nack(queue, receipts, failings, done))
    return results


async def nack(broker: Broker, queue: Queue, receipt: str, *failing: Any, **named: Any) -> None:
    """See Failing for how the message is given back. Raises what is wrong."""
    (problem,) = await nack_many(broker, queue, [(receipt, *Failing(*failing, **named))])
    if problem is not None:
        raise problem


async def _answer(start: Any) -> Any:
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    start(outcome.set_result)
    result = await outcome
    if isinstance(result, BatonError):
        raise result
    return result


# --- a port or a host, whose queue is a number --------------------------------------------------


async def send_at(port: Port, queue: int, messages: Sequence[Message], request: int = 0) -> list[Result]:
    return [*(await submitted(port.submit, batch(queue, messages, request))).results()]


async def delete_at(
    port: Port, queue: int, claims: Sequence[tuple[int, int, int]], strict: bool = False
) -> list[BatonError | None]:
    results: list[BatonError | None] = await submitted(port.submit, Delete(queue, claims, strict))
    return results


async def change_visibility_at(
    port: Port, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool = False
) -> list[int | BatonError]:
    claims, visibilities_ms = [claim for claim, _ in changes], [ms for _, ms in changes]
    results: list[int | BatonError] = await submitted(
        port.submit, ChangeVisibility(queue, claims, visibilities_ms, strict)
    )
    return results


async def nack_at(port: Port, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]:
    command = NackCommand(queue, [one.claim for one in nacks], [Failing(*one[1:]) for one in nacks])
    results: list[BatonError | None] = await submitted(port.submit, command)
    return results


async def peek(broker: Broker, queue: Queue, after: int, limit: int) -> list[Peeked]:
    """The messages of one page."""
    return (await broker.peek(queue, after, limit)).messages
