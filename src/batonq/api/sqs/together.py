"""Hot calls of one turn of the event loop, run together.

A server with many busy connections reads many requests in one turn. Each brings a few messages, and what it costs to
begin, to find the place and to write a row is mostly the same for ten messages as for a hundred. So requests that are
alike are only read when they arrive; just before the frame is sealed, all of them are done as one run, and each gets
its part of the outcome for an answer.

What cannot be done so any more by then (the queue has gone, others took all the messages, a receipt is superseded) goes
the general way after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from email.utils import formatdate
from functools import cache
from time import time
from typing import Any, cast

from batonq.api.http import Reply, Response
from batonq.api.http.messages import SERVER_NAME, Heads
from batonq.api.sqs import protocol_json
from batonq.api.sqs.app import REQUEST_ID_HEADER, SqsApp
from batonq.api.sqs.errors import translated
from batonq.api.sqs.operations.receiving import deliver
from batonq.api.sqs.shapes import Message, ReceiveMessageOutput
from batonq.core.commands import Claim, FirstLeases
from batonq.core.ids import message_ids
from batonq.core.payload import AS_IS, TEXTS
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.host import TOGETHER_BYTES_MAX, TOGETHER_MAX, ShardHost
from batonq.node.relayed import are_different

SentAnswer = Callable[[int, int, list[bytes]], bytes]  # shard, first sequence, digests
DeletedAnswer = Callable[[Sequence[BatonError | None]], bytes]  # no problems at all: all is well
Sending = tuple[list[bytes], list[bytes], int, SentAnswer, str, Reply]  # bodies, digests, invocation, …, operation, …
Receiving = tuple[str, int, Reply]  # holder, messages
Deleting = tuple[list[tuple[int, int, int]], DeletedAnswer, str, Reply]


_encode = protocol_json.encode


class Together:
    """Gathers calls by queue and by what else must be alike, and answers them once they are committed."""

    def __init__(self, app: SqsApp, heads: AnswerHeads) -> None:
        self._app = app
        self._service = app.service
        self._broker = app.service.broker
        self._heads = heads
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends: dict[tuple[int, str], list[Sending]] = {}  # by queue and sender
        self._receives: dict[tuple[int, int | None], list[Receiving]] = {}  # by queue and visibility
        self._deletes: dict[int, list[Deleting]] = {}  # by queue

    # --- sending

    def send(self, host: ShardHost, queue: Queue, sender: str, one: Sending) -> None:
        place = queue.number, sender
        waiting = self._sends.get(place)
        if waiting is None:
            waiting = self._sends[place] = []
            host.gather(lambda: self._send_gathered(host, queue, place))
        waiting.append(one)

    def _send_gathered(self, host: ShardHost, queue: Queue, place: tuple[int, str]) -> None:
        some: list[Sending] = []
        size = 0
        for one in self._sends.pop(place):
            size += sum(map(len, one[0]))
            if len(some) == TOGETHER_MAX or (some and size > TOGETHER_BYTES_MAX):
                self._send_some(host, queue, place[1], some)
                some = []
                size = 0
            some.append(one)
        self._send_some(host, queue, place[1], some)

    def _send_some(self, host: ShardHost, queue: Queue, sender: str, waiting: list[Sending]) -> None:
        requests = [one[:3] for one in waiting]
        firsts: list[int] = []
        if len(waiting) == 1 or are_different([key for _, _, key in requests]):
            try:
                firsts = host.send_together(queue.number, requests, sender, AS_IS)
            except Exception:  # the general way says what it is; the host has logged a fault
                firsts = []
        if not firsts:
            for *_, reply in waiting:
                reply(None)
            return
        for (_, digests, _, answer, operation, reply), first in zip(waiting, firsts, strict=True):
            self._app.calls[operation] += 1
            whole = self._heads.answer_by(operation, answer, queue.shard, first, digests)
            self._reply_when_committed(host, reply, whole)

    def _reply_when_committed(self, host: ShardHost, reply: Reply, answer: bytes) -> None:
        def committed(problem: BatonError | None) -> None:
            reply(answer if problem is None else self._heads.error(problem))

        host.commit.call(committed)

    # --- receiving

    def receive(self, host: ShardHost, queue: Queue, visibility_ms: int | None, one: Receiving) -> None:
        place = queue.number, visibility_ms
        waiting = self._receives.get(place)
        if waiting is None:
            waiting = self._receives[place] = []
            host.gather(lambda: self._receive_gathered(host, queue, place))
        waiting.append(one)

    def _receive_gathered(self, host: ShardHost, queue: Queue, place: tuple[int, int | None]) -> None:
        waiting = self._receives.pop(place)
        for at in range(0, len(waiting), TOGETHER_MAX):
            self._receive_some(host, queue, place[1], waiting[at : at + TOGETHER_MAX])

    def _receive_some(self, host: ShardHost, queue: Queue, visibility_ms: int | None, waiting: list[Receiving]) -> None:
        try:
            found = host.receive_together(queue.number, [one[:2] for one in waiting], visibility_ms)
        except Exception:
            found = None
        if found is None:
            for *_, reply in waiting:
                reply(None)
            return
        leases, counts = found
        parts: list[tuple[int, int, Reply]] = []
        end = 0
        for (_, _, reply), count in zip(waiting, counts, strict=True):
            if count:
                parts.append((end, end + count, reply))
                end += count
            else:
                reply(None)  # the others took all there was
        self._app.calls["ReceiveMessage"] += len(parts)
        host.commit.call(lambda problem: self._deliver(queue, host, leases, parts, problem))

    def _deliver(
        self,
        queue: Queue,
        host: ShardHost,
        leases: FirstLeases,
        parts: list[tuple[int, int, Reply]],
        problem: BatonError | None,
        warm: bool = False,
    ) -> None:
        """Answer receives whose leases are committed. Leases for which no answer can be made are given back."""
        if problem is not None:
            for *_, reply in parts:
                reply(self._heads.error(problem))
            return
        answered = 0
        try:
            if not warm and self._broker.is_cold(host, leases):
                self._begin(self._deliver_cold(queue, host, leases, parts))
                return
            found = self._broker.deliver_run(queue, host, leases)
            if found is None or {*found[1]} - TEXTS:
                for start, end, reply in parts:
                    self._begin(self._deliver_any(queue, host, leases.part(start, end), reply))
                    answered += 1
                return
            columns: list[Any] = [message_ids(queue.shard, leases.sequences), *found]
            for start, end, reply in parts:
                some = columns if len(parts) == 1 else [column[start:end] for column in columns]
                answer = self._heads.answer(received(*some))
                answered += 1
                if not reply(answer):
                    self._broker.give_back(queue, host, leases.part(start, end))
        except Exception:
            self._refuse(queue, host, leases, parts[answered:], self._heads.fault("ReceiveMessage"))

    def _refuse(
        self, queue: Queue, host: ShardHost, leases: FirstLeases, parts: list[tuple[int, int, Reply]], answer: bytes
    ) -> None:
        """These receives get an error, and the messages are the next one's."""
        for start, end, reply in parts:
            self._broker.give_back(queue, host, leases.part(start, end))
            reply(answer)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver_cold(
        self, queue: Queue, host: ShardHost, leases: FirstLeases, parts: list[tuple[int, int, Reply]]
    ) -> None:
        try:
            await self._broker.warm(host, leases)
        except BatonError as problem:
            self._refuse(queue, host, leases, parts, self._heads.error(problem))
        except Exception:
            self._refuse(queue, host, leases, parts, self._heads.fault("ReceiveMessage"))
        else:
            self._deliver(queue, host, leases, parts, None, warm=True)

    async def _deliver_any(self, queue: Queue, host: ShardHost, leases: FirstLeases, reply: Reply) -> None:
        """Messages with attributes or a past, or leases that must be extended first."""
        try:
            deliveries = await self._broker.deliver_front(queue, host, leases)
            output: Any = deliver(self._service, queue, deliveries, (), [])
            answer = self._heads.answer(_encode(output))
        except BatonError as problem:
            self._refuse(queue, host, leases, [(0, len(leases.slots), reply)], self._heads.error(problem))
        except Exception:
            self._refuse(queue, host, leases, [(0, len(leases.slots), reply)], self._heads.fault("ReceiveMessage"))
        else:
            if not reply(answer):
                self._broker.give_back(queue, host, leases)

    # --- deleting

    def delete(self, host: ShardHost, queue: Queue, one: Deleting) -> None:
        waiting = self._deletes.get(queue.number)
        if waiting is None:
            waiting = self._deletes[queue.number] = []
            host.gather(lambda: self._delete_gathered(host, queue))
        waiting.append(one)

    def _delete_gathered(self, host: ShardHost, queue: Queue) -> None:
        waiting = self._deletes.pop(queue.number)
        for at in range(0, len(waiting), TOGETHER_MAX):
            self._delete_some(host, queue, waiting[at : at + TOGETHER_MAX])

    def _delete_some(self, host: ShardHost, queue: Queue, waiting: list[Deleting]) -> None:
        try:
            claims = waiting[0][0] if len(waiting) == 1 else [claim for one in waiting for claim in one[0]]
            together = host.delete_together(queue.number, claims)
        except Exception:
            together = False
        for claims, answer, operation, reply in waiting:
            problems: Sequence[BatonError | None] = ()
            if not together:
                try:
                    problems = host.delete(queue.number, cast("list[Claim]", claims))
                except Exception:  # the general way says what it is; the host has logged a fault
                    reply(None)
                    continue
            self._app.calls[operation] += 1
            self._reply_when_committed(host, reply, self._heads.answer_by(operation, answer, problems))


