"""SQS's JSON protocol by raw HTTP: prebuilt requests, and responses that are searched for what the work needs.

Requests have the headers of an AWS SDK, including a signature and a fresh invocation id, so that a server has the same
cost as with a real client. The signature is valid only for a server with keys; other servers ignore it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import time
from collections.abc import Sequence

from bench.clients import BenchError, Request
from bench.flows import Prepared
from bench.signing import Signer

_INVOCATION = b"00000000-0000-4000-8000-%012x"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_RECEIPT = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')
_OK = b"HTTP/1.1 200"
_DATE = b"20250101T000000Z"
_SIGNATURE = (
    b"AWS4-HMAC-SHA256 Credential=000000000000/20250101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=" + b"0" * 64
)

_invocations = itertools.count(time.time_ns() & 0xFFFFFFFF0000)


def complete(data: bytes, _answers: int) -> bool:
    """Whether `data` is a whole HTTP response; only one at a time is outstanding on a connection."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = _LENGTH.search(data, 0, head)
    if length is None:
        raise BenchError(f"an answer without a length: {data[:200]!r}")
    return len(data) >= head + 4 + int(length[1])


def check(data: bytes) -> bytes:
    """Raises BenchError unless the response is a success."""
    if not data.startswith(_OK) or b'"Failed":[{' in data:
        raise BenchError(data[:600].decode(errors="replace"))
    return data


class Caller:
    """Builds requests for one operation of one server: a constant header around a length, an id, a signature and a
    body.
    """

    __slots__ = ("_operation", "_port", "_sdk_headers", "_signer", "_start")

    def __init__(self, port: int, operation: str, sdk_headers: bool = True, signer: Signer | None = None) -> None:
        start = [
            "POST / HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"X-Amz-Target: AmazonSQS.{operation}",
            "Content-Type: application/x-amz-json-1.0",
        ]
        if sdk_headers:
            start += [
                "Accept-Encoding: identity",
                "User-Agent: Boto3/1.40.0 md/Botocore#1.40.0 ua/2.1 os/linux lang/python#3.11 cfg/retry-mode#legacy",
                "amz-sdk-request: attempt=1",
            ]
        self._start = ("\r\n".join(start) + "\r\nContent-Length: ").encode()
        self._port = port
        self._operation = operation.encode()
        self._sdk_headers = sdk_headers
        self._signer = signer

    def request(self, body: bytes) -> bytes:
        if not self._sdk_headers:
            return b"%b%d\r\n\r\n%b" % (self._start, len(body), body)
        if self._signer is None:
            date, signature = _DATE, _SIGNATURE
        else:
            date, signature = self._signer.sign(self._port, self._operation, body)
        return b"%b%d\r\nX-Amz-Date: %b\r\nAuthorization: %b\r\namz-sdk-invocation-id: %b\r\n\r\n%b" % (
            self._start,
            len(body),
            date,
            signature,
            _INVOCATION % next(_invocations),
            body,
        )


def call(port: int, operation: str, signer: Signer | None = None, **fields: object) -> dict[str, object]:
    """One call outside a measurement. Raises BenchError unless it succeeds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers: dict[str, str | bytes] = {
        "X-Amz-Target": f"AmazonSQS.{operation}",
        "Content-Type": "application/x-amz-json-1.0",
    }
    body = json.dumps(fields).encode()
    if signer is not None:
        headers["X-Amz-Date"], headers["Authorization"] = signer.sign(port, operation.encode(), body)
    connection.request("POST", "/", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        raise BenchError(f"{operation}: {answer.status} {text[:300]!r}")
    result: dict[str, object] = json.loads(text)
    return result


class SqsQueue:
    """One queue of an SQS server: the work of `flows.py` in SQS."""

    def __init__(
        self,
        port: int,
        name: str,
        fifo: bool = False,
        sdk_headers: bool = True,
        spread: int = 1,
        signer: Signer | None = None,
    ) -> None:
        attributes = {"FifoQueue": "true"} if fifo else {}
        if spread > 1:
            attributes["Baton.Spread"] = str(spread)
        created = call(port, "CreateQueue", signer, QueueName=name, Attributes=attributes)
        self._use(port, str(created["QueueUrl"]), sdk_headers, signer)

    @classmethod
    def at(cls, port: int, url: str, sdk_headers: bool = True) -> SqsQueue:
        """An existing queue."""
        queue = cls.__new__(cls)
        queue._use(port, url, sdk_headers)
        return queue

    def _use(self, port: int, url: str, sdk_headers: bool, signer: Signer | None = None) -> None:
        self.port = port
        self.url = url
        operations = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch")
        callers = [Caller(port, operation, sdk_headers, signer) for operation in operations]
        self._send_one, self._send_batch, self._receive, self._delete_one, self._delete_batch = callers
        self._url_field = b'{"QueueUrl":"%b",' % self.url.encode()

    def complete(self, data: bytes, answers: int) -> bool:
        return complete(data, answers)

    def prepare(self, bodies: Sequence[str], groups: Sequence[str] = (), dedup_ids: Sequence[str] = ()) -> Prepared:
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
        for entry, group, dedup_id in zip(entries, groups, dedup_ids, strict=False):
            entry["MessageGroupId"] = group
            entry["MessageDeduplicationId"] = dedup_id
        fields = {"QueueUrl": self.url, "Entries": entries}
        return Prepared(json.dumps(fields, separators=(",", ":")).encode(), len(entries), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        fields = {"QueueUrl": self.url, "MessageBody": body}
        return Prepared(json.dumps(fields, separators=(",", ":")).encode(), 1, batch=False)

    def send(self, prepared: Prepared) -> Request:
        caller = self._send_batch if prepared.batch else self._send_one
        return caller.request(prepared.data), 1

    def receive(self, count: int, wait_s: int = 0) -> Request:
        wait = b',"WaitTimeSeconds":%d' % wait_s if wait_s else b""
        fields = b'%b"MaxNumberOfMessages":%d,"VisibilityTimeout":600%b}' % (self._url_field, count, wait)
        return self._receive.request(fields), 1

    def receive_by(self, fields: bytes) -> Request:
        """A receive with fields of the caller's own."""
        return self._receive.request(fields), 1

    def receipts(self, answer: bytes) -> list[bytes]:
        if not answer.startswith(_OK):
            check(answer)
        return _RECEIPT.findall(answer)

    def delete(self, receipts: list[bytes]) -> Request:
        entries = [b'{"Id":"%d","ReceiptHandle":"%b"}' % (place, receipt) for place, receipt in enumerate(receipts)]
        fields = b'%b"Entries":[%b]}' % (self._url_field, b",".join(entries))
        return self._delete_batch.request(fields), 1

    def delete_one(self, receipt: bytes) -> Request:
        return self._delete_one.request(b'%b"ReceiptHandle":"%b"}' % (self._url_field, receipt)), 1

    def check(self, answer: bytes) -> None:
        check(answer)
