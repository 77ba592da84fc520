"""The application without a server: requests in, answers out, as `batonq.open` uses it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from batonq.api.http import Request
from batonq.api.rest import RestApp, receiving
from batonq.node.node import Node
from batonq.node.settings import Settings
from tests.support.server import ACCOUNT


def settings(data: Path) -> Settings:
    return Settings(data=str(data), account=ACCOUNT)


async def ask(app: RestApp, method: str, target: str, value: Any = None, headers: Any = None) -> tuple[int, Any]:
    path, _, query = target.partition("?")
    body = b"" if value is None else json.dumps(value).encode()
    response = await app.handle(Request(method, path, query, headers or {}, body))
    return response.status, json.loads(response.body) if response.body else None


def test_it_needs_no_sockets(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        try:
            app = RestApp(node.broker)
            assert (await ask(app, "POST", "/v1/queues", {"name": "q"}))[0] == 201
            assert (await ask(app, "POST", "/v1/queues/q/messages", {"body": [1]}))[0] == 202
            _, got = await ask(app, "POST", "/v1/queues/q/messages:receive", {"waitSeconds": 1})
            assert got["messages"][0]["body"] == [1]
            status, problem = await ask(app, "POST", "/v1/queues/q/messages", {"body": "x" * 5_000_000})
            assert (status, problem["code"]) == (413, "too_large")
        finally:
            await node.stop()

    asyncio.run(work())


def test_a_retry_after_a_crash_makes_no_second_message(tmp_path: Path) -> None:
    """The answer was lost with the process; the request comes again with the same key, to the next one."""
    key = {b"idempotency-key": b"k"}
    message = {"body": {"n": 1}}
    batch = {"messages": [{"body": 1}, {"body": 2}]}

    async def first() -> list[Any]:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        await ask(app, "POST", "/v1/queues", {"name": "a"})
        await ask(app, "POST", "/v1/queues", {"name": "b"})
        answers = [
            await ask(app, "POST", "/v1/queues/a/messages", message, key),
            await ask(app, "POST", "/v1/queues/b/messages:batch", batch, key),
        ]
        await node.stop()
        return answers

    async def again() -> list[Any]:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        answers = [
            await ask(app, "POST", "/v1/queues/a/messages", message, key),
            await ask(app, "POST", "/v1/queues/b/messages:batch", batch, key),
        ]
        for name, sent in (("a", 1), ("b", 2)):
            _, stats = await ask(app, "GET", f"/v1/queues/{name}/stats")
            assert stats["sent"] == sent
        await node.stop()
        return answers

    assert asyncio.run(first()) == asyncio.run(again())


def test_the_same_request_many_times_at_once_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        await ask(app, "POST", "/v1/queues", {"name": "q"})
        key = {b"idempotency-key": b"k"}
        same = [ask(app, "POST", "/v1/queues/q/messages", {"body": 1}, key) for _ in range(20)]
        answers = await asyncio.gather(*same)
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][0] == 202
        _, stats = await ask(app, "GET", "/v1/queues/q/stats")
        assert (stats["sent"], stats["duplicates"]) == (1, 19)
        await node.stop()

    asyncio.run(work())


def test_a_client_that_leaves_while_it_waits_takes_no_message(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        await ask(app, "POST", "/v1/queues", {"name": "q"})
        request = Request("POST", "/v1/queues/q/messages:receive", body=b'{"waitSeconds":20}')
        waiting = asyncio.create_task(app.handle(request))
        queue = node.broker.queue(ACCOUNT, "q")
        await asyncio.sleep(0)  # it runs up to where it waits
        assert await node.broker.waiting(queue) == 1
        assert request.cancellable
        waiting.cancel()
        await asyncio.wait([waiting])
        await ask(app, "POST", "/v1/queues/q/messages", {"body": 1})
        _, got = await ask(app, "POST", "/v1/queues/q/messages:receive", {})
        assert got["messages"][0]["receiveCount"] == 1
        await node.stop()

    asyncio.run(work())


def test_a_client_that_leaves_before_its_answer_takes_no_message(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        await ask(app, "POST", "/v1/queues", {"name": "q"})
        await ask(app, "POST", "/v1/queues/q/messages", {"body": 1})
        going = asyncio.create_task(app.handle(Request("POST", "/v1/queues/q/messages:receive", body=b"{}")))
        await asyncio.sleep(0)  # the message is leased, and the lease is being written
        going.cancel()
        await asyncio.wait([going])
        _, got = await ask(app, "POST", "/v1/queues/q/messages:receive", {})
        assert got["messages"][0]["receiveCount"] == 1
        await node.stop()

    asyncio.run(work())


@pytest.mark.parametrize("several", [False, True])
def test_a_client_that_leaves_while_its_messages_are_put_into_messagepack_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Long JSON is put into MessagePack in several turns of the event loop; the client goes between two of them."""
    packed = {b"content-type": b"application/json", b"accept": b"application/msgpack"}
    target = "/v1/messages:receive" if several else "/v1/queues/q/messages:receive"
    wanted = {"queues": ["q"]} if several else {}

    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        try:
            app = RestApp(node.broker)
            await ask(app, "POST", "/v1/queues", {"name": "q"})
            for _ in range(3):
                await ask(app, "POST", "/v1/queues/q/messages", {"body": ["x" * receiving.TURN_BYTES]})
            request = Request("POST", target, "", packed, json.dumps(wanted).encode())
            receive = asyncio.create_task(app.handle(request))
            real = receiving.received

            def received(*given: Any, **more: Any) -> Any:
                receive.cancel()
                return real(*given, **more)

            monkeypatch.setattr(receiving, "received", received)
            with pytest.raises(asyncio.CancelledError):
                await receive
            _, stats = await ask(app, "GET", "/v1/queues/q/stats")
            assert (stats["visible"], stats["inFlight"]) == (3, 0)
        finally:
            await node.stop()

    asyncio.run(work())
