"""Requests between nodes: HTTP with a MessagePack body over persistent connections, signed (signing.py).

The signing key is the cluster's secret.
"""

from __future__ import annotations

import asyncio
import os
import ssl as tls
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol
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
UNIX = "unix:"  # an address on this machine: unix:/path/of/a/socket
UNIX_PATH_MAX = 100  # the system allows a few more


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


class _Line(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Answer(NamedTuple):
    status: int
    body: bytes
    challenge: str
    goes_on: bool  # another request may follow on the same connection


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
            if not line.reader.at_eof() and not line.writer.is_closing():
                return line
            line.writer.close()
        return None

    async def _connect(self, address: str) -> _Line:
        if address.startswith(UNIX):
            return await self._connect_here(address)
        parts = urlsplit(address)
        context = None
        if parts.scheme == "https":
            context = self.context = self.context or tls.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_S):
                port = parts.port or (443 if context else 80)
                return _Line(*await asyncio.open_connection(parts.hostname, port, ssl=context, limit=HEAD_BYTES_MAX))
        except (OSError, TimeoutError) as problem:
            raise NotSent(f"{address} cannot be reached: {str(problem) or type(problem).__name__}") from None

    @staticmethod
    async def _connect_here(address: str) -> _Line:
        try:
            async with asyncio.timeout(CONNECT_S):
                with short_path(address.removeprefix(UNIX)) as path:
                    return _Line(*await asyncio.open_unix_connection(path, limit=HEAD_BYTES_MAX))
        except (OSError, TimeoutError) as problem:
            raise NotSent(f"{address} cannot be reached: {str(problem) or type(problem).__name__}") from None

    async def _talk(self, address: str, head: bytes, body: bytes, timeout_s: float) -> _Answer:
        kept = self._kept_line(address)
        line = kept or await self._connect(address)
        goes_on = False
        try:
            async with asyncio.timeout(timeout_s):
                line.writer.write(head + body)
                answer = await _read(line.reader)
                goes_on = answer.goes_on
        except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError) as problem:
            text = f"{address} did not answer: {str(problem) or type(problem).__name__}"
            raise (ClosedUnanswered if kept and _is_silent(problem) else NoAnswer)(text) from None
        finally:
            if not goes_on:
                line.writer.close()
        if goes_on:
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_MAX:
                idle.append(line)
            else:
                line.writer.close()
        return answer

    def close(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.writer.close()
        self._idle.clear()


def _is_silent(problem: Exception) -> bool:
    """Whether a connection closed without any answer."""
    if isinstance(problem, asyncio.IncompleteReadError):
        return not problem.partial
    return isinstance(problem, ConnectionError)


def _head(address: str, path: str, call: str, length: int, stamp: str, signature: str) -> bytes:
    host = urlsplit(address).netloc or "localhost"
    signed = f"{STAMP_HEADER}: {stamp}\r\n{SIGNATURE_HEADER}: {signature}\r\n" if signature else ""
    return (
        f"{signing.METHOD} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {wire.CONTENT_TYPE}\r\n"
        f"Content-Length: {length}\r\n{CALL_HEADER}: {call}\r\n{signed}\r\n"
    ).encode("latin-1")


def _problem(answer: _Answer) -> BatonError:
    problem = wire.decode_problem(answer.body)
    return Unavailable(problem.message) if type(problem) is BatonError and answer.status == 503 else problem


async def _read(reader: asyncio.StreamReader) -> _Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].partition(" ")[2][:3])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if not 0 <= length <= ANSWER_BYTES_MAX:
        raise ValueError("the response has no Content-Length")
    body = await reader.readexactly(length)
    goes_on = headers.get("connection", "").lower() != "close"
    return _Answer(status, body, headers.get(CHALLENGE_HEADER, "") if status == 401 else "", goes_on)
