"""Sending, receiving and acknowledging batches in MessagePack, in their plainest form, without a task.

Each function either takes a request whole, or returns False before it has done anything; the general way then gives the
answer, or the problem. What is plain: messages that are nothing but a body, all of one kind; receives without a choice
and without a wait; receipts that are all in order. The answers are the same to the byte: they are laid out here field
by field, with what messages have in common written once, which takes a third of the time of making an object of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from batonq.api.http import Reply, Request, Response
from batonq.api.http.messages import Heads
from batonq.api.rest import idempotency
from batonq.api.rest.app import REQUEST_BYTES_MAX, RestApp, template
from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import body_from_value, value_of
from batonq.api.rest.problems import item_error
from batonq.api.rest.receiving import is_long_json, received_all
from batonq.api.rest.sending import results_of
from batonq.api.rest.service import milliseconds
from batonq.api.rest.shapes import (
    BATCH_MAX,
    AckBatch,
    ClientId,
    LeaseResult,
    LeaseResults,
    Producer,
    Receive,
    ReceivedMessages,
    SendResult,
    SendResults,
)
from batonq.api.sqs.access import Caller
from batonq.api.sqs.errors import SqsError
from batonq.core.commands import FirstLeases
from batonq.core.ids import message_ids
from batonq.core.payload import AS_IS, NO_DIGEST, Content
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.bounded_cache import BoundedCache
from batonq.node.broker import Queue
from batonq.node.host import ShardHost
from batonq.node.ports import Bodies
from batonq.priorities import NORMAL_PRIORITY

ADDRESSES_MAX = 10_000
ADDRESS_LENGTH_MAX = 320  # of an address that is kept: a queue's name has 80 characters, each of them may be escaped
RECEIVES_MAX = 1_024  # different requests to receive that are remembered
RECEIVE_BYTES_MAX = 1_024  # and how long one may be

_TEXT, _JSON, _BYTES = int(Content.TEXT), int(Content.JSON), int(Content.BYTES)
_NOT_PLAIN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BatonError, SqsError)
_encode = MSGPACK.encode


class _Body(Struct, gc=False, rename="camel", forbid_unknown_fields=True):
    body: Any
    client_message_id: ClientId | None = None


class _Bodies(Struct, gc=False, rename="camel", forbid_unknown_fields=True):
    messages: list[_Body]
    producer: Producer | None = None


_decode_bodies = msgspec.msgpack.Decoder(_Bodies).decode
_decode_receive = msgspec.msgpack.Decoder(Receive).decode
_decode_receipts = msgspec.msgpack.Decoder(AckBatch).decode


Handler = Callable[[Request, Reply, Caller, Queue], bool]


class _Receiving(NamedTuple):
    """A receive whose messages are leased, and which has no answer yet."""

    request: Request
    reply: Reply
    queue: Queue
    host: ShardHost
    leases: FirstLeases
    priority: int


class ExpressRest:
    """See api.http.messages.Express."""

    def __init__(self, app: RestApp) -> None:
        self._app = app
        self._broker = app.broker
        self._heads = Heads()
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Handler] = {
            "/v1/queues/{queue}/messages:batch": self._send,
            "/v1/queues/{queue}/messages:receive": self._receive,
            "/v1/queues/{queue}/messages:ack": self._ack,
        }
        # path → what takes its requests, and the queue's name
        self._addresses: BoundedCache[str, tuple[Handler, str]] = BoundedCache(ADDRESSES_MAX, ADDRESS_LENGTH_MAX)
        # body → messages, visibility, consumer
        self._receives: BoundedCache[bytes, tuple[int, int | None, str]] = BoundedCache(RECEIVES_MAX, RECEIVE_BYTES_MAX)

    def __call__(self, request: Request, reply: Reply) -> bool:
        headers = request.headers
        packed = MSGPACK.content_type.encode()
        if request.method != "POST" or headers.get(b"content-type") != packed or request.query:
            return False
        if headers.get(b"accept", packed) != packed or len(request.body) > REQUEST_BYTES_MAX:
            return False
        address = self._addresses.get(request.path) or self._address(request.path)
        if address is None:
            return False
        handler, name = address
        try:
            caller = request.caller = self._app.access.identify(request)  # before anything is read or kept
            queue = self._broker.queue(caller.account, name)
            if request.path not in self._addresses:
                self._addresses.put(request.path, address, len(request.path))
            return handler(request, reply, caller, queue)
        except _NOT_PLAIN:
            return False

    def _address(self, path: str) -> tuple[Handler, str] | None:
        form, name, _ = template(path)
        handler = self._calls.get(form)
        return None if handler is None else (handler, name)

    # --- sending

    def _send(self, request: Request, reply: Reply, caller: Caller, queue: Queue) -> bool:
        if idempotency.HEADER in request.headers or queue.fifo or queue.content_dedup:
            return False
        MSGPACK.check_weight(request.body)
        given = _decode_bodies(request.body)
        messages = given.messages
        if not 0 < len(messages) <= BATCH_MAX:
            return False
        bodies, content = _bodies([message.body for message in messages])
        if content < 0 or max(map(len, bodies)) > queue.message_bytes_max:
            return False
        ids = [message.client_message_id for message in messages]
        by, number = ("", 0) if given.producer is None else (given.producer.id, given.producer.sequence)
        if self._broker.is_elsewhere(queue):
            plain = Bodies(bodies, caller.sender, content, by, number)
            self._begin(self._forwarded(request, reply, self._send_elsewhere(queue, plain, ids)))
            return True
        found = self._broker.send_plain(queue, bodies, (), caller.sender, "", content, by, number)
        if found is None:
            return False
        self._app.calls["sendBatch"] += 1
        host, first = found
        shard = queue.shard
        self._reply_when_committed(request, host, reply, lambda: self._answer(202, _sent(shard, first, ids)))
        return True

    async def _send_elsewhere(self, queue: Queue, plain: Bodies, ids: list[str | None]) -> bytes:
        answer = await self._broker.send_elsewhere(queue, plain)
        self._app.calls["sendBatch"] += 1
        if isinstance(answer, int):
            return self._answer(202, _sent(queue.shard, answer, ids))
        results = results_of(answer, ids)
        return self._answer(200 if any(result.error for result in results) else 202, _encode(SendResults(results)))

    async def _forwarded(self, request: Request, reply: Reply, work: Coroutine[Any, Any, bytes]) -> None:
        """Another node does the work. When that one does not know the queue, the general way finds out who is right."""
        answer: bytes | None
        try:
            answer = await work
        except QueueDoesNotExist:
            answer = None
        except BatonError as problem:
            answer = self._error(problem)
        except Exception:
            answer = self._error(self._app.fault(request))
        reply(answer)

    # --- receiving

    def _receive(self, request: Request, reply: Reply, caller: Caller, queue: Queue) -> bool:
        count, visibility_ms, consumer = self._receives.get(request.body) or self._read_receive(request.body)
        if not count or queue.fifo:
            return False
        holder = consumer or f"{caller.key or 'anonymous'}@{request.peer}"
        found = self._broker.receive_front(queue, count, visibility_ms, holder)
        if found is None:
            return False
        self._app.calls["receive"] += 1
        request.cancellable = True  # whoever leaves before the answer takes no message along
        host, leases = found
        priority = host.shard.columns.priority[leases.slots[0]]  # a run is of one lane
        receiving = _Receiving(request, reply, queue, host, leases, priority)
        host.commit.call(lambda problem: self._deliver(receiving, problem))
        return True

    def _read_receive(self, body: bytes) -> tuple[int, int | None, str]:
        """What a request to receive says; 0 messages: nothing plain. A client asks in the same words each time."""
        given = _decode_receive(body)
        if given.attempt_id is not None:
            return 0, None, ""
        seconds = given.visibility_timeout_seconds
        known = given.max_messages, None if seconds is None else milliseconds(seconds), given.consumer or ""
        self._receives.put(body, known, len(body))
        return known

    def _deliver(self, receiving: _Receiving, problem: BatonError | None, warm: bool = False) -> None:
        """Answer a receive whose leases are committed. Leases for which no answer can be made are given back."""
        request, reply, queue, host, leases, priority = receiving
        if problem is not None:
            reply(self._error(problem))
            return
        try:
            if not warm and self._broker.is_cold(host, leases):
                self._begin(self._deliver_cold(receiving))
                return
            found = None if max(leases.sents_ms) > leases.leased_ms else self._broker.deliver_run(queue, host, leases)
            if found is None:
                self._begin(self._deliver_any(receiving))
                return
            receipts, contents, _, bodies = found
            if is_long_json(contents, bodies):
                self._begin(self._deliver_any(receiving))
                return
            answer = self._answer(200, _received(queue, leases, priority, receipts, contents, bodies))
        except Exception:
            self._refuse(receiving, self._app.fault(request))
        else:
            self._hand_over(receiving, answer)

    def _hand_over(self, receiving: _Receiving, answer: bytes) -> None:
        if not receiving.reply(answer):
            self._broker.give_back(receiving.queue, receiving.host, receiving.leases)

    def _refuse(self, receiving: _Receiving, problem: BatonError) -> None:
        """The receive gets an error, and the messages are the next one's."""
        self._broker.give_back(receiving.queue, receiving.host, receiving.leases)
        receiving.reply(self._error(problem))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver_cold(self, receiving: _Receiving) -> None:
        try:
            await self._broker.warm(receiving.host, receiving.leases)
        except BatonError as problem:
            self._refuse(receiving, problem)
        except Exception:
            self._refuse(receiving, self._app.fault(receiving.request))
        else:
            self._deliver(receiving, None, warm=True)

    async def _deliver_any(self, receiving: _Receiving) -> None:
        """Messages that are more than a body, or too many bytes for one answer, or leases to be extended first."""
        queue = receiving.queue
        try:
            deliveries = await self._broker.deliver_front(queue, receiving.host, receiving.leases)
            messages = await received_all([(queue.name, delivery) for delivery in deliveries], binary=True)
            answer = self._answer(200, _encode(ReceivedMessages(messages)))
        except BatonError as problem:
            self._refuse(receiving, problem)
        except Exception:
            self._refuse(receiving, self._app.fault(receiving.request))
        else:
            self._hand_over(receiving, answer)

    # --- acknowledging

    def _ack(self, request: Request, reply: Reply, caller: Caller, queue: Queue) -> bool:
        receipts = _decode_receipts(request.body).receipt_handles
        if self._broker.is_elsewhere(queue):
            claims = self._broker.claims(queue, receipts)
            if not claims:
                return False
            self._begin(self._forwarded(request, reply, self._ack_elsewhere(queue, claims)))
            return True
        found = self._broker.delete_plain(queue, receipts, strict=True)
        if found is None:
            return False
        self._app.calls["ackBatch"] += 1
        host, problems = found
        self._reply_when_committed(request, host, reply, lambda: self._answer(200, _acknowledged(problems)))
        return True

    async def _ack_elsewhere(self, queue: Queue, claims: list[tuple[int, int, int]]) -> bytes:
        problems = await self._broker.delete_elsewhere(queue, claims)
        self._app.calls["ackBatch"] += 1
        return self._answer(200, _acknowledged(problems))

    # --- answers

    def _reply_when_committed(
        self, request: Request, host: ShardHost, reply: Reply, answer: Callable[[], bytes]
    ) -> None:
        def committed(problem: BatonError | None) -> None:
            try:
                whole = answer() if problem is None else self._error(problem)
            except Exception:
                whole = self._error(self._app.fault(request))
            reply(whole)

        host.commit.call(committed)

    def _answer(self, status: int, body: bytes) -> bytes:
        return self._heads.head(Response(status, body, MSGPACK.content_type), close=False) + body

    def _error(self, problem: BatonError) -> bytes:
        """What was decided could not be committed; the words are the general way's."""
        response = self._app.refused(problem, MSGPACK)
        return self._heads.head(response, close=False) + response.body


