"""A plain client for the tests: no library between them and the wire."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import msgspec

from tests.support.server import TestServer

JSON = "application/json"
MSGPACK = "application/msgpack"
WAIT_S = 120


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        if not self.body:
            return None
        return msgspec.msgpack.decode(self.body) if "msgpack" in self.headers["content-type"] else json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a problem."""
        value = self.value
        assert self.headers["content-type"].startswith("application/problem+"), self
        assert value["status"] == self.status
        assert value["type"] == f"/problems/{value['code']}"
        assert value["title"] and value["detail"]
        return str(value["code"])


class Rest:
    """Calls one server as one account. `packed`: in MessagePack."""

    def __init__(self, server: TestServer, account: str, *, packed: bool = False) -> None:
        self.server = server
        self.account = account
        self.packed = packed
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=WAIT_S)

    def __call__(
        self,
        method: str,
        path: str,
        value: Any = None,
        headers: dict[str, str] | None = None,
        *,
        raw: bytes | None = None,
    ) -> Answer:
        body = raw if raw is not None else b"" if value is None else self.encode(value)
        head = {"Authorization": f"AWS4-HMAC-SHA256 Credential={self.account}/x"}
        if body:
            head["Content-Type"] = MSGPACK if self.packed else JSON
        elif self.packed:
            head["Accept"] = MSGPACK
        self.connection.request(method, path, body, {**head, **(headers or {})})
        response = self.connection.getresponse()
        return Answer(response.status, {name.lower(): text for name, text in response.getheaders()}, response.read())

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value) if self.packed else json.dumps(value).encode()

    def good(self, method: str, path: str, value: Any = None, **more: Any) -> Any:
        """The value of an answer that says yes."""
        answer = self(method, path, value, **more)
        assert 200 <= answer.status < 300, answer
        return answer.value

    # --- what most tests do

    def create(self, name: str = "queue", **spec: Any) -> str:
        """The address of a new queue."""
        self.good("POST", "/v1/queues", {"name": name, **spec})
        return f"/v1/queues/{name}"

    def send(self, queue: str, body: Any, **more: Any) -> dict[str, Any]:
        sent: dict[str, Any] = self.good("POST", f"{queue}/messages", {"body": body, **more})
        return sent

    def receive(self, queue: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        got: list[dict[str, Any]] = self.good("POST", f"{queue}/messages:receive", {"maxMessages": count, **more})[
            "messages"
        ]
        return got

    def stats(self, queue: str) -> dict[str, Any]:
        value: dict[str, Any] = self.good("GET", f"{queue}/stats")
        return value

    def close(self) -> None:
        self.connection.close()
