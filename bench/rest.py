"""The REST API in MessagePack by raw HTTP: prebuilt requests, and responses that are
searched for what the work needs.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from bench import sqs
from bench.clients import BenchError, Request
from bench.flows import Prepared

_RECEIPT = re.compile(rb"\xadreceiptHandle\xd9,(.{44})", re.DOTALL)  # a string of 44 characters
_OK = (b"HTTP/1.1 200", b"HTTP/1.1 202")


def _caller(port: int, path: str) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/msgpack",
        "Accept: application/msgpack",
        "User-Agent: bench",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode()


class RestQueue:
    """One queue: the work of `flows.py` in REST."""

    def __init__(self, port: int, name: str, **settings: Any) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        fields = json.dumps({"name": name, **settings})
        connection.request("POST", "/v1/queues", fields, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status not in (200, 201):
            raise BenchError(f"POST /v1/queues: {answer.status} {text[:300]!r}")
        self.port = port
        self._send = _caller(port, f"/v1/queues/{name}/messages:batch")
        self._receive = _caller(port, f"/v1/queues/{name}/messages:receive")
        self._ack = _caller(port, f"/v1/queues/{name}/messages:ack")
        self._encode = msgspec.msgpack.Encoder().encode

    def complete(self, data: bytes, answers: int) -> bool:
        return sqs.complete(data, answers)

    def prepare(self, bodies: Sequence[str]) -> Prepared:
        data = self._encode({"messages": [{"body": body} for body in bodies]})
        return Prepared(data, len(bodies), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        return self.prepare([body])

    def send(self, prepared: Prepared) -> Request:
        return _request(self._send, prepared.data)

    def receive(self, count: int, wait_s: float = 0) -> Request:
        fields: dict[str, float] = {"maxMessages": count, "visibilityTimeoutSeconds": 600}
        if wait_s:
            fields["waitSeconds"] = wait_s
        return _request(self._receive, self._encode(fields))

    def receipts(self, answer: bytes) -> list[bytes]:
        self.check(answer)
        return _RECEIPT.findall(answer)

    def delete(self, receipts: list[bytes]) -> Request:
        return _request(self._ack, self._encode({"receiptHandles": [receipt.decode() for receipt in receipts]}))

    def delete_one(self, receipt: bytes) -> Request:
        return self.delete([receipt])

    def check(self, answer: bytes) -> None:
        if not answer.startswith(_OK) or b"\xa5error\x84" in answer:
            raise BenchError(answer[:600].decode(errors="replace"))


def _request(head: bytes, body: bytes) -> Request:
    return b"%b%d\r\n\r\n%b" % (head, len(body), body), 1
