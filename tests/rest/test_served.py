"""REST of a real server process: mounted, counted, and its promises kept when the process is killed."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.system.process import ServerProcess


def ask(
    server: ServerProcess, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    address = urlsplit(server.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    try:
        body = b"" if value is None else json.dumps(value).encode()
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(text) if is_json else text.decode()
    finally:
        connection.close()


def test_it_is_served_and_counted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert ask(server, "POST", "/v1/queues", {"name": "q"})[0] == 201
        assert ask(server, "POST", "/v1/queues/q/messages", {"body": 1})[0] == 202
        assert ask(server, "GET", "/v1/queues/missing")[0] == 404
        status, page = ask(server, "GET", "/v1/docs")
        assert status == 200 and "/v1/queues" in page
        _, metrics = ask(server, "GET", "/metrics")
        assert 'baton_rest_calls_total{operation="sendMessage"} 1' in metrics
        assert 'baton_rest_errors_total{code="queue_does_not_exist"} 1' in metrics


def test_a_killed_server_keeps_keys_and_leases(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "6d096e2f"}
    batch = {"messages": [{"body": {"n": number}} for number in range(5)]}
    with ServerProcess(tmp_path) as server:
        ask(server, "POST", "/v1/queues", {"name": "q"})
        first = ask(server, "POST", "/v1/queues/q/messages:batch", batch, key)
        _, got = ask(server, "POST", "/v1/queues/q/messages:receive", {"maxMessages": 2})
        server.kill()
    with ServerProcess(tmp_path) as server:
        assert ask(server, "POST", "/v1/queues/q/messages:batch", batch, key) == first
        _, stats = ask(server, "GET", "/v1/queues/q/stats")
        assert (stats["sent"], stats["inFlight"]) == (5, 2)
        handles = [message["receiptHandle"] for message in got["messages"]]
        assert ask(server, "POST", "/v1/queues/q/messages:ack", {"receiptHandles": handles}) == (
            200,
            {"results": [{}, {}]},
        )
