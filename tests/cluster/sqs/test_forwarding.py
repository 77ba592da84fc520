"""Requests at a node that does not serve the queue: forwarded together, executed once, and answered as in place."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import NoAnswer
from batonq.node.routing import forwarding
from tests.api.support import json_request, wait_until
from tests.api.test_grouping import Asked, Turn, counts, deletes, receives, rest, sends, sqs
from tests.cluster.server import NAMES, ClusterServer
from tests.support.server import ACCOUNT

COMMANDS = ("/submit", "/poll")
BLANK = ("Id", "MessageId", "ReceiptHandle")  # differ between two messages that are alike


class Pinned(Random):
    """Chance that picks the same each time."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def choice(self, seq: Any) -> Any:
        return seq[self.at]


class Far:
    """A queue, and a node that does not serve it, where every request goes."""

    def __init__(self, server: ClusterServer, name: str, **attributes: str) -> None:
        self.server = server
        created = json_request(server, "CreateQueue", {"QueueName": name, "Attributes": attributes})
        self.url = str(created.json["QueueUrl"])
        self.queue: Queue = server.run(self._find(name))
        owner = self.owner()
        self.asked = next(server.nodes[name] for name in NAMES if server.nodes[name] is not owner)
        self.ask(self.asked)
        self.hub.calls.clear()

    def _find(self, name: str) -> Any:
        async def find() -> Queue:
            for each in NAMES:
                await self.server.nodes[each].broker.refresh()
            return self.server.nodes["a"].broker.queue(ACCOUNT, name)

        return find

    @property
    def hub(self) -> Any:
        return self.server.nodes.hub

    def owner(self) -> ClusterNode:
        return self.server.run(lambda: self.server.nodes.owned(self.queue.shard))

    def ask(self, node: ClusterNode) -> None:
        """From now on requests go to this node."""
        self.server.random = Pinned(NAMES.index(node.settings.node))

    async def move(self) -> None:
        """To the node that is neither."""
        owner = await self.server.nodes.owned(self.queue.shard)
        third = next(name for name in NAMES if self.server.nodes[name] not in (owner, self.asked))
        await owner.ownership_loop.move(self.queue.shard, third)

    def calls(self) -> list[str]:
        """What the owner was asked to execute since the last time."""
        paths, self.hub.calls = self.hub.calls, []
        shard = f"/internal/shards/{self.queue.shard}"
        return [path.removeprefix(shard) for path in paths if path.startswith(shard) and path.endswith(COMMANDS)]


@pytest.fixture
def far(server: ClusterServer, request: pytest.FixtureRequest) -> Iterator[Far]:
    chance = server.random
    yield Far(server, f"far-{abs(hash(request.node.name)) % 10**9}")
    server.random = chance
    server.nodes.hub.around = None
    server.nodes.hub.unanswered = []


def values(turn: Turn) -> list[Any]:
    """Of requests that all went well."""
    answers = turn.answers()
    assert [status for status, _ in answers] == [200] * len(answers), answers
    return [value for _, value in answers]


def test_a_turn_of_each_operation_is_one_call_to_the_owner(server: ClusterServer, far: Far) -> None:
    sent = values(Turn(server, sends(far.url, 20)))
    assert far.calls() == ["/submit"]
    ids = [[entry["MessageId"] for entry in value["Successful"]] for value in sent]
    assert len({one for some in ids for one in some}) == 60
    received = [value["Messages"] for value in values(Turn(server, receives(far.url, 20)))]
    assert far.calls() == ["/submit"]
    assert [[message["MessageId"] for message in some] for some in received] == ids
    assert [message["Body"] for message in received[7]] == [f"request 7 message {number}" for number in range(3)]
    assert counts(server, far.url) == (0, 60, 0)
    done = values(Turn(server, [deletes(far.url, some) for some in received]))
    assert far.calls() == ["/submit"]
    assert [[entry["Id"] for entry in value["Successful"]] for value in done] == ids
    assert counts(server, far.url) == (0, 0, 0)