@cache
def _received_form(count: int) -> str:
    """The answer to a receive of bodies that stand for themselves: id, receipt, digest, and a line's end for a body."""
    message = '{"MessageId":"%s","ReceiptHandle":"%s","MD5OfBody":"%s","Body":"\n"}'
    return '{"Messages":[' + ",".join([message] * count) + "]}"


def received(
    names: list[str], receipts: list[str], contents: list[int], digests: list[bytes], bodies: list[bytes]
) -> bytes:
    """The answer to a receive of bodies alone."""
    count = len(names)
    hexes = map(bytes.hex, digests)
    if contents.count(AS_IS) != count:
        return _encode(ReceiveMessageOutput([*map(Message, names, receipts, hexes, map(bytes.decode, bodies))]))
    members: list[str] = []
    for three in zip(names, receipts, hexes, strict=True):
        members += three
    parts = [b""] * (2 * count + 1)
    parts[0::2] = (_received_form(count) % (*members,)).encode().split(b"\n")
    parts[1::2] = bodies
    return b"".join(parts)


class AnswerHeads:
    """The heads of answers, which differ in nothing but a number and a length for a second."""

    def __init__(self, app: SqsApp) -> None:
        self._app = app
        self._second = -1
        self._start = b""

    def answer(self, body: bytes) -> bytes:
        second = int(time())
        if second != self._second:
            self._second = second
            self._start = (
                f"HTTP/1.1 200 OK\r\nServer: {SERVER_NAME}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
                f"Content-Type: {protocol_json.CONTENT_TYPE}\r\n{REQUEST_ID_HEADER}: "
            ).encode()
        return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (self._start, self._app.request_id(), len(body), body)

    def answer_by(self, operation: str, make: Callable[..., bytes], *given: Any) -> bytes:
        """The answer whose body `make` makes; an error if it cannot."""
        try:
            return self.answer(make(*given))
        except Exception:
            return self.fault(operation)

    def error(self, problem: BatonError) -> bytes:
        """What was decided could not be committed; the words are the general way's."""
        return self._written(self._app.json_error(translated(problem)))

    def fault(self, operation: str) -> bytes:
        """An exception is being handled: nobody expected it."""
        return self._written(self._app.json_error(self._app.fault(operation)))

    @staticmethod
    def _written(response: Response) -> bytes:
        return Heads().head(response, close=False) + response.body