def _bodies(values: list[Any]) -> tuple[list[bytes], int]:
    """The bodies as they are kept, and what they are; -1 when they are not all the same."""
    kinds = {*map(type, values)}
    if kinds == {str}:
        return [*map(str.encode, values)], _TEXT
    if kinds == {bytes}:
        return values, _BYTES
    pairs = [body_from_value(value) for value in values]
    content = pairs[0][1]
    return [body for body, _ in pairs], content if all(other == content for _, other in pairs) else -1


def _acknowledged(problems: Sequence[BatonError | None]) -> bytes:
    if not any(problems):
        return _RESULTS + _array(len(problems)) + b"\x80" * len(problems)
    results = [LeaseResult(error=item_error(problem)) if problem else LeaseResult() for problem in problems]
    return _encode(LeaseResults(results=results))


# --- MessagePack by hand ----------------------------------------------------------------------


def _key(name: str) -> bytes:
    return _encode(name)


def _array(count: int) -> bytes:
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


class _Starts(dict[int, bytes]):
    """What stands before a text or bytes of a length."""

    LENGTHS_MAX = 4_096

    def __init__(self, kind: type[str] | type[bytes]) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, length: int) -> bytes:
        whole = _encode("x" * length if self._kind is str else bytes(length))
        start = whole[: len(whole) - length]
        if len(self) < self.LENGTHS_MAX:
            self[length] = start
        return start


