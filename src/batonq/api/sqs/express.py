"""The hot calls in their plainest form, answered without a task: bodies, receives, deletes, one or a batch.

Each function either takes a request whole, or returns False before it has done anything; the general way then gives
the answer, or the error in SQS's words. What is plain: JSON without an escape or a letter beyond ASCII, no fields but
the ones below, a queue that the caller may use. The answers are the same to the byte.

That a text is plain, and that no key is in it twice, shows in its length: one without blanks, escapes, long letters and
second keys is exactly as long as the texts in it and the signs between them. A text with blanks is searched instead:
without escapes it has exactly two quotes for each key and each text that was decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from functools import cache
from time import time
from typing import Any

import msgspec
from msgspec import Struct

from batonq.api.http import Reply, Request
from batonq.api.http.messages import SERVER_NAME, Heads
from batonq.api.sqs import protocol_json
from batonq.api.sqs.app import REQUEST_ID_HEADER, SqsApp
from batonq.api.sqs.digests import md5
from batonq.api.sqs.errors import SqsError, translated
from batonq.api.sqs.operations.batches import outcome
from batonq.api.sqs.operations.leases import DONE, told
from batonq.api.sqs.operations.receiving import deliver, holder, numbers
from batonq.api.sqs.operations.sending import INVOCATION_HEADER, TRACE_HEADER, invocation
from batonq.api.sqs.service import Call
from batonq.api.sqs.shapes import (
    Message,
    ReceiveMessageInput,
    ReceiveMessageOutput,
    SendMessageOutput,
)
from batonq.api.sqs.validate import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, ENTRY_ID_LENGTH_MAX
from batonq.core.commands import FirstLeases
from batonq.core.ids import message_id, message_ids
from batonq.core.payload import AS_IS, Content
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.host import ShardHost


class _Entry(Struct, gc=False, forbid_unknown_fields=True):
    Id: str
    MessageBody: str


class _Batch(Struct, gc=False, forbid_unknown_fields=True):
    QueueUrl: str
    Entries: list[_Entry]


class _Receipt(Struct, gc=False, forbid_unknown_fields=True):
    Id: str
    ReceiptHandle: str


class _Receipts(Struct, gc=False, forbid_unknown_fields=True):
    QueueUrl: str
    Entries: list[_Receipt]


class _One(Struct, gc=False, forbid_unknown_fields=True):
    QueueUrl: str
    MessageBody: str


class _OneReceipt(Struct, gc=False, forbid_unknown_fields=True):
    QueueUrl: str
    ReceiptHandle: str


class _Receive(Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    QueueUrl: str
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None


_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_receipts = msgspec.json.Decoder(_Receipts).decode
_decode_one = msgspec.json.Decoder(_One).decode
_decode_one_receipt = msgspec.json.Decoder(_OneReceipt).decode
_decode_receive = msgspec.json.Decoder(_Receive).decode
_encode = protocol_json.encode
_NOT_PLAIN = (msgspec.MsgspecError, UnicodeDecodeError, SqsError, BatonError)
_BATCH_SIGNS = len('{"QueueUrl":"","Entries":[]}') - 1
_ENTRY_SIGNS = len('{"Id":"","MessageBody":""},')
_RECEIPT_SIGNS = len('{"Id":"","ReceiptHandle":""},')
_ONE_SIGNS = len('{"QueueUrl":"","MessageBody":""}')
_ONE_RECEIPT_SIGNS = len('{"QueueUrl":"","ReceiptHandle":""}')
_TEXTS = {int(Content.TEXT), Content.TEXT | AS_IS}
RECEIVES_MAX = 1_024  # different requests to receive that are remembered
RECEIVE_BYTES_MAX = 1_024  # and how long one may be


def _is_plain(text: bytes, length: int, quotes: int) -> bool:
    """Whether a request says just what was decoded, in letters that stand for themselves (see above)."""
    return len(text) == length or (b"\\" not in text and text.isascii() and text.count(b'"') == quotes)


def _ids_are_plain(ids: list[str], joined: str) -> bool:
    """Distinct, of the right length, of letters, digits, hyphens and underscores (the text is ASCII)."""
    if not joined.isalnum() and not joined.replace("-", "").replace("_", "").isalnum():
        return False
    different = {*ids}
    return (
        len(different) == len(ids)
        and "" not in different
        and (len(joined) <= ENTRY_ID_LENGTH_MAX or max(map(len, ids)) <= ENTRY_ID_LENGTH_MAX)
    )


@cache
def _sent_form(count: int) -> str:
    """The answer to a batch of sends: an id, a message id and a digest for each."""
    entry = '{"Id":"%s","MessageId":"%s","MD5OfMessageBody":"%s"}'
    return '{"Successful":[' + ",".join([entry] * count) + "]}"


@cache
def _received_form(count: int) -> str:
    """The answer to a receive of bodies that stand for themselves: id, receipt, digest, and a line's end for a body."""
    message = '{"MessageId":"%s","ReceiptHandle":"%s","MD5OfBody":"%s","Body":"\n"}'
    return '{"Messages":[' + ",".join([message] * count) + "]}"


