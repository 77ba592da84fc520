"""Requests between nodes: HTTP with a MessagePack body over persistent connections, signed (signing.py).

The signing key is the cluster's secret.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl as tls
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from batonq.errors import BatonError, Unavailable
from batonq.node.cluster import signing
from batonq.node.cluster.signing import CHALLENGE_HEADER, STAMP_HEADER, Signer
from batonq.node.routing import wire

PREFIX = "/internal/"
CALL_HEADER = "x-baton-call"
SIGNATURE_HEADER = signing.SIGNATURE_HEADER
STAMPS_MAX = 3  # how often a call is stamped again because its stamp was refused
CONNECT_S = 2.0
IDLE_MAX = 64  # idle connections kept per node
HEAD_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 64 << 20
REPEATABLE = ("read", "history")  # questions to a node that may be asked twice
UNIX = "unix:"  # an address on this machine: unix:/path/of/a/socket
UNIX_PATH_MAX = 100  # the system allows a few more
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*(?:\r|$)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*(?:\r|$)", re.IGNORECASE)
_CHALLENGE = re.compile(rb"\r\n%b:[ \t]*([^\r\n]*)" % CHALLENGE_HEADER.encode(), re.IGNORECASE)


class NotSent(Unavailable):
    """The other node could not be reached. Nothing of the call was written to any connection."""


class NoAnswer(Unavailable):
    """The call was written, at least in part, and got no answer. It may have been executed, or may still be."""


class ClosedUnanswered(NoAnswer):
    """A kept connection closed before a byte of the answer arrived: most often it was closed while it was idle."""


class Asking(Protocol):
    """How a node asks another."""

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        """Raises NotSent, NoAnswer, or the error that the other node answered with."""

    def close(self) -> None: ...


class OtherNodes:
    """The other nodes of a cluster, or the other processes of a server, for questions about themselves. `addresses`
    returns the address of each by its name; empty: it cannot be asked now.
    """

    def __init__(self, peers: Asking, addresses: Callable[[], Mapping[str, str]]) -> None:
        self._peers = peers
        self._addresses = addresses

    def names(self) -> list[str]:
        return sorted(self._addresses())

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        """Raises NotSent, NoAnswer, or the error that the other node answered with."""
        address = self._addresses().get(name)
        if not address:
            raise NotSent(f"{name} is not running at the moment; it may be restarting.")
        path = f"{PREFIX}node/{command}"
        try:
            return await self._peers.ask(address, path, "", body, timeout_s)
        except ClosedUnanswered:
            if command not in REPEATABLE:
                raise
        return await self._peers.ask(address, path, "", body, timeout_s)


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A socket path that is short enough for the system, however long its directory's path is."""
    if len(os.fsencode(path)) <= UNIX_PATH_MAX:
        yield path
        return
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


class _Answer(NamedTuple):
    status: int
    body: bytes
    challenge: str
    goes_on: bool  # another request may follow on the same connection


