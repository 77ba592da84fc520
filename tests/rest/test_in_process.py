"""The application without a server: requests in, answers out, as `batonq.open` uses it."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from batonq.api.http import Request
from batonq.api.rest import RestApp, receiving
from batonq.api.sqs import SqsApp, SqsSettings
from batonq.core.commands import Send
from batonq.node.node import Node
from batonq.node.settings import Settings
from tests.api.raw import until
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
        await until(lambda: node.shards[0].host().polls.waiting(queue.number) == 1)
        assert request.cancellable
        waiting.cancel()
        await asyncio.wait([waiting])
        await ask(app, "POST", "/v1/queues/q/messages", {"body": 1})
        _, got = await ask(app, "POST", "/v1/queues/q/messages:receive", {})
        assert got["messages"][0]["receiveCount"] == 1
        await node.stop()

    asyncio.run(work())


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_client_that_leaves_before_its_answer_takes_no_message(tmp_path: Path, turns: int) -> None:
    """Before the message is leased, while the lease is written, or when the answer is ready."""

    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        app = RestApp(node.broker)
        await ask(app, "POST", "/v1/queues", {"name": "q"})
        await ask(app, "POST", "/v1/queues/q/messages", {"body": 1})
        going = asyncio.create_task(app.handle(Request("POST", "/v1/queues/q/messages:receive", body=b"{}")))
        for _ in range(turns):
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.wait([going])
        if going.cancelled():
            _, got = await ask(app, "POST", "/v1/queues/q/messages:receive", {"waitSeconds": 20})
            assert got["messages"][0]["receiveCount"] == 1
        else:
            assert b"receiptHandle" in going.result().body
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
            real = receiving.packed_body

            def packed_body(*given: Any) -> Any:
                receive.cancel()
                return real(*given)

            monkeypatch.setattr(receiving, "packed_body", packed_body)
            with pytest.raises(asyncio.CancelledError):
                await receive
            queue = node.broker.queue(ACCOUNT, "q").number
            await until(lambda: node.shards[0].host().counters(queue).in_flight == 0)  # when the answer is made
            _, stats = await ask(app, "GET", "/v1/queues/q/stats")
            assert (stats["visible"], stats["inFlight"]) == (3, 0)
        finally:
            await node.stop()

    asyncio.run(work())


REFUSED = {
    "a receipt that is none": ("/v1/queues/q/messages/garbage:ack", b""),
    "no such queue": ("/v1/queues/none/messages", b'{"body":1}'),
    "too large": ("/v1/queues/q/messages", b'{"body":"%b"}' % (b"x" * 1_100_000)),
    "not as it must be": ("/v1/queues/q/messages", b'{"body":1,"priority":256}'),
    "full": ("/v1/queues/full/messages", b'{"body":1}'),
    "an entry": ("/v1/queues/q/messages:batch", b'{"messages":[{"body":1,"delaySeconds":-1},{"body":[]}]}'),
    "entries": ("/v1/queues/q/messages:batch", b'{"messages":[{"body":"%b"},{"body":[]}]}' % (b"x" * 1_100_000)),
    "receipts that are none": ("/v1/queues/q/messages:ack", b'{"receiptHandles":["a","b"]}'),
    "a form without a body": ("/", b"Action=SendMessage&QueueUrl=q"),
    "a form that is too large": ("/", b"Action=SendMessage&QueueUrl=q&MessageBody=%b" % (b"x" * 1_100_000)),
    "a form for no queue": ("/", b"Action=SendMessage&QueueUrl=none&MessageBody=x"),
    "a form with no receipt": ("/", b"Action=DeleteMessage&QueueUrl=q&ReceiptHandle=garbage"),
    "a form with wrong entries": (
        "/",
        b"Action=ChangeMessageVisibilityBatch&QueueUrl=q&ChangeMessageVisibilityBatchRequestEntry.1.Id=a",
    ),
    "a form for a full queue": ("/", b"Action=SendMessage&QueueUrl=full&MessageBody=x"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_request_is_kept_by_nothing(tmp_path: Path, kind: str) -> None:
    """It may be large: its memory is free once it is answered, and not when garbage is collected."""
    path, body = REFUSED[kind]

    async def work() -> None:
        node = Node(settings(tmp_path))
        await node.start()
        rest, sqs = RestApp(node.broker), SqsApp(node.broker, SqsSettings(account=ACCOUNT))
        await ask(rest, "POST", "/v1/queues", {"name": "q"})
        await ask(rest, "POST", "/v1/queues", {"name": "full", "maxMessages": 1})
        await ask(rest, "POST", "/v1/queues/full/messages", {"body": 1})
        gc.collect()
        gc.disable()
        try:
            response = await (sqs if path == "/" else rest).handle(Request("POST", path, body=body))
            assert 400 <= response.status < 500 or b"error" in response.body or b"Error" in response.body
            await asyncio.sleep(0)
            assert not [one for one in gc.get_objects() if isinstance(one, Request | Send)]
        finally:
            gc.enable()
        await node.stop()

    asyncio.run(work())