def test_all_doors_travel_together(server: ClusterServer, far: Far) -> None:
    attribute = {"colour": {"DataType": "String", "StringValue": "red"}}
    requests = [
        sqs("SendMessage", far.url, MessageBody="plain"),
        sqs("SendMessage", far.url, MessageBody="painted", MessageAttributes=attribute, DelaySeconds=900),
        rest(far.url, "", body={"json": True}),
        rest(far.url, ":batch", packed=True, messages=[{"body": "a"}, {"body": "b"}]),
        sqs("ReceiveMessage", far.url),
    ]
    *answers, received = Turn(server, requests).answers()
    assert [status // 100 for status, _ in answers] == [2] * 4 and far.calls() == ["/submit"]
    assert received[0] == 200 and counts(server, far.url) == (3, 1, 1)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: len(one) if key in BLANK else shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return re.sub("Value [^ ]{40,} for", "Value … for", value) if isinstance(value, str) else value


@pytest.mark.parametrize("text", ["plain", "x" * 1_048_576])
def test_the_answers_are_those_of_the_owner_itself(server: ClusterServer, far: Far, text: str) -> None:
    attribute = {"colour": {"DataType": "String", "StringValue": "red"}}
    everything: dict[str, Any] = {
        "MessageAttributeNames": ["All"],
        "AttributeNames": ["SenderId", "ApproximateReceiveCount"],
    }

    def life() -> list[Any]:
        told: list[Any] = []

        def ask(*requests: Asked) -> Any:
            answers = Turn(server, [*requests]).answers()
            told.extend(answers)
            return answers[0][1]

        ask(sqs("SendMessage", far.url, MessageBody=text))
        entries = [
            {"Id": "one", "MessageBody": "one"},
            {"Id": "two", "MessageBody": "two", "MessageAttributes": attribute},
            {"Id": "three", "MessageBody": "three", "DelaySeconds": 9_999},
        ]
        ask(sqs("SendMessageBatch", far.url, Entries=entries))
        (first,) = ask(sqs("ReceiveMessage", far.url))["Messages"]
        rest_of = ask(sqs("ReceiveMessage", far.url, MaxNumberOfMessages=10, **everything))["Messages"]
        ask(sqs("ReceiveMessage", far.url))
        change = sqs("ChangeMessageVisibility", far.url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=60)
        ask(change)
        ask(deletes(far.url, [first, *rest_of]))
        ask(deletes(far.url, [first]), sqs("DeleteMessage", far.url, ReceiptHandle="nonsense"))
        ask(change)
        return [(status, shape(value)) for status, value in told]

    forwarded = life()
    assert set(far.calls()) == {"/submit"}
    far.ask(far.owner())
    in_place = life()
    assert not far.calls()
    assert forwarded == in_place and {status for status, _ in in_place} >= {200, 400}


def test_who_finds_nothing_waits_by_a_call_of_its_own(server: ClusterServer, far: Far) -> None:
    turn = Turn(server, receives(far.url, 2, WaitTimeSeconds=20))
    wait_until(lambda: far.hub.calls.count(f"/internal/shards/{far.queue.shard}/poll") == 2)
    assert far.calls() == ["/submit", "/poll", "/poll"]
    values(Turn(server, sends(far.url, 2)))
    assert sorted(len(value["Messages"]) for value in values(turn)) == [3, 3]


@pytest.mark.parametrize("wait_s", [0, 20])
def test_whoever_leaves_before_the_answer_takes_no_message_along(server: ClusterServer, far: Far, wait_s: int) -> None:
    values(Turn(server, sends(far.url, 2)))
    turn = Turn(server, receives(far.url, 2, WaitTimeSeconds=wait_s), leaving=(0,))
    wait_until(lambda: turn.wires[1].is_answered)
    wait_until(lambda: counts(server, far.url) == (3, 3, 0))
    assert not turn.wires[0].written
    (again,) = values(Turn(server, receives(far.url, 1)))
    assert len(again["Messages"]) == 3


def test_a_long_poll_whose_client_goes_waits_no_more(server: ClusterServer, far: Far) -> None:
    turn = Turn(server, receives(far.url, 2, WaitTimeSeconds=20))
    wait_until(lambda: far.hub.calls.count(f"/internal/shards/{far.queue.shard}/poll") == 2)
    host = far.owner().shards[far.queue.shard].host()
    wait_until(lambda: host.polls.count(far.queue.number) == 2)

    async def leave() -> None:
        turn.leave(0)

    server.run(leave)
    wait_until(lambda: host.polls.count(far.queue.number) == 1)
    values(Turn(server, sends(far.url, 2)))
    wait_until(lambda: turn.wires[1].is_answered)
    assert counts(server, far.url) == (3, 3, 0) and not turn.wires[0].written


def test_a_lost_answer_comes_from_the_owners_memory(server: ClusterServer, far: Far) -> None:
    for requests, left in ((sends(far.url, 3), (9, 0, 0)), (receives(far.url, 3), (0, 9, 0))):
        far.hub.unanswered = ["/submit"]
        answers = values(Turn(server, requests))
        assert far.hub.unanswered == []
        assert far.calls() == ["/submit", "/submit"] and counts(server, far.url) == left
    far.hub.unanswered = ["/submit"]
    values(Turn(server, [deletes(far.url, value["Messages"]) for value in answers]))
    assert counts(server, far.url) == (0, 0, 0)


def test_an_owner_that_has_moved_before_it_was_asked(server: ClusterServer, far: Far) -> None:
    moved: list[str] = []

    async def around(path: str, after: bool) -> None:
        if path.endswith("/submit") and not after and not moved:
            moved.append(path)
            await far.move()

    far.hub.around = around
    values(Turn(server, sends(far.url, 3)))
    assert moved and counts(server, far.url) == (9, 0, 0)


def test_an_owner_that_moves_with_the_answer_is_not_asked_again(server: ClusterServer, far: Far) -> None:
    async def around(path: str, after: bool) -> None:
        if path.endswith("/submit") and after:
            far.hub.around = None
            await far.move()
            raise NoAnswer("the answer was lost")

    far.hub.around = around
    answers = Turn(server, sends(far.url, 3)).answers()
    assert [status for status, _ in answers] == [503] * 3, "nobody can tell whether it was executed"
    assert "may or may not have executed the request" in answers[0][1]["message"]
    assert counts(server, far.url) == (9, 0, 0), "and it is not sent a second time"


def test_a_queue_that_is_deleted_while_the_call_is_on_its_way(server: ClusterServer, far: Far) -> None:
    values(Turn(server, sends(far.url, 1)))
    (received,) = [value["Messages"] for value in values(Turn(server, receives(far.url, 1)))]

    async def around(path: str, after: bool) -> None:
        if path.endswith("/submit") and not after:
            far.hub.around = None
            await (await server.nodes.owned(far.queue.shard)).broker.delete_queue(far.queue)

    far.hub.around = around
    requests = [*sends(far.url, 1), *receives(far.url, 1), deletes(far.url, received)]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [400] * 3
    assert all(value["__type"].endswith("#QueueDoesNotExist") for _, value in answers)


def test_others_do_not_wait_behind_an_owner_that_hangs(
    server: ClusterServer, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.05)
    hung: list[asyncio.Event] = []

    async def around(path: str, after: bool) -> None:
        if path.endswith("/submit") and not after and not hung:
            hung.append(asyncio.Event())
            await hung[0].wait()

    far.hub.around = around
    first = Turn(server, sends(far.url, 1))
    wait_until(lambda: bool(hung))
    values(Turn(server, sends(far.url, 2)))
    assert far.calls() == ["/submit", "/submit"] and not first.wires[0].written

    async def go_on() -> None:
        hung[0].set()

    server.run(go_on)
    values(first)
    assert counts(server, far.url) == (9, 0, 0)
