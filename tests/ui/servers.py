"""Real servers for the browser: `baton serve` in a process of its own, and a plain client for REST and SQS."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.system.process import ServerProcess

WAIT_S = 300
T = TypeVar("T")


def wait_for(read: Callable[[], T]) -> T:
    """The first value that is true."""
    end = time.monotonic() + WAIT_S
    while not (value := read()):
        assert time.monotonic() < end, f"still {value!r} after {WAIT_S} s"
        time.sleep(0.02)
    return value


class UiServer(ServerProcess):
    """A server that may be secured."""

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, *flags)
        self.data = data

    @property
    def token(self) -> str:
        """The admin token."""
        return (self.data / "admin-token").read_text().strip()

    @property
    def rest(self) -> Rest:
        """A client with the admin token."""
        return Rest(self.url, {"Authorization": f"Bearer {self.token}"})


class Rest:
    """Calls a server, one connection per call."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port, self._headers = parts.hostname, parts.port, headers or {}

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def __call__(self, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None) -> Any:
        """The value of the answer; an error fails the test."""
        body = b"" if value is None else json.dumps(value).encode()
        kind = {"Content-Type": "application/json"} if body else {}
        status, answer = self.send(method, path, body, {**kind, **(headers or {})})
        assert 200 <= status < 300, (method, path, status, answer[:1000])
        return json.loads(answer) if answer else None

    def sqs(self, operation: str, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        kind = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        answer: dict[str, Any] = self("POST", "/", fields, {**kind, **(headers or {})})
        return answer