class ExpressSqs:
    """See api.http.messages.Express."""

    def __init__(self, app: SqsApp) -> None:
        self._app = app
        self._service = app.service
        self._broker = app.service.broker
        self._heads = _Heads(app)
        self._tasks: set[asyncio.Task[None]] = set()
        self._receives: dict[bytes, tuple[str, int, int | None]] = {}  # body → URL, messages and visibility
        prefix = protocol_json.TARGET_PREFIX
        self._calls: dict[bytes, Callable[[Request, Reply], bool]] = {
            prefix + b"SendMessage": self._send,
            prefix + b"SendMessageBatch": self._send_batch,
            prefix + b"ReceiveMessage": self._receive,
            prefix + b"DeleteMessage": self._delete,
            prefix + b"DeleteMessageBatch": self._delete_batch,
        }

    def __call__(self, request: Request, reply: Reply) -> bool:
        handler = self._calls.get(request.headers.get(b"x-amz-target", b""))
        if handler is None or request.method != "POST":
            return False
        try:
            return handler(request, reply)
        except _NOT_PLAIN:
            return False

    def _find(self, request: Request, operation: str, url: str) -> tuple[Call, Queue]:
        call = Call(request, self._app.access.identify(request), operation)
        return call, self._service.queue(call, url)

    # --- SendMessage, SendMessageBatch

    def _send(self, request: Request, reply: Reply) -> bool:
        given = _decode_one(request.body)
        text = given.MessageBody
        if not _is_plain(request.body, _ONE_SIGNS + len(given.QueueUrl) + len(text), 8):
            return False
        taken = self._take(request, "SendMessage", given.QueueUrl, [text.encode()])
        if taken is None:
            return False
        queue, host, first, digests = taken
        output = SendMessageOutput(message_id(queue.shard, first), digests[0].hex())
        self._reply_when_committed(host, reply, _encode(output))
        return True

    def _send_batch(self, request: Request, reply: Reply) -> bool:
        given = _decode_batch(request.body)
        entries = given.Entries
        count = len(entries)
        if not 0 < count <= BATCH_ENTRIES_MAX:
            return False
        ids = [entry.Id for entry in entries]
        texts = [entry.MessageBody for entry in entries]
        joined = "".join(ids)
        length = _BATCH_SIGNS + len(given.QueueUrl) + len(joined) + sum(map(len, texts)) + count * _ENTRY_SIGNS
        if not _is_plain(request.body, length, 6 + 8 * count) or not _ids_are_plain(ids, joined):
            return False
        taken = self._take(request, "SendMessageBatch", given.QueueUrl, [*map(str.encode, texts)])
        if taken is None:
            return False
        queue, host, first, digests = taken
        members: list[str] = []
        names = message_ids(queue.shard, range(first, first + count))
        for triple in zip(ids, names, map(bytes.hex, digests), strict=True):
            members += triple
        self._reply_when_committed(host, reply, (_sent_form(count) % (*members,)).encode())
        return True

    def _take(
        self, request: Request, operation: str, url: str, bodies: list[bytes]
    ) -> tuple[Queue, ShardHost, int, list[bytes]] | None:
        """Send bodies: the queue, its host, the first sequence and the digests; None when they are not plain there."""
        sizes = [*map(len, bodies)]
        call, queue = self._find(request, operation, url)
        if min(sizes) == 0 or max(sizes) > queue.message_bytes_max or sum(sizes) > BATCH_BYTES_MAX or queue.fifo:
            return None
        if TRACE_HEADER in request.headers:
            return None
        digests = [md5(body).digest() for body in bodies]
        name = invocation(request, digests) if INVOCATION_HEADER in request.headers else ""
        found = self._broker.send_plain(queue, bodies, digests, call.caller.sender, name, AS_IS)
        if found is None:
            return None
        self._app.calls[operation] += 1
        return queue, *found, digests

    def _reply_when_committed(self, host: ShardHost, reply: Reply, body: bytes) -> None:
        answer = self._heads.answer(body)

        def committed(problem: BatonError | None) -> None:
            reply(answer if problem is None else self._heads.error(problem))

        host.commit.call(committed)

    # --- ReceiveMessage

    def _receive(self, request: Request, reply: Reply) -> bool:
        known = self._receives.get(request.body)
        if known is None:
            known = self._read_receive(request)
            if known is None:
                return False
        url, count, visibility_ms = known
        call, queue = self._find(request, "ReceiveMessage", url)
        if queue.fifo:
            return False
        found = self._broker.receive_front(queue, count, visibility_ms, holder(call, ""))
        if found is None:
            return False
        self._app.calls["ReceiveMessage"] += 1
        request.cancellable = True  # whoever leaves before the answer takes no message along
        host, leases = found
        host.commit.call(lambda problem: self._deliver(queue, host, leases, reply, problem))
        return True

    def _read_receive(self, request: Request) -> tuple[str, int, int | None] | None:
        """What a request to receive says. A client asks in the same words each time, so they are remembered."""
        body = request.body
        given = _decode_receive(body)
        keys = (
            1
            + (given.MaxNumberOfMessages is not None)
            + (given.VisibilityTimeout is not None)
            + (given.WaitTimeSeconds is not None)
        )
        if not _is_plain(body, -1, 2 * (keys + 1)):
            return None
        _, queue = self._find(request, "ReceiveMessage", given.QueueUrl)
        asked = ReceiveMessageInput(
            QueueUrl=given.QueueUrl,
            MaxNumberOfMessages=given.MaxNumberOfMessages,
            VisibilityTimeout=given.VisibilityTimeout,
            WaitTimeSeconds=given.WaitTimeSeconds,
        )
        count, visibility_ms, _ = numbers(queue, asked)
        known = given.QueueUrl, count, visibility_ms
        if len(body) <= RECEIVE_BYTES_MAX:
            if len(self._receives) >= RECEIVES_MAX:
                self._receives.clear()
            self._receives[body] = known
        return known

    def _deliver(
        self, queue: Queue, host: ShardHost, leases: FirstLeases, reply: Reply, problem: BatonError | None
    ) -> None:
        if problem is not None:
            reply(self._heads.error(problem))
            return
        found = self._broker.deliver_run(queue, host, leases)
        if found is None or {*found[1]} - _TEXTS:
            task = asyncio.get_running_loop().create_task(self._deliver_any(queue, host, leases, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        names = message_ids(queue.shard, leases.sequences)
        if not reply(self._heads.answer(_received(names, *found))):
            self._broker.give_back(queue, host, leases)

    async def _deliver_any(self, queue: Queue, host: ShardHost, leases: FirstLeases, reply: Reply) -> None:
        """Messages with attributes or a past, or leases that must be extended first."""
        try:
            deliveries = await self._broker.deliver_front(queue, host, leases)
            output: Any = deliver(self._service, queue, deliveries, (), [])
        except BatonError as problem:
            reply(self._heads.error(problem))
            return
        if not reply(self._heads.answer(_encode(output))):
            self._broker.give_back(queue, host, leases)

    # --- DeleteMessage, DeleteMessageBatch

    def _delete(self, request: Request, reply: Reply) -> bool:
        given = _decode_one_receipt(request.body)
        receipt = given.ReceiptHandle
        if not _is_plain(request.body, _ONE_RECEIPT_SIGNS + len(given.QueueUrl) + len(receipt), 8):
            return False
        _, queue = self._find(request, "DeleteMessage", given.QueueUrl)
        if queue.fifo or queue.policy.strict_receipts:
            return False  # there a delete may fail, and the general way says so
        found = self._broker.delete_plain(queue, [receipt])
        if found is None:
            return False
        self._app.calls["DeleteMessage"] += 1
        self._reply_when_committed(found[0], reply, _encode(DONE))
        return True

    def _delete_batch(self, request: Request, reply: Reply) -> bool:
        given = _decode_receipts(request.body)
        entries = given.Entries
        count = len(entries)
        if not 0 < count <= BATCH_ENTRIES_MAX:
            return False
        ids = [entry.Id for entry in entries]
        receipts = [entry.ReceiptHandle for entry in entries]
        joined = "".join(ids)
        length = _BATCH_SIGNS + len(given.QueueUrl) + len(joined) + sum(map(len, receipts)) + count * _RECEIPT_SIGNS
        if not _is_plain(request.body, length, 6 + 8 * count) or not _ids_are_plain(ids, joined):
            return False
        _, queue = self._find(request, "DeleteMessageBatch", given.QueueUrl)
        found = self._broker.delete_plain(queue, receipts)
        if found is None:
            return False
        host, problems = found
        self._app.calls["DeleteMessageBatch"] += 1
        if any(problems):
            errors = [
                None if problem is None else told(problem, receipt)
                for problem, receipt in zip(problems, receipts, strict=True)
            ]
            body = _encode(outcome(ids, errors))
        else:
            body = ('{"Successful":[{"Id":"' + '"},{"Id":"'.join(ids) + '"}]}').encode()
        self._reply_when_committed(host, reply, body)
        return True


def _received(
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


class _Heads:
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

    def error(self, problem: BatonError) -> bytes:
        """What was decided could not be committed; the words are the general way's."""
        response = self._app.json_error(translated(problem))
        return Heads().head(response, close=False) + response.body
