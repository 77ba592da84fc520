"""The hot calls in their plainest form, answered without a task: bodies, receives, deletes, one or a batch.

Each function either takes a request whole, or returns False before it has done anything; the general way then gives
the answer, or the error in SQS's words. What is plain: JSON without an escape or a letter beyond ASCII, no fields but
the ones below, a queue that the caller may use. The answers are the same to the byte.

Two equal keys show in the number of quotes: a text without escapes has exactly two for each key and each text that
was decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from hashlib import md5
from time import time
from typing import Any

import msgspec
from msgspec import Struct

from batonq.api.http import Reply, Request
from batonq.api.http.messages import SERVER_NAME, Heads
from batonq.api.sqs import protocol_json
from batonq.api.sqs.app import REQUEST_ID_HEADER, SqsApp
from batonq.api.sqs.errors import SqsError, translated
from batonq.api.sqs.operations.batches import outcome
from batonq.api.sqs.operations.leases import DONE, told
from batonq.api.sqs.operations.receiving import deliver, holder, numbers
from batonq.api.sqs.operations.sending import INVOCATION_HEADER, TRACE_HEADER, invocation
from batonq.api.sqs.service import Call
from batonq.api.sqs.shapes import (
    BatchOutput,
    BatchSuccess,
    Message,
    ReceiveMessageInput,
    ReceiveMessageOutput,
    SendMessageBatchOutput,
    SendMessageBatchResultEntry,
    SendMessageOutput,
)
from batonq.api.sqs.validate import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, ENTRY_ID_LENGTH_MAX
from batonq.core.commands import FirstLeases
from batonq.core.ids import message_id
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


def _ids_are_plain(ids: list[str]) -> bool:
    """Distinct, of the right length, of letters, digits, hyphens and underscores (the text is ASCII)."""
    joined = "".join(ids)
    if not joined.isalnum() and not joined.replace("-", "").replace("_", "").isalnum():
        return False
    lengths = [*map(len, ids)]
    return min(lengths) > 0 and max(lengths) <= ENTRY_ID_LENGTH_MAX and len({*ids}) == len(ids)


class ExpressSqs:
    """See api.http.messages.Express."""

    def __init__(self, app: SqsApp) -> None:
        self._app = app
        self._service = app.service
        self._broker = app.service.broker
        self._heads = _Heads(app)
        self._tasks: set[asyncio.Task[None]] = set()
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
        if handler is None or request.method != "POST" or b"\\" in request.body or not request.body.isascii():
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
        if request.body.count(b'"') != 8:
            return False
        taken = self._take(request, "SendMessage", given.QueueUrl, [given.MessageBody.encode()])
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
        if not 0 < count <= BATCH_ENTRIES_MAX or request.body.count(b'"') != 6 + 8 * count:
            return False
        ids = [entry.Id for entry in entries]
        if not _ids_are_plain(ids):
            return False
        bodies = [entry.MessageBody.encode() for entry in entries]
        taken = self._take(request, "SendMessageBatch", given.QueueUrl, bodies)
        if taken is None:
            return False
        queue, host, first, digests = taken
        shard = queue.shard
        results = [
            SendMessageBatchResultEntry(entry_id, message_id(shard, sequence), digest.hex())
            for sequence, (entry_id, digest) in enumerate(zip(ids, digests, strict=True), start=first)
        ]
        self._reply_when_committed(host, reply, _encode(SendMessageBatchOutput(results)))
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
        digests = [md5(body, usedforsecurity=False).digest() for body in bodies]
        name = invocation(request, digests) if INVOCATION_HEADER in request.headers else ""
        found = self._broker.send_plain(queue, bodies, digests, call.caller.sender, name)
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
        given = _decode_receive(request.body)
        keys = (
            1
            + (given.MaxNumberOfMessages is not None)
            + (given.VisibilityTimeout is not None)
            + (given.WaitTimeSeconds is not None)
        )
        if request.body.count(b'"') != 2 * (keys + 1):
            return False
        call, queue = self._find(request, "ReceiveMessage", given.QueueUrl)
        if queue.fifo:
            return False
        count, visibility_ms, _ = numbers(
            queue,
            ReceiveMessageInput(
                QueueUrl=given.QueueUrl,
                MaxNumberOfMessages=given.MaxNumberOfMessages,
                VisibilityTimeout=given.VisibilityTimeout,
                WaitTimeSeconds=given.WaitTimeSeconds,
            ),
        )
        found = self._broker.receive_front(queue, count, visibility_ms, holder(call, ""))
        if found is None:
            return False
        self._app.calls["ReceiveMessage"] += 1
        request.cancellable = True  # whoever leaves before the answer takes no message along
        host, leases = found
        host.commit.call(lambda problem: self._deliver(queue, host, leases, reply, problem))
        return True

    def _deliver(
        self, queue: Queue, host: ShardHost, leases: FirstLeases, reply: Reply, problem: BatonError | None
    ) -> None:
        if problem is not None:
            reply(self._heads.error(problem))
            return
        plain = self._broker.deliver_plain(queue, host, leases)
        if plain is None:
            task = asyncio.get_running_loop().create_task(self._deliver_any(queue, host, leases, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        messages = [Message(name, receipt, digest.hex(), body.decode()) for name, receipt, digest, body in plain]
        if not reply(self._heads.answer(_encode(ReceiveMessageOutput(messages)))):
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
        if request.body.count(b'"') != 8:
            return False
        _, queue = self._find(request, "DeleteMessage", given.QueueUrl)
        if queue.fifo or queue.policy.strict_receipts:
            return False  # there a delete may fail, and the general way says so
        found = self._broker.delete_plain(queue, [given.ReceiptHandle])
        if found is None:
            return False
        self._app.calls["DeleteMessage"] += 1
        self._reply_when_committed(found[0], reply, _encode(DONE))
        return True

    def _delete_batch(self, request: Request, reply: Reply) -> bool:
        given = _decode_receipts(request.body)
        entries = given.Entries
        count = len(entries)
        if not 0 < count <= BATCH_ENTRIES_MAX or request.body.count(b'"') != 6 + 8 * count:
            return False
        ids = [entry.Id for entry in entries]
        if not _ids_are_plain(ids):
            return False
        _, queue = self._find(request, "DeleteMessageBatch", given.QueueUrl)
        receipts = [entry.ReceiptHandle for entry in entries]
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
            body = _encode(BatchOutput([BatchSuccess(entry_id) for entry_id in ids]))
        self._reply_when_committed(host, reply, body)
        return True


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
