"""Requests from node to node: HTTP with a body in MessagePack, connections kept, signed with the cluster's secret."""

from __future__ import annotations

import asyncio
import hmac
import os
import ssl as tls
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from batonq.errors import BatonError, Unavailable
from batonq.node import wire

PREFIX = "/internal/"
CALL_HEADER = "x-baton-call"
SIGNATURE_HEADER = "x-baton-signature"
CONNECT_S = 2.0
IDLE_MAX = 64  # connections to one node that are kept without a request
HEAD_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 64 << 20
UNIX = "unix:"  # an address on this machine: unix:/path/of/a/socket
UNIX_PATH_MAX = 100  # the system takes a few more


class NotSent(Unavailable):
    """The other node could not be reached. Nothing of the call was written to any connection."""


class NoAnswer(Unavailable):
    """The call was written, at least in part, and got no answer. It may have run, or may run yet."""


class ClosedUnanswered(NoAnswer):
    """A kept connection ended before a byte of the answer came: most often it was closed while it was idle."""


def signature(secret: bytes, path: str, call: str, body: bytes) -> str:
    """What shows that a request is from a node of the same cluster."""
    mac = blake2b(key=blake2b(secret).digest(), digest_size=32)
    for part in (path.encode(), call.encode(), body):
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.hexdigest()


def is_signed(secret: bytes, path: str, call: str, body: bytes, given: str) -> bool:
    return hmac.compare_digest(signature(secret, path, call, body), given)


class Asking(Protocol):
    """How a node asks another."""

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        """Raises NotSent, NoAnswer, or the error that the other node answered with."""

    def close(self) -> None: ...


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A path of a socket that the system takes, however long its directory's is."""
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


class Peers:
    """`context` says whom to trust with https; without one, the system's authorities."""

    def __init__(self, secret: bytes = b"", context: tls.SSLContext | None = None) -> None:
        self.context = context
        self._secret = secret
        self._idle: dict[str, list[_Line]] = {}

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        """Raises NotSent, NoAnswer, or the error that the other node answered with.

        A call is written at most once. Nobody can tell here whether a kept connection was closed before the other
        node had read the call or after it had run it, so both are NoAnswer; routing.py knows when to call again.
        """
        idle = self._idle.setdefault(address, [])
        while idle:
            line = idle.pop()
            if not line.reader.at_eof() and not line.writer.is_closing():
                break
            line.writer.close()
        else:
            return await self._talk(address, await self._connect(address), False, path, call, body, timeout_s)
        return await self._talk(address, line, True, path, call, body, timeout_s)

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

    async def _talk(
        self, address: str, line: _Line, kept: bool, path: str, call: str, body: bytes, timeout_s: float
    ) -> bytes:
        signed = f"{SIGNATURE_HEADER}: {signature(self._secret, path, call, body)}\r\n" if self._secret else ""
        host = urlsplit(address).netloc or "localhost"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {wire.CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n{CALL_HEADER}: {call}\r\n{signed}\r\n"
        )
        goes_on = False
        try:
            async with asyncio.timeout(timeout_s):
                line.writer.write(head.encode() + body)
                status, answer, goes_on = await _read(line.reader)
        except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError) as problem:
            text = f"{address} did not answer: {str(problem) or type(problem).__name__}"
            raise (ClosedUnanswered if kept and _is_silent(problem) else NoAnswer)(text) from None
        finally:
            if not goes_on:
                line.writer.close()
        idle = self._idle.setdefault(address, [])
        if len(idle) < IDLE_MAX:
            idle.append(line)
        else:
            line.writer.close()
        if status == 200:
            return answer
        raise self._problem(status, answer)

    @staticmethod
    def _problem(status: int, answer: bytes) -> BatonError:
        problem = wire.decode_problem(answer)
        return Unavailable(problem.message) if type(problem) is BatonError and status == 503 else problem

    def close(self) -> None:
        for lines in self._idle.values():
            for line in lines:
                line.writer.close()
        self._idle.clear()


def _is_silent(problem: Exception) -> bool:
    """Whether a connection ended without a word."""
    if isinstance(problem, asyncio.IncompleteReadError):
        return not problem.partial
    return isinstance(problem, ConnectionError)


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status and body, and whether another request may follow."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].partition(" ")[2][:3])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if not 0 <= length <= ANSWER_BYTES_MAX:
        raise ValueError("the answer has no length")
    return status, await reader.readexactly(length), headers.get("connection", "").lower() != "close"