_RESULTS = b"\x81" + _key("results")
_MESSAGES = b"\x81" + _key("messages")
_TEXT_STARTS = _Starts(str)
_BYTES_STARTS = _Starts(bytes)
_FLAGS = AS_IS | NO_DIGEST


def _sent(shard: int, first: int, ids: Sequence[str | None]) -> bytes:
    """The results of a batch that was taken whole, `SendResults`."""
    count = len(ids)
    sequences = range(first, first + count)
    names = message_ids(shard, sequences)
    if any(ids):
        return _encode(SendResults([*map(SendResult, ids, names, sequences)]))
    before = b"\x82" + _key("messageId") + _TEXT_STARTS[len(names[0])]
    between = _key("sequence")
    parts = [before, b"", between, b""] * count
    parts[1::4] = map(str.encode, names)
    parts[3::4] = map(_encode, sequences)
    return b"".join((_RESULTS, _array(count), *parts))


def _received(
    queue: Queue,
    leases: FirstLeases,
    priority: int,
    receipts: list[str],
    contents: list[int],
    bodies: list[bytes],
) -> bytes:
    """First leases of messages that are nothing but a body, `ReceivedMessages`."""
    count = len(bodies)
    kinds = {content & ~_FLAGS for content in contents}
    if kinds == {_TEXT}:
        starts = [*map(_TEXT_STARTS.__getitem__, map(len, bodies))]
    elif kinds == {_BYTES}:
        starts = [*map(_BYTES_STARTS.__getitem__, map(len, bodies))]
    else:
        bodies = [_encode(value_of(body, kind & ~_FLAGS)) for body, kind in zip(bodies, contents, strict=True)]
        starts = [b""] * count
    names = message_ids(queue.shard, leases.sequences)
    sents = leases.sents_ms
    shared = _key("queue") + _encode(queue.name)
    if priority != NORMAL_PRIORITY:
        shared += _key("priority") + _encode(priority)
    shared += _key("sentAtMs")
    times = _key("firstReceivedAtMs") + _encode(leases.leased_ms) + _key("deadlineMs") + _encode(leases.deadline_ms)
    parts = [
        (b"\x89" if priority == NORMAL_PRIORITY else b"\x8a") + _key("messageId") + _TEXT_STARTS[len(names[0])],
        b"",
        _key("receiptHandle") + _TEXT_STARTS[len(receipts[0])],
        b"",
        _key("receiveCount") + _encode(1) + _key("body"),
        b"",
        b"",
        _key("sequence"),
        b"",
        shared,
        b"",
        times,
    ] * count
    parts[1::12] = map(str.encode, names)
    parts[3::12] = map(str.encode, receipts)
    parts[5::12] = starts
    parts[6::12] = bodies
    parts[8::12] = map(_encode, leases.sequences)
    parts[10::12] = map(_encode, sents)
    return b"".join((_MESSAGES, _array(count), *parts))
