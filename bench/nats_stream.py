"""NATS JetStream as a durable queue, by the raw protocol: PUB, a pull consumer, and confirmed acknowledgements.

It uses the installed `nats-server` (2.10 or newer: older ones cannot sync each message). The stream is a work queue on
files, with `sync_interval: always`. A batch of sends is several PUBs in one write, each with its own response; a
receive is one pull request; a batch of deletes is several `+ACK`s, each with a response.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.clients import BenchError, Request, connect, exchange
from bench.flows import Prepared

_CONFIG = """
listen: "127.0.0.1:{port}"
ping_interval: "1h"
jetstream {{ store_dir: "{directory}/jetstream", sync_interval: always }}
"""
_INBOX = b"_INBOX.bench"
_DELIVERED = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\n")
_NOTHING = b"NATS/1.0 4"
HELLO: Request = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nSUB %b 1\r\nPING\r\n' % _INBOX,
    0,
)


def installed() -> str | None:
    """The server of the development requirements, or one on the PATH."""
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    return beside or shutil.which("nats-server")


def server_command(port: int, directory: Path) -> list[str]:
    config = directory / "nats.conf"
    config.write_text(_CONFIG.format(port=port, directory=directory))
    return [installed() or "nats-server", "-c", str(config)]


def is_ready(port: int) -> bool:
    try:
        with connect(port) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def publish(subject: bytes, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, _INBOX, len(body), body)


def complete(data: bytes, answers: int) -> bool:
    """Whether all responses have arrived: as many MSGs as requested, the last one
    complete. No responses: the greeting.
    """
    if not answers:
        return data.endswith(b"PONG\r\n")
    data = data.replace(b"PING\r\n", b"")  # the server sends one PING early; nobody waits for the answer
    if not data.endswith(b"\r\n"):
        return False
    if _NOTHING in data:
        return data.endswith(b"\r\n\r\n\r\n")
    if data.count(b"\r\nMSG ") + data.startswith(b"MSG ") < answers:
        return False
    last = data.rfind(b"MSG ")
    line_end = data.find(b"\r\n", last)
    return line_end >= 0 and len(data) == line_end + 4 + int(data[last:line_end].rsplit(b" ", 1)[1])


class NatsStream:
    """One work-queue stream with one consumer, for one connection: the responses arrive in one inbox."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.hello = HELLO
        self._subject = name.encode()
        stream = {"name": name, "subjects": [name], "retention": "workqueue", "storage": "file", "num_replicas": 1}
        consumer = {"durable_name": "w", "ack_policy": "explicit", "ack_wait": 600 * 10**9, "max_ack_pending": 20_000}
        self._call(f"STREAM.CREATE.{name}", stream)
        self._call(f"CONSUMER.DURABLE.CREATE.{name}.w", {"stream_name": name, "config": consumer})

    def _call(self, what: str, value: dict[str, Any]) -> None:
        with connect(self.port) as connection:
            exchange(connection, complete, *HELLO)
            self.check(
                exchange(connection, complete, publish(f"$JS.API.{what}".encode(), json.dumps(value).encode()), 1)
            )

    def complete(self, data: bytes, answers: int) -> bool:
        return complete(data, answers)

    def prepare(self, bodies: Sequence[str]) -> Prepared:
        data = b"".join([publish(self._subject, body.encode()) for body in bodies])
        return Prepared(data, len(bodies), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        return self.prepare([body])

    def send(self, prepared: Prepared) -> Request:
        return prepared.data, prepared.messages

    def receive(self, count: int, wait_s: int = 0) -> Request:
        wanted = json.dumps({"batch": count, "no_wait": True}).encode()
        return publish(b"$JS.API.CONSUMER.MSG.NEXT.%b.w" % self._subject, wanted), count

    def receipts(self, answer: bytes) -> list[bytes]:
        return _DELIVERED.findall(answer)

    def delete(self, receipts: list[bytes]) -> Request:
        return b"".join([publish(receipt, b"+ACK") for receipt in receipts]), len(receipts)

    def delete_one(self, receipt: bytes) -> Request:
        return self.delete([receipt])

    def check(self, answer: bytes) -> None:
        if b'"error":' in answer or b"-ERR" in answer or b"NATS/1.0 503" in answer:
            raise BenchError(answer[:300].decode(errors="replace"))
