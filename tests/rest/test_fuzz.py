"""Bodies and addresses that nobody would send: every one has an answer below 500, and the server goes on."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.rest.support import Rest

ADDRESSES = [
    ("POST", "/v1/queues"),
    ("PATCH", "/v1/queues/queue"),
    ("POST", "/v1/queues/queue/messages"),
    ("POST", "/v1/queues/queue/messages:batch"),
    ("POST", "/v1/queues/queue/messages:receive"),
    ("POST", "/v1/queues/queue/messages:ack"),
    ("POST", "/v1/queues/queue/messages:nack"),
    ("POST", "/v1/queues/queue/messages:change-visibility"),
    ("POST", "/v1/messages:receive"),
]
SEEDS: list[Any] = [
    {"name": "fuzzed", "retry": {"kind": "schedule", "delaysSeconds": [1]}, "tags": {"a": "b"}},
    {"retentionSeconds": 60, "deduplication": {"windowSeconds": 5}},
    {"body": {"a": [1, "ü", None]}, "attributes": {"a": 1, "b": {"base64": "eA=="}}, "priority": "high"},
    {"messages": [{"body": 1, "clientMessageId": "a"}, {"bodyBase64": "eA=="}], "producer": {"id": "p", "sequence": 1}},
    {"maxMessages": 5, "visibilityTimeoutSeconds": 1.5, "consumer": "c"},
    {"receiptHandles": ["A" * 44, "x"]},
    {"messages": [{"receiptHandle": "A" * 44, "delaySeconds": 1, "reason": "r"}]},
    {"messages": [{"receiptHandle": "A" * 44, "visibilityTimeoutSeconds": 5}]},
    {"queues": ["queue", "q*"], "maxMessages": 1},
]
ROUNDS = 1_500


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, taken out, doubled or put in."""
    piece = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(piece) + 1)
        match chance.randrange(4):
            case 0 if at < len(piece):
                piece[at] = chance.randrange(256)
            case 1:
                del piece[at : at + chance.randint(1, 8)]
            case 2:
                piece[at:at] = piece[at : at + chance.randint(1, 16)]
            case _:
                piece[at:at] = chance.randbytes(chance.randint(1, 4))
    return bytes(piece)


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_bodies(rest: Rest, packed: Rest, form: str) -> None:
    chance = random.Random(7)
    asker = rest if form == "json" else packed
    queue = asker.create()
    for _ in range(ROUNDS):
        method, path = chance.choice(ADDRESSES)
        data = mutated(asker.encode(chance.choice(SEEDS)), chance)
        answer = asker(method, path, raw=data)
        assert answer.status < 500, (method, path, data, answer)
        if answer.status >= 400:
            assert answer.code
    asker.send(queue, "still there")


def test_what_one_form_takes_the_other_can_show(rest: Rest, packed: Rest) -> None:
    """Whatever body is taken comes out again by every way, whole."""
    chance = random.Random(11)
    queue = rest.create(defaultVisibilityTimeoutSeconds=0)
    taken = 0
    for _ in range(300):
        text = msgspec.json.encode(chance.choice([*SEEDS, "text ü", 1.5, 12345678901234567890, "\0"]))
        written = mutated(text, chance) if chance.random() < 0.7 else text
        if rest("POST", f"{queue}/messages", raw=b'{"body":' + written + b"}").status != 202:
            continue
        taken += 1
        (one,) = rest.receive(queue)
        (two,) = packed.receive(queue)
        assert one["messageId"] == two["messageId"]
        assert "body" in one and "body" in two
        rest.good("POST", f"{queue}:purge")
    assert taken > 50


def test_addresses(rest: Rest) -> None:
    chance = random.Random(13)
    letters = "/:?%.=&#aqueuesmessages0123{}~+;@*!'()-_"
    for _ in range(ROUNDS):
        method = chance.choice(["GET", "POST", "PATCH", "DELETE", "HEAD", "PUT"])
        path = "/v1/" + "".join(chance.choice(letters) for _ in range(chance.randint(0, 40)))
        answer = rest(method, path.replace("#", "%23"))
        assert answer.status < 500, (method, path, answer)
