"""A well-behaved REST client on one connection, signed where the server wants it. It never retries."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import suppress
from typing import Any

from batonq.client.signing import Signer
from tests.fuzz.server import FuzzedServer, Key, Profile

ANSWER_S = 30.0


class Refused(AssertionError):
    """The server answered with an error."""


class Asker:
    """`account`: in development, where a key of twelve digits is an account of its own."""

    def __init__(self, server: FuzzedServer, address: str, account: str = "") -> None:
        self._port = server.port
        self._context: ssl.SSLContext | None = server.context
        self._address = address
        self._account = account
        key: Key | None = None if server.profile is Profile.DEVELOPMENT else server.key
        self._signer = Signer(key.id, key.secret) if key is not None else None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.requests = 0
        self.slowest_ms = 0.0  # of all answers

    async def good(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = await self.ask(method, path, body)
        if status not in (200, 201, 202, 204):
            raise Refused(f"{method} {path} was answered with {status}: {answer}")
        return answer

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        host = f"127.0.0.1:{self._port}"
        headers = [("Host", host), ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        if self._signer is not None:
            headers += self._signer.headers(method, host, path, data)
        elif self._account:
            headers.append(("Authorization", f"AWS4-HMAC-SHA256 Credential={self._account}/x"))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        began_s = time.monotonic()
        async with asyncio.timeout(ANSWER_S):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(
                    "127.0.0.1", self._port, local_addr=(self._address, 0), ssl=self._context
                )
            self._writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
            answer = await self._reader.readexactly(length)
        self.requests += 1
        self.slowest_ms = max(self.slowest_ms, (time.monotonic() - began_s) * 1e3)
        return int(lines[0].split()[1]), json.loads(answer) if answer else None

    async def close(self) -> None:
        """At once, and until nothing of the connection is left in this loop."""
        if self._writer is not None:
            self._writer.transport.abort()
            with suppress(OSError):
                await self._writer.wait_closed()
