"""A real server process, and a plain client for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

STOP_TIMEOUT_S = 300
ANSWER_S = 300


class NotAnswered(Exception):
    """The server went away, or said that it cannot: nobody knows whether the request was done."""


class Unavailable(NotAnswered):
    """The server answered 503."""


def baton(*arguments: str, timeout_s: float = STOP_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = [sys.executable, "-m", "batonq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


class ServerProcess:
    """`baton serve` on a free port, started when this is made and has said that it serves."""

    def __init__(self, data: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", "--log-level", "debug", *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"},
        )
        self.events: list[dict[str, Any]] = []  # all that it has told
        self._unread: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._reading = threading.Thread(target=self._read, daemon=True)  # a full pipe would stop the server
        self._reading.start()
        self.url = ""
        while not self.url:
            event = self.next_event()
            if event is None:
                self.process.wait(STOP_TIMEOUT_S)
                raise AssertionError(f"the server did not start: {self.events}")
            if event.get("event") == "serving":
                self.url = event["url"]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                event = {"event": "unexpected output", "text": line}
            self.events.append(event)
            self._unread.put(event)
        self._unread.put(None)

    def next_event(self) -> dict[str, Any] | None:
        """Wait for what the server tells next; None when it has ended."""
        return self._unread.get()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._end()

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(STOP_TIMEOUT_S)
        self._reading.join(STOP_TIMEOUT_S)
        assert not self._reading.is_alive(), "somebody still has its standard error: a process is left behind"
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


class Client:
    """SQS over JSON on one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_S)

    def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        try:
            self._connection.request("POST", "/", json.dumps(fields), headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as problem:
            raise NotAnswered(str(problem)) from None
        if response.status == 503:
            raise Unavailable(data.decode())
        assert response.status == 200, (response.status, data)
        answer: dict[str, Any] = json.loads(data or b"{}")
        return answer

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        status, data = self.get_bytes(path, headers)
        return status, data.decode()

    def get_bytes(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        self._connection.request("GET", path, headers=headers or {})
        response = self._connection.getresponse()
        return response.status, response.read()

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, Any]:
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._connection.request("POST", path, json.dumps(body), sent)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def advance(self, seconds: float) -> None:
        status, answer = self.post("/_baton/clock/advance", {"seconds": seconds})
        assert status == 200, answer

    def close(self) -> None:
        self._connection.close()
