"""Batches in MessagePack for another node's shard: forwarded as they are, and answered as the general way does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rest.support import Answer, Rest
from tests.rest.test_express import BODIES, Counting, shape, ways

__all__ = ["ways"]
ROUNDS = 8  # each at a node that chance picks


def both(packed: Rest, ways: Counting, queues: tuple[str, str], verb: str, values: tuple[Any, Any]) -> list[Answer]:
    """Of one queue with express, of its twin without it."""
    answers = []
    for queue, value, ways.on in zip(queues, values, (True, False), strict=True):
        answers.append(packed("POST", f"{queue}/messages:{verb}", value))
    assert answers[0].status == answers[1].status
    return answers


@pytest.mark.parametrize("kind", ["texts", "bytes", "values"])
def test_batches_live_alike_at_every_node(packed: Rest, ways: Counting, kind: str) -> None:
    queues = packed.create("one"), packed.create("twin")
    messages = [{"body": body, "clientMessageId": f"m{at}"} for at, body in enumerate(BODIES[kind])]
    for number in range(ROUNDS):
        before = ways.taken
        producer = {} if number % 2 else {"producer": {"id": "p", "sequence": 1 + number * len(messages)}}
        batch = {"messages": messages, **producer}
        sent = both(packed, ways, queues, "batch", (batch, batch))
        assert ways.taken == before + 1, "here or elsewhere, it is taken"
        assert shape(sent[0].value) == shape(sent[1].value)
        found = [packed.good("POST", f"{queue}/messages:receive", {"maxMessages": 100})["messages"] for queue in queues]
        assert [message["body"] for message in found[0]] == BODIES[kind]
        assert [message["messageId"] for message in found[0]] == [one["messageId"] for one in sent[0].value["results"]]
        receipts = [{"receiptHandles": [message["receiptHandle"] for message in some]} for some in found]
        for _ in range(2):
            acked = both(packed, ways, queues, "ack", (receipts[0], receipts[1]))
            assert shape(acked[0].value) == shape(acked[1].value)
        assert acked[0].value["results"][0]["error"]["code"] == "message_gone"


def test_duplicates_and_limits_are_told_alike_at_every_node(packed: Rest, ways: Counting) -> None:
    queues = packed.create("one", maxMessages=5), packed.create("twin", maxMessages=5)
    for number in range(ROUNDS):
        batch = {"messages": [{"body": "a"}, {"body": "b"}], "producer": {"id": "p", "sequence": 1 + number // 2 * 2}}
        told = both(packed, ways, queues, "batch", (batch, batch))
        assert repr(shape(told[0].value)) == repr(shape(told[1].value)).replace("twin", "one")
    results = told[0].value["results"]
    assert [result["error"]["code"] for result in results] == ["over_limit"] * 2
    assert packed.good("GET", f"{queues[0]}/stats")["visible"] == 5


def test_a_queue_that_is_gone_is_told_alike_at_every_node(packed: Rest) -> None:
    queue = packed.create("gone")
    packed.good("DELETE", queue)
    for _ in range(ROUNDS):
        answer = packed("POST", f"{queue}/messages:batch", {"messages": [{"body": "a"}]})
        assert (answer.status, answer.code) == (404, "queue_does_not_exist")
