"""The hot calls in their plainest form, answered without a task: bodies, receives, deletes, one or a batch.

Each function either takes a request whole, or returns False before it has done anything; the general way then gives
the answer, or the error in SQS's words. What is plain: JSON without an escape or a letter beyond ASCII, no fields but
the ones below, a queue that the caller may use. The answers are the same to the byte.

Requests are only read here; what they ask for is done for all of one turn of the event loop, see together.py, and
elsewhere.py for what another node has to do.

That a text is plain, and that no key is in it twice, shows in its length: one without blanks, escapes, long letters and
second keys is exactly as long as the texts in it and the signs between them. A text with blanks is searched instead:
without escapes it has exactly two quotes for each key and each text that was decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import msgspec
from msgspec import Struct

from batonq.api.http import Reply, Request
from batonq.api.sqs import protocol_json
from batonq.api.sqs.access import Caller
from batonq.api.sqs.app import SqsApp
from batonq.api.sqs.digests import md5
from batonq.api.sqs.elsewhere import Elsewhere
from batonq.api.sqs.errors import SqsError
from batonq.api.sqs.operations.batches import outcome
from batonq.api.sqs.operations.leases import DONE, told
from batonq.api.sqs.operations.receiving import holder, numbers
from batonq.api.sqs.operations.sending import INVOCATION_HEADER, TRACE_HEADER, invocation
from batonq.api.sqs.service import Call
from batonq.api.sqs.shapes import (
    ReceiveMessageInput,
    SendMessageOutput,
)
from batonq.api.sqs.together import AnswerHeads, DeletedAnswer, SentAnswer, Together
from batonq.api.sqs.validate import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, ENTRY_ID_LENGTH_MAX
from batonq.core.ids import message_id, message_ids, request_hash
from batonq.errors import BatonError
from batonq.node.bounded_cache import BoundedCache
from batonq.node.broker import HOLDER_LENGTH_MAX, Queue


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
_NOT_PLAIN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, SqsError, BatonError)
_BATCH_SIGNS = len('{"QueueUrl":"","Entries":[]}') - 1
_ENTRY_SIGNS = len('{"Id":"","MessageBody":""},')
_RECEIPT_SIGNS = len('{"Id":"","ReceiptHandle":""},')
_ONE_SIGNS = len('{"QueueUrl":"","MessageBody":""}')
_ONE_RECEIPT_SIGNS = len('{"QueueUrl":"","ReceiptHandle":""}')
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


class ExpressSqs:
    """See api.http.messages.Express."""

    def __init__(self, app: SqsApp) -> None:
        self._app = app
        self._service = app.service
        self._broker = app.service.broker
        heads = AnswerHeads(app)
        self._together = Together(app, heads)
        self._elsewhere = Elsewhere(app, heads)
        # body → URL, messages and visibility
        self._receives: BoundedCache[bytes, tuple[str, int, int | None]] = BoundedCache(RECEIVES_MAX, RECEIVE_BYTES_MAX)
        prefix = protocol_json.TARGET_PREFIX
        self._calls: dict[bytes, Callable[[Request, Reply, Caller], bool]] = {
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
            caller = request.caller = self._app.access.identify(request)  # before anything is read or kept
            return handler(request, reply, caller)
        except _NOT_PLAIN:
            return False

    def _find(self, request: Request, caller: Caller, operation: str, url: str) -> tuple[Call, Queue]:
        call = Call(request, caller, operation)
        return call, self._service.queue(call, url)

    # --- SendMessage, SendMessageBatch

    def _send(self, request: Request, reply: Reply, caller: Caller) -> bool:
        given = _decode_one(request.body)
        text = given.MessageBody
        if not _is_plain(request.body, _ONE_SIGNS + len(given.QueueUrl) + len(text), 8):
            return False

        def answer(shard: int, first: int, digests: list[bytes]) -> bytes:
            return _encode(SendMessageOutput(message_id(shard, first), digests[0].hex()))

        return self._take(request, caller, "SendMessage", given.QueueUrl, [text.encode()], answer, reply)

    def _send_batch(self, request: Request, reply: Reply, caller: Caller) -> bool:
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

        def answer(shard: int, first: int, digests: list[bytes]) -> bytes:
            members: list[str] = []
            names = message_ids(shard, range(first, first + count))
            for triple in zip(ids, names, map(bytes.hex, digests), strict=True):
                members += triple
            return (_sent_form(count) % (*members,)).encode()

        bodies = [*map(str.encode, texts)]
        return self._take(request, caller, "SendMessageBatch", given.QueueUrl, bodies, answer, reply)

    def _take(
        self,
        request: Request,
        caller: Caller,
        operation: str,
        url: str,
        bodies: list[bytes],
        answer: SentAnswer,
        reply: Reply,
    ) -> bool:
        """Bodies to be sent with those of others; False when they are not plain there."""
        sizes = [*map(len, bodies)]
        _, queue = self._find(request, caller, operation, url)
        if min(sizes) == 0 or max(sizes) > queue.message_bytes_max or sum(sizes) > BATCH_BYTES_MAX or queue.fifo:
            return False
        if TRACE_HEADER in request.headers:
            return False
        here = self._broker.is_here(queue)
        if not here and not self._broker.is_relayed(queue):
            return False
        digests = [md5(body).digest() for body in bodies]
        name = invocation(request, digests) if INVOCATION_HEADER in request.headers else ""
        key = request_hash(queue.number, name)
        one = bodies, digests, key, answer, operation, reply
        if here:
            self._together.send(self._broker.host(queue), queue, caller.sender, one)
        else:
            self._elsewhere.send(queue, caller.sender, one)
        return True

    # --- ReceiveMessage

    def _receive(self, request: Request, reply: Reply, caller: Caller) -> bool:
        known = self._receives.get(request.body)
        if known is None:
            known = self._read_receive(request, caller)
            if known is None:
                return False
        url, count, visibility_ms = known
        call, queue = self._find(request, caller, "ReceiveMessage", url)
        if queue.fifo:
            return False
        host = self._broker.host(queue) if self._broker.is_here(queue) else None
        if not (host.has_front(queue.number) if host is not None else self._broker.is_relayed(queue)):
            return False
        request.cancellable = True  # whoever leaves before the answer takes no message along
        one = holder(call, "")[:HOLDER_LENGTH_MAX], count, reply
        if host is not None:
            self._together.receive(host, queue, visibility_ms, one)
        else:
            self._elsewhere.receive(queue, visibility_ms, one)
        return True

    def _read_receive(self, request: Request, caller: Caller) -> tuple[str, int, int | None] | None:
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
        _, queue = self._find(request, caller, "ReceiveMessage", given.QueueUrl)
        asked = ReceiveMessageInput(
            QueueUrl=given.QueueUrl,
            MaxNumberOfMessages=given.MaxNumberOfMessages,
            VisibilityTimeout=given.VisibilityTimeout,
            WaitTimeSeconds=given.WaitTimeSeconds,
        )
        count, visibility_ms, _ = numbers(queue, asked)
        known = given.QueueUrl, count, visibility_ms
        self._receives.put(body, known, len(body))
        return known

    # --- DeleteMessage, DeleteMessageBatch

    def _delete(self, request: Request, reply: Reply, caller: Caller) -> bool:
        given = _decode_one_receipt(request.body)
        receipt = given.ReceiptHandle
        if not _is_plain(request.body, _ONE_RECEIPT_SIGNS + len(given.QueueUrl) + len(receipt), 8):
            return False
        _, queue = self._find(request, caller, "DeleteMessage", given.QueueUrl)
        if queue.fifo or queue.policy.strict_receipts:
            return False  # there a delete may fail, and the general way says so
        return self._remove(queue, "DeleteMessage", [receipt], lambda problems: _encode(DONE), reply)

    def _delete_batch(self, request: Request, reply: Reply, caller: Caller) -> bool:
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
        _, queue = self._find(request, caller, "DeleteMessageBatch", given.QueueUrl)

        def answer(problems: Sequence[BatonError | None]) -> bytes:
            if not any(problems):
                return ('{"Successful":[{"Id":"' + '"},{"Id":"'.join(ids) + '"}]}').encode()
            errors = [
                None if problem is None else told(problem, receipt)
                for problem, receipt in zip(problems, receipts, strict=True)
            ]
            return _encode(outcome(ids, errors))

        return self._remove(queue, "DeleteMessageBatch", receipts, answer, reply)

    def _remove(self, queue: Queue, operation: str, receipts: list[str], answer: DeletedAnswer, reply: Reply) -> bool:
        """Messages to be deleted with those of others; False when a receipt is not in order."""
        here = self._broker.is_here(queue)
        if not here and not self._broker.is_relayed(queue):
            return False
        claims = self._broker.claims(queue, receipts)
        if claims is None:
            return False
        one = claims, answer, operation, reply
        if here:
            self._together.delete(self._broker.host(queue), queue, one)
        else:
            self._elsewhere.delete(queue, one)
        return True
