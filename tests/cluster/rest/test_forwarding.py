"""REST batches for another node's shard: the same answers at every node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rest.support import Rest

ROUNDS = 8  # each at a node that chance picks
BODIES: dict[str, list[Any]] = {
    "texts": ["one", "zwei – drei", ""],
    "bytes": [b"\x00\xff", b"{}"],
    "values": [{"a": [1, None]}, 7, None, True],
}


@pytest.mark.parametrize("kind", BODIES)
def test_batches_live_alike_at_every_node(packed: Rest, kind: str) -> None:
    queue, bodies = packed.create("one"), BODIES[kind]
    messages = [{"body": body, "clientMessageId": f"m{at}"} for at, body in enumerate(bodies)]
    for number in range(ROUNDS):
        producer = {} if number % 2 else {"producer": {"id": "p", "sequence": 1 + number * len(messages)}}
        sent = packed.good("POST", f"{queue}/messages:batch", {"messages": messages, **producer})["results"]
        assert [result["clientMessageId"] for result in sent] == [message["clientMessageId"] for message in messages]
        found = packed.good("POST", f"{queue}/messages:receive", {"maxMessages": 100})["messages"]
        assert [message["body"] for message in found] == bodies
        assert [message["messageId"] for message in found] == [result["messageId"] for result in sent]
        assert [message["sequence"] for message in found] == [result["sequence"] for result in sent]
        receipts = {"receiptHandles": [message["receiptHandle"] for message in found]}
        first, second = (packed.good("POST", f"{queue}/messages:ack", receipts)["results"] for _ in range(2))
        assert not any("error" in result for result in first)
        assert {result["error"]["code"] for result in second} == {"message_gone"}


def test_duplicates_and_limits_are_told_alike_at_every_node(packed: Rest) -> None:
    queue = packed.create("one", maxMessages=5)
    firsts: dict[int, list[str]] = {}
    for number in range(ROUNDS):
        sequence = 1 + number // 2 * 2
        batch = {"messages": [{"body": "a"}, {"body": "b"}], "producer": {"id": "p", "sequence": sequence}}
        results = packed.good("POST", f"{queue}/messages:batch", batch)["results"]
        if sequence + 1 <= 5:
            ids = [result["messageId"] for result in results]
            assert firsts.setdefault(sequence, ids) == ids
            assert [bool(result.get("duplicate")) for result in results] == [number % 2 == 1] * 2
        elif sequence == 5:
            assert results[1]["error"]["code"] == "over_limit"
    assert [result["error"]["code"] for result in results] == ["over_limit"] * 2
    assert packed.good("GET", f"{queue}/stats")["visible"] == 5


def test_a_queue_that_is_gone_is_told_alike_at_every_node(packed: Rest) -> None:
    queue = packed.create("gone")
    packed.good("DELETE", queue)
    for _ in range(ROUNDS):
        answer = packed("POST", f"{queue}/messages:batch", {"messages": [{"body": "a"}]})
        assert (answer.status, answer.code) == (404, "queue_does_not_exist")
