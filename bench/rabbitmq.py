"""A RabbitMQ quorum queue as a durable queue, by raw AMQP 0-9-1: publishes with confirms, a consumer with a prefetch.

It uses the installed `rabbitmq-server`. A quorum queue of one member writes and syncs each message to its write-ahead
log before it confirms. A batch of sends is several publishes in one write, and ends when all are confirmed; the
consumer's prefetch is the batch; a batch of deletes is one acknowledgement of all up to the last. AMQP does not answer
an acknowledgement: a command after it (`basic.qos`) shows that it was received, not that it is on disk.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.clients import BenchError, Complete, Request, connect, exchange
from bench.flows import Prepared
from bench.servers import free_port

_PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)  # Debian's command on the PATH switches to another user
_QOS_OK, _ACK, _NACK, _DELIVER = (60, 11), (60, 80), (60, 120), (60, 60)
_DECLARE_OK = (50, 11)
_CLOSES = ((10, 50), (20, 40))


def installed() -> str | None:
    return next((place for place in _PLACES if os.access(place, os.X_OK)), None) or shutil.which("rabbitmq-server")


def environment(port: int, directory: Path) -> dict[str, str]:
    """A separate node, with all its files in one directory."""
    return {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),  # otherwise 20,000 above the other port, which may be too high
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
    }


def server_command(port: int, directory: Path) -> list[str]:
    settings = [f"{name}={value}" for name, value in environment(port, directory).items()]
    return ["env", *settings, installed() or "rabbitmq-server"]


def is_ready(port: int) -> bool:
    try:
        with connect(port) as connection:
            exchange(connection, _until(_QOS_OK), _greeting(1), 1)
    except (OSError, BenchError):
        return False
    return True


# --- frames -----------------------------------------------------------------------------------


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _method(channel: int, name: tuple[int, int], arguments: bytes) -> bytes:
    return _frame(1, channel, struct.pack(">HH", *name) + arguments)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _qos(prefetch: int) -> bytes:
    return _method(1, (60, 10), struct.pack(">IHB", 0, prefetch, 0))


def _greeting(prefetch: int) -> bytes:
    """The whole handshake of a client in one write: nothing of it depends on a response."""
    return (
        b"AMQP\x00\x00\x09\x01"
        + _method(0, (10, 11), _long(b"") + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US"))
        + _method(0, (10, 31), struct.pack(">HIH", 10, 131_072, 0))
        + _method(0, (10, 40), _short(b"/") + _short(b"") + b"\0")
        + _method(1, (20, 10), _short(b""))
        + _method(1, (85, 10), b"\0")
        + _qos(prefetch)
    )


def _methods(data: bytes) -> Iterator[tuple[tuple[int, int], bytes, int]]:
    """Each complete method with its arguments, and where it ends with its content; an incomplete one ends the
    iteration.
    """
    at = 0
    while at + 7 <= len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        end = at + 7 + size + 1
        if end > len(data):
            return
        if kind == 1:
            name: tuple[int, int] = struct.unpack_from(">HH", data, at + 7)
            arguments = data[at + 11 : end - 1]
            if name == _DELIVER:
                end = _behind_content(data, end)
                if end < 0:
                    return
            yield name, arguments, end
        at = end


def _behind_content(data: bytes, at: int) -> int:
    """The end of the header and body frames that begin here, or -1."""
    if at + 7 > len(data):
        return -1
    (size,) = struct.unpack_from(">I", data, at + 3)
    if at + 7 + size + 1 > len(data):
        return -1
    (left,) = struct.unpack_from(">Q", data, at + 11)
    at += 7 + size + 1
    while left > 0:
        if at + 7 > len(data):
            return -1
        (size,) = struct.unpack_from(">I", data, at + 3)
        at += 7 + size + 1
        left -= size
    return at if at <= len(data) else -1


def _until(wanted: tuple[int, int]) -> Complete:
    """Whether a response has arrived; raises BenchError if the server closes instead."""

    def complete(data: bytes, _answers: int) -> bool:
        names = [name for name, _, _ in _methods(data)]
        if any(name in _CLOSES for name in names):
            raise BenchError(data[:300].decode(errors="replace"))
        return wanted in names

    return complete


# --- the work ---------------------------------------------------------------------------------


class QuorumQueue:
    """One quorum queue, for one connection at a time: confirms and deliveries are numbered per connection."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self._name = name.encode()
        self._published = self._confirmed = 0  # on this connection
        self._waits_for = "greeting"
        self._wanted = 0
        self._consuming = False
        self._rest = b""  # deliveries that arrived with another response
        arguments = _short(b"x-queue-type") + b"S" + _long(b"quorum")
        declare = _method(1, (50, 10), b"\0\0" + _short(self._name) + b"\x02" + _long(arguments))
        with connect(port) as connection:
            exchange(connection, _until(_DECLARE_OK), _greeting(1) + declare, 1)

    @property
    def hello(self) -> Request:
        """A new connection starts counting from the beginning."""
        self._published = self._confirmed = 0
        self._consuming, self._rest, self._waits_for = False, b"", "greeting"
        return _greeting(1), 1

    def complete(self, data: bytes, answers: int) -> bool:
        if self._waits_for == "sends":
            return self._all_confirmed(data)
        if not _until(_QOS_OK)(data, answers):
            return False
        return self._waits_for != "deliveries" or len(self._tags(self._rest + data)) >= self._wanted

    def _all_confirmed(self, data: bytes) -> bool:
        """Confirms may arrive out of order; one with `multiple` covers all before it."""
        confirmed: set[int] = set()
        for name, arguments, _ in _methods(data):
            if name in (_NACK, *_CLOSES):
                raise BenchError("a publish was refused")
            if name == _ACK:
                tag, multiple = struct.unpack(">QB", arguments)
                confirmed.update(range(self._confirmed + 1, tag + 1) if multiple else (tag,))
        if len(confirmed) < self._published - self._confirmed:
            return False
        self._confirmed = self._published
        return True

    @staticmethod
    def _tags(data: bytes) -> list[int]:
        tags = []
        for name, arguments, _ in _methods(data):
            if name == _DELIVER:
                tags.append(struct.unpack_from(">Q", arguments, 1 + arguments[0])[0])
        return tags

    def prepare(self, bodies: Sequence[str]) -> Prepared:
        publish = _method(1, (60, 40), b"\0\0" + _short(b"") + _short(self._name) + b"\0")
        parts = []
        for body in bodies:
            data = body.encode()
            header = struct.pack(">HHQHB", 60, 0, len(data), 0x1000, 2)  # delivery mode 2: durable
            parts.append(publish + _frame(2, 1, header) + _frame(3, 1, data))
        return Prepared(b"".join(parts), len(parts), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        return self.prepare([body])

    def send(self, prepared: Prepared) -> Request:
        self._published += prepared.messages
        self._waits_for = "sends"
        return prepared.data, 1

    def receive(self, count: int, wait_s: int = 0) -> Request:
        self._waits_for, self._wanted = "deliveries", count
        if self._consuming:
            return _qos(count), 1
        self._consuming = True
        consume = _method(1, (60, 20), b"\0\0" + _short(self._name) + _short(b"bench") + b"\0" + _long(b""))
        return _qos(count) + consume, 1

    def receipts(self, answer: bytes) -> list[bytes]:
        answer, self._rest = self._rest + answer, b""
        return [b"%d" % tag for tag in self._tags(answer)]

    def delete(self, receipts: list[bytes]) -> Request:
        self._waits_for = "acknowledged"
        last = max(map(int, receipts))
        return _method(1, _ACK, struct.pack(">QB", last, 1)) + _qos(self._wanted), 1

    def delete_one(self, receipt: bytes) -> Request:
        return self.delete([receipt])

    def check(self, answer: bytes) -> None:
        """Data after an acknowledgement's response is the next deliveries; an incomplete one continues in the next
        response.
        """
        if self._waits_for == "acknowledged":
            self._rest = answer