class _Broken(Exception):
    """No answer came over a connection. `silent`: the connection was closed before a byte of the answer arrived."""

    def __init__(self, why: str, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent


class _Line(asyncio.Protocol):
    """A connection to another node, with one request at a time."""

    __slots__ = ("_answer", "_head", "_loop", "_missing", "_parts", "_timer", "_transport", "is_open")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[_Answer] | None = None  # that a caller waits for
        self._timer: asyncio.TimerHandle | None = None
        self._head = b""  # of the answer, as far as it was received
        self._missing = -1  # bytes of the body; -1: the head is not complete
        self._parts: list[bytes] = []  # of the body
        self.is_open = False

    async def ask(self, head: bytes, body: bytes, timeout_s: float) -> _Answer:
        """Raises _Broken."""
        answer: asyncio.Future[_Answer] = self._loop.create_future()
        self._answer = answer
        self._head, self._missing, self._parts = b"", -1, []
        self._timer = self._loop.call_later(timeout_s, self._fail, "TimeoutError")
        self._transport.writelines((head, body))
        try:
            return await answer
        finally:
            self._timer.cancel()
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def _fail(self, why: str, silent: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Broken(why, silent))

    # --- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.is_open = True

    def eof_received(self) -> None:
        self.is_open = False
        self._fail("the connection was closed", silent=not self._head)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        why = "the connection was closed" if error is None else str(error) or type(error).__name__
        self._fail(why, silent=not self._head)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nothing was asked
            return
        if self._missing < 0:
            self._head += data
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > HEAD_BYTES_MAX:
                    self._fail("the head of the response is too large")
                return
            data = self._head[end + len(_HEAD_END) :]
            self._head = self._head[:end]
            length = _LENGTH.search(self._head)
            self._missing = -1 if length is None else int(length[1])
            if not 0 <= self._missing <= ANSWER_BYTES_MAX:
                self._fail("the response has no Content-Length")
                return
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            self._end(self._answer)

    def _end(self, answer: asyncio.Future[_Answer]) -> None:
        head = self._head
        if self._missing or not head[9:12].isdigit():
            self._fail("the response is not valid")
            return
        status = int(head[9:12])
        challenge = _CHALLENGE.search(head) if status == 401 else None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        told = "" if challenge is None else challenge[1].decode("latin-1")
        answer.set_result(_Answer(status, body, told, self.is_open and _CLOSE.search(head) is None))


class Peers:
    """`context` says which certificates to trust for https; without it, the system's authorities are trusted."""

    def __init__(
        self,
        secret: bytes = b"",
        context: tls.SSLContext | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.context = context
        self._signer = Signer(secret, random_bytes) if secret else None
        self._idle: dict[str, list[_Line]] = {}

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        """Raises NotSent, NoAnswer, or the error that the other node answered with.

        A call that may have been read is written once. This side cannot tell whether a kept connection was closed
        before the other node had read the call or after it had executed it. So both are NoAnswer; routing.py decides
        when to repeat a call. Only a call whose stamp was refused is sent again here, because it was not executed.
        """
        for _ in range(STAMPS_MAX):
            stamp, signature = self._sign(address, path, call, body)
            answer = await self._talk(address, _head(address, path, call, len(body), stamp, signature), body, timeout_s)
            if answer.status == 200:
                return answer.body
            if not answer.challenge or self._signer is None:
                raise _problem(answer)
            if not self._signer.learn(address, answer.challenge, signature, self._now_s()):
                raise NotSent(f"{address} refused the request. It is not a node with the same cluster secret.")
        raise NotSent(f"{address} refused the request {STAMPS_MAX} times because of its timestamp.")

    def _sign(self, address: str, path: str, call: str, body: bytes) -> tuple[str, str]:
        return ("", "") if self._signer is None else self._signer.sign(address, path, call, body, self._now_s())

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _kept_line(self, address: str) -> _Line | None:
        idle = self._idle.get(address)
        while idle:
            line = idle.pop()
            if line.is_open:
                return line
            line.close()
        return None

    async def _connect(self, address: str) -> _Line:
        if address.startswith(UNIX):
            return await self._connect_here(address)
        context = None
        if address.startswith("https://"):
            context = self.context = self.context or tls.create_default_context()
        try:
            parts = urlsplit(address)
            async with asyncio.timeout(CONNECT_S):
                loop = asyncio.get_running_loop()
                port = parts.port or (443 if context else 80)
                return (await loop.create_connection(lambda: _Line(loop), parts.hostname or "", port, ssl=context))[1]
        except (OSError, TimeoutError, ValueError) as problem:  # ValueError: no valid host or port
            raise NotSent(f"{address} cannot be reached: {str(problem) or type(problem).__name__}") from None

    @staticmethod
    async def _connect_here(address: str) -> _Line:
        try:
            async with asyncio.timeout(CONNECT_S):
                loop = asyncio.get_running_loop()
                with short_path(address.removeprefix(UNIX)) as path:
                    return (await loop.create_unix_connection(lambda: _Line(loop), path))[1]
        except (OSError, TimeoutError) as problem:
            raise NotSent(f"{address} cannot be reached: {str(problem) or type(problem).__name__}") from None

    async def _talk(self, address: str, head: bytes, body: bytes, timeout_s: float) -> _Answer:
        kept = self._kept_line(address)
        line = kept or await self._connect(address)
        goes_on = False
        try:
            answer = await line.ask(head, body, timeout_s)
            goes_on = answer.goes_on
        except _Broken as problem:
            text = f"{address} did not answer: {problem}"
            raise (ClosedUnanswered if kept and problem.silent else NoAnswer)(text) from None
        finally:
            if not goes_on:
                line.close()
        if goes_on:
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_MAX:
                idle.append(line)
            else:
                line.close()
        return answer

    def close(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.close()
        self._idle.clear()


@lru_cache(maxsize=1_024)
def _host(address: str) -> str:
    """The header Host. Raises NotSent."""
    try:
        host = urlsplit(address).netloc or "localhost"
        host.encode("latin-1")
    except ValueError as problem:
        raise NotSent(f"{address} is not a valid address: {problem}") from None
    return host


def _head(address: str, path: str, call: str, length: int, stamp: str, signature: str) -> bytes:
    signed = f"{STAMP_HEADER}: {stamp}\r\n{SIGNATURE_HEADER}: {signature}\r\n" if signature else ""
    return (
        f"{signing.METHOD} {path} HTTP/1.1\r\nHost: {_host(address)}\r\nContent-Type: {wire.CONTENT_TYPE}\r\n"
        f"Content-Length: {length}\r\n{CALL_HEADER}: {call}\r\n{signed}\r\n"
    ).encode("latin-1")


def _problem(answer: _Answer) -> BatonError:
    problem = wire.decode_problem(answer.body)
    return Unavailable(problem.message) if type(problem) is BatonError and answer.status == 503 else problem
