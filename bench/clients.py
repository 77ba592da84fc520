"""Load clients that are cheap compared with the servers they measure.

A flow is a generator for one connection: it yields a request with the number of expected responses, and is sent the
bytes of the whole response. `drive` runs many flows on one epoll loop, `drive_one` one flow on a blocking socket.
Requests are built in advance, and responses are searched, not parsed. Baton, the floor and Redis use the same drivers.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Callable, Generator, Iterable

Request = tuple[bytes, int]  # the bytes to send, and the number of expected responses
Flow = Generator[Request, bytes, None]
Complete = Callable[[bytes, int], bool]  # whether this is a whole response
Place = int | str | Callable[[], socket.socket]  # a local port, a Unix socket, or a function that connects

_RECEIVE_BYTES = 1 << 16
STALL_S = 60


class BenchError(Exception):
    """A contestant returned a response that is not valid for the work."""


def connect(place: Place) -> socket.socket:
    if callable(place):
        return place()
    if isinstance(place, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
        return connection
    connection = socket.create_connection(("127.0.0.1", place))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _Connection:
    __slots__ = ("answers", "chunks", "flow", "socket", "unsent")

    def __init__(self, socket_: socket.socket, flow: Flow) -> None:
        self.socket = socket_
        self.flow = flow
        self.chunks = b""
        self.unsent = b""
        self.answers = 0


def exchange(connection: socket.socket, complete: Complete, request: bytes, answers: int) -> bytes:
    """Send a request on a blocking socket and wait for its whole response; an empty request only waits."""
    if request:
        connection.sendall(request)
    data = connection.recv(_RECEIVE_BYTES)
    while not complete(data, answers):
        chunk = connection.recv(_RECEIVE_BYTES)
        if not chunk:
            raise BenchError("the server closed the connection")
        data += chunk
    return data


def drive_one(place: Place, complete: Complete, flow: Flow) -> float:
    """Run one flow on a blocking socket. Returns the elapsed seconds."""
    with connect(place) as connection:
        connection.settimeout(STALL_S)
        gc.disable()
        started = time.perf_counter()
        try:
            request, answers = next(flow)
            while True:
                data = exchange(connection, complete, request, answers)
                request, answers = flow.send(data)
        except StopIteration:
            return time.perf_counter() - started
        finally:
            gc.enable()


def drive(place: Place, complete: Complete, flows: Iterable[Flow]) -> float:
    """Run each flow on its own connection, all on this thread. Returns the seconds until the last one ended."""
    return drive_several([(place, flow) for flow in flows], complete)


def drive_several(flows: Iterable[tuple[Place, Flow]], complete: Complete) -> float:
    """The same with flows to different places."""
    poll = select.epoll()
    connections: dict[int, _Connection] = {}
    for place, flow in flows:
        connection = _Connection(connect(place), flow)
        connection.socket.setblocking(False)
        connections[connection.socket.fileno()] = connection
        poll.register(connection.socket, select.EPOLLIN)
    everyone = list(connections.values())
    gc.disable()
    started = time.perf_counter()
    try:
        for number, connection in list(connections.items()):
            if not _advance(poll, connection, None):
                del connections[number]
        while connections:
            events = poll.poll(STALL_S)
            if not events:
                raise BenchError(f"no answer for {STALL_S} s on {len(connections)} connections")
            for number, event in events:
                if not _ready(poll, connections[number], event, complete):
                    del connections[number]
        return time.perf_counter() - started
    finally:
        gc.enable()
        poll.close()
        for connection in everyone:
            connection.socket.close()


def _advance(poll: select.epoll, connection: _Connection, answer: bytes | None) -> bool:
    """Pass the response to the flow and send its next request. False: the flow has ended."""
    try:
        request, connection.answers = next(connection.flow) if answer is None else connection.flow.send(answer)
    except StopIteration:
        poll.unregister(connection.socket)
        return False
    sent = connection.socket.send(request)
    if sent < len(request):
        connection.unsent = request[sent:]
        poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
    return True


def _ready(poll: select.epoll, connection: _Connection, event: int, complete: Complete) -> bool:
    if event & select.EPOLLOUT and connection.unsent:
        sent = connection.socket.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            poll.modify(connection.socket, select.EPOLLIN)
    if not event & ~select.EPOLLOUT:
        return True
    chunk = connection.socket.recv(_RECEIVE_BYTES)
    if not chunk:
        raise BenchError("the server closed a connection")
    data = connection.chunks + chunk if connection.chunks else chunk
    if not complete(data, connection.answers):
        connection.chunks = data
        return True
    connection.chunks = b""
    return _advance(poll, connection, data)
