"""A receive that cannot be answered: the client is told so, in its own form, and the messages are the next one's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from batonq.core.payload import Content
from batonq.node.messages.receipts import Receipts
from tests.api.support import json_request, query_request, wait_until
from tests.rest.support import Rest
from tests.support import brokers
from tests.support.ask import Message

NOT_TEXT = (b"\xff\xfe", Content.TEXT)  # no client can have sent these
NOT_JSON = (b'{"a"', Content.JSON)


class Asking(NamedTuple):
    """One way to receive. `ask` returns the status, and what the error is called; `breaks_on` cannot be shown by it."""

    ask: Callable[[Rest, str], tuple[int, str]]
    breaks_on: tuple[bytes, Content]
    form: str  # of the error


def by_sqs_json(rest: Rest, queue: str, **more: Any) -> tuple[int, str]:
    given = {"QueueUrl": f"http://h/{rest.account}/{queue}", "MaxNumberOfMessages": 10, **more}
    answer = json_request(rest.server, "ReceiveMessage", given)
    return answer.status, answer.json.get("__type", "")


def by_sqs_query(rest: Rest, queue: str) -> tuple[int, str]:
    form = {"Action": "ReceiveMessage", "MaxNumberOfMessages": "10", "QueueUrl": f"http://h/{rest.account}/{queue}"}
    answer = query_request(rest.server, form)
    return answer.status, answer.text


def by_rest(rest: Rest, queue: str, packed: bool = False, many: bool = False, **more: Any) -> tuple[int, str]:
    asker = Rest(rest.server, rest.account, packed=packed)
    given = {"maxMessages": 10, **more}
    if many:
        answer = asker("POST", "/v1/messages:receive", {**given, "queues": [queue, "none-*"]})
    else:
        answer = asker("POST", f"/v1/queues/{queue}/messages:receive", given)
    asker.close()
    return answer.status, answer.code if answer.status >= 400 else ""


ASKINGS = {
    "SQS JSON": Asking(by_sqs_json, NOT_TEXT, "InternalFailure"),
    "SQS JSON, with attributes": Asking(
        lambda rest, queue: by_sqs_json(rest, queue, MessageSystemAttributeNames=["All"]), NOT_TEXT, "InternalFailure"
    ),
    "SQS query": Asking(by_sqs_query, NOT_TEXT, "<Code>InternalFailure</Code>"),
    "REST JSON": Asking(by_rest, NOT_TEXT, "internal"),
    "REST JSON, many queues": Asking(lambda rest, queue: by_rest(rest, queue, many=True), NOT_TEXT, "internal"),
    "MessagePack": Asking(lambda rest, queue: by_rest(rest, queue, packed=True), NOT_JSON, "internal"),
    "MessagePack, waiting": Asking(
        lambda rest, queue: by_rest(rest, queue, packed=True, waitSeconds=1), NOT_JSON, "internal"
    ),
    "MessagePack, many queues": Asking(
        lambda rest, queue: by_rest(rest, queue, packed=True, many=True), NOT_JSON, "internal"
    ),
}


@pytest.fixture(params=ASKINGS)
def asking(request: pytest.FixtureRequest) -> Asking:
    return ASKINGS[request.param]


@pytest.fixture(params=["STANDARD", "FIFO"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def put(rest: Rest, queue: str, body: bytes, content: Content) -> None:
    """Into the log, past what every interface checks."""
    broker = rest.server.broker

    async def work() -> None:
        await broker.refresh()
        place = broker.queue(rest.account, queue)
        (result,) = await brokers.send(broker, place, [Message(body, sender="tester", group="g", content=int(content))])
        assert not isinstance(result, Exception), result

    rest.server.run(work)


def is_given_back(rest: Rest, queue: str, count: int) -> bool:
    stats = rest.stats(f"/v1/queues/{queue}")
    return (stats["visible"], stats["inFlight"]) == (count, 0)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """While `on`, no receipt can be made: that is after the lease, and before the answer."""
    state = {"on": False}
    real = Receipts.seal_leases

    def seal(self: Receipts, *given: Any) -> Any:
        if state["on"]:
            raise RuntimeError("planted")
        return real(self, *given)

    monkeypatch.setattr(Receipts, "seal_leases", seal)
    return state


def test_a_message_that_cannot_be_shown(rest: Rest, asking: Asking, mode: str) -> None:
    rest.create("q", mode=mode, maxReceiveCount=1)
    put(rest, "q", *asking.breaks_on)
    for _ in range(3):  # it would be dead after the first, if that were charged
        status, said = asking.ask(rest, "q")
        assert status == 500 and asking.form in said
        wait_until(lambda: is_given_back(rest, "q", 1))


def test_receives_are_not_charged_for_answers_that_were_not_made(
    rest: Rest, asking: Asking, mode: str, faults: dict[str, bool]
) -> None:
    rest.create("q", mode=mode)
    for number in range(3):
        more = {"messageGroupId": f"g{number}", "deduplicationKey": f"d{number}"} if mode == "FIFO" else {}
        rest.send("/v1/queues/q", f"message {number}", **more)
    faults["on"] = True
    for _ in range(2):
        status, said = asking.ask(rest, "q")
        assert status == 500 and asking.form in said
        wait_until(lambda: is_given_back(rest, "q", 3))
    faults["on"] = False
    messages = rest.receive("/v1/queues/q")
    assert sorted(message["body"] for message in messages) == ["message 0", "message 1", "message 2"]
    assert [message["receiveCount"] for message in messages] == [1, 1, 1]


def test_a_long_poll_whose_answer_cannot_be_made(rest: Rest, faults: dict[str, bool]) -> None:
    rest.create("q")
    faults["on"] = True
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(by_rest, rest, "q", True, waitSeconds=20),
            pool.submit(by_sqs_json, rest, "q", WaitTimeSeconds=20),
        ]
        wait_until(lambda: rest.stats("/v1/queues/q")["waitingReceives"] == 2)
        for number in range(2):
            rest.send("/v1/queues/q", number)
        assert [future.result(30)[0] for future in waiting] == [500, 500]
    wait_until(lambda: is_given_back(rest, "q", 2))
    faults["on"] = False
    assert [message["receiveCount"] for message in rest.receive("/v1/queues/q")] == [1, 1]
