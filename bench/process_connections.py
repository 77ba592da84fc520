"""Connections to a chosen process of a server with several.

All processes listen on one port, and the kernel gives each new connection to one of them. The client therefore connects
until the right process answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

from bench.clients import BenchError
from bench.clusters import ask_status
from bench.sqs import SqsQueue

_TRIES = 1_000


def connections(queue: SqsQueue, count: int, *, to_owner: bool) -> Callable[[], socket.socket]:
    """Open connections to the process that owns the queue's shard, or to others. Returns a function that gives one
    after another.
    """
    found: list[socket.socket] = []
    for _ in range(_TRIES):
        connection = HTTPConnection("127.0.0.1", queue.port, timeout=60)
        connection.connect()
        opened, status = connection.sock, ask_status(connection)
        if (status["node"] == _owner(status, queue)) == to_owner:
            found.append(opened)
        else:
            connection.close()
        if len(found) == count:
            return found.pop
    for opened in found:
        opened.close()
    raise BenchError(f"{_TRIES} connections did not reach the process that was wanted")


def _owner(status: dict[str, Any], queue: SqsQueue) -> str:
    name = queue.url.rpartition("/")[2]
    shard = next(each["shard"] for each in status["queues"] if each["name"] == name)
    return next(str(each["owner"]) for each in status["shards"] if each["shard"] == shard)
