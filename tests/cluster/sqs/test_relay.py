"""Hot calls at a node that does not serve the queue: relayed together, and answered as the general way does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from batonq.node import relaying
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import NoAnswer
from tests.api.support import json_request, wait_until
from tests.api.test_express import Counting, ask_both, entries, shape, ways
from tests.api.test_together import Turn, Wire, counts, receives, sends
from tests.cluster.server import NAMES, ClusterServer
from tests.support.server import ACCOUNT

__all__ = ["ways"]
HOT = ("relay", "send", "receive", "delete")


class Pinned(Random):
    """Chance that picks the same each time."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def choice(self, seq: Any) -> Any:
        return seq[self.at]


class Far:
    """A queue, and a node that does not serve it, where every request goes."""

    def __init__(self, server: ClusterServer, name: str) -> None:
        self.server = server
        self.url = str(json_request(server, "CreateQueue", {"QueueName": name}).json["QueueUrl"])
        self.queue: Queue = server.run(self._find(name))
        owner = self.owner()
        self.asked = next(server.nodes[name] for name in NAMES if server.nodes[name] is not owner)
        server.random = Pinned(NAMES.index(self.asked.settings.node))
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

    async def move(self) -> None:
        """To the node that is neither."""
        owner = await self.server.nodes.owned(self.queue.shard)
        third = next(name for name in NAMES if self.server.nodes[name] not in (owner, self.asked))
        await owner.ownership_loop.move(self.queue.shard, third)

    def hot(self) -> list[str]:
        """What the owner was asked for since the last time."""
        paths, self.hub.calls = self.hub.calls, []
        shard = f"/internal/shards/{self.queue.shard}/"
        return [path.removeprefix(shard) for path in paths if path.startswith(shard) and path.endswith(HOT)]


@pytest.fixture
def far(server: ClusterServer, request: pytest.FixtureRequest) -> Iterator[Far]:
    chance = server.random
    yield Far(server, f"far-{abs(hash(request.node.name)) % 10**9}")
    server.random = chance
    server.nodes.hub.around = None
    server.nodes.hub.unanswered = []


def deletes(url: str, received: list[Any]) -> list[tuple[str, Any]]:
    return [
        (
            "DeleteMessageBatch",
            {
                "QueueUrl": url,
                "Entries": [{"Id": one["MessageId"], "ReceiptHandle": one["ReceiptHandle"]} for one in some],
            },
        )
        for some in received
    ]


def test_a_turn_of_each_call_is_one_call_to_the_owner(server: ClusterServer, far: Far) -> None:
    sent = Turn(server, sends(far.url, 20)).answers()
    assert [status for status, _ in sent] == [200] * 20 and far.hot() == ["relay"]
    ids = [[entry["MessageId"] for entry in body["Successful"]] for _, body in sent]
    assert len({one for some in ids for one in some}) == 60
    received = [body["Messages"] for _, body in Turn(server, receives(far.url, 20)).answers()]
    assert far.hot() == ["relay"]
    assert [[message["MessageId"] for message in some] for some in received] == ids
    assert [message["Body"] for message in received[7]] == [f"request 7 message {number}" for number in range(3)]
    assert counts(server, far.url) == (0, 60, 0)
    done = Turn(server, deletes(far.url, received)).answers()
    assert far.hot() == ["relay"]
    assert [[entry["Id"] for entry in body["Successful"]] for _, body in done] == ids
    assert counts(server, far.url) == (0, 0, 0)


@pytest.mark.parametrize("text", ["plain", "x" * 1_048_576])
def test_the_answers_are_the_general_ways(far: Far, ways: Counting, text: str) -> None:
    urls = far.url, far.url
    both = ask_both(far.server, ways, "SendMessage", {"QueueUrl": "$url", "MessageBody": text}, urls)
    assert shape(both.express) == shape(both.general) and ways.taken == 1
    batch = {"QueueUrl": "$url", "Entries": entries("one", "two")}
    both = ask_both(far.server, ways, "SendMessageBatch", batch, urls)
    assert shape(both.express) == shape(both.general) and ways.taken == 2
    for count in (1, 2):
        both = ask_both(far.server, ways, "ReceiveMessage", {"QueueUrl": "$url", "MaxNumberOfMessages": count}, urls)
        assert shape(both.express) == shape(both.general) and ways.taken == 2 + count
        express, general = (answer.json["Messages"] for answer in both)
        assert [len(one["ReceiptHandle"]) for one in express] == [len(one["ReceiptHandle"]) for one in general]
    rows = [{"Id": f"m{at}", "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(express + general)]
    before = far.hot()
    assert before.count("relay") == 4
    both = ask_both(far.server, ways, "DeleteMessageBatch", {"QueueUrl": "$url", "Entries": rows}, urls)
    assert shape(both.express) == shape(both.general) and far.hot() == ["relay", "delete"]
    receipt = {"QueueUrl": "$url", "ReceiptHandle": rows[0]["ReceiptHandle"]}
    both = ask_both(far.server, ways, "DeleteMessage", receipt, urls)
    assert shape(both.express) == shape(both.general) and far.hot() == ["relay", "delete"]


def test_messages_with_more_than_a_body(server: ClusterServer, far: Far) -> None:
    attribute = {"colour": {"DataType": "String", "StringValue": "red"}}
    json_request(server, "SendMessage", {"QueueUrl": far.url, "MessageBody": "painted", "MessageAttributes": attribute})
    far.hot()
    ((status, body),) = Turn(server, receives(far.url, 1)).answers()
    (message,) = body["Messages"]
    assert status == 200 and far.hot() == ["relay"]
    assert message["Body"] == "painted" and "MessageAttributes" not in message
    assert [status for status, _ in Turn(server, deletes(far.url, [[message]])).answers()] == [200]
    assert counts(server, far.url) == (0, 0, 0)


def test_who_finds_nothing_waits_the_general_way(server: ClusterServer, far: Far) -> None:
    turn = Turn(server, receives(far.url, 2, WaitTimeSeconds=20))
    wait_until(lambda: far.hub.calls.count(f"/internal/shards/{far.queue.shard}/receive") == 2)
    assert sorted(far.hot()) == ["receive", "receive", "relay"]
    Turn(server, sends(far.url, 2)).answers()
    assert sorted(len(body["Messages"]) for _, body in turn.answers()) == [3, 3]


def test_whoever_leaves_before_the_answer_takes_no_message_along(server: ClusterServer, far: Far) -> None:
    Turn(server, sends(far.url, 2)).answers()
    turn = Turn(server, [])
    turn.wires = [Wire(60_000), Wire(60_001)]

    async def arrive_and_leave() -> None:
        await turn._arrive(receives(far.url, 2))
        turn.connections[0].connection_lost(None)

    server.run(arrive_and_leave)
    wait_until(lambda: bool(turn.wires[1].answers))
    wait_until(lambda: counts(server, far.url) == (3, 3, 0))
    assert not turn.wires[0].answers
    server.run(turn._leave)
    (again,) = [body["Messages"] for _, body in Turn(server, receives(far.url, 1)).answers()]
    assert len(again) == 3


def test_a_lost_answer_comes_from_the_owners_memory(server: ClusterServer, far: Far) -> None:
    for requests, left in ((sends(far.url, 3), (9, 0, 0)), (receives(far.url, 3), (0, 9, 0))):
        far.hub.unanswered = ["/relay"]
        answers = Turn(server, requests).answers()
        assert [status for status, _ in answers] == [200] * 3 and far.hub.unanswered == []
        assert far.hot() == ["relay", "relay"] and counts(server, far.url) == left
    far.hub.unanswered = ["/relay"]
    Turn(server, deletes(far.url, [body["Messages"] for _, body in answers])).answers()
    assert counts(server, far.url) == (0, 0, 0)


def test_an_owner_that_has_moved_before_it_was_asked(server: ClusterServer, far: Far) -> None:
    moved: list[str] = []

    async def around(path: str, after: bool) -> None:
        if path.endswith("/relay") and not after and not moved:
            moved.append(path)
            await far.move()

    far.hub.around = around
    answers = Turn(server, sends(far.url, 3)).answers()
    assert [status for status, _ in answers] == [200] * 3 and moved
    assert counts(server, far.url) == (9, 0, 0)


def test_an_owner_that_moves_with_the_answer_is_not_asked_again(server: ClusterServer, far: Far) -> None:
    async def around(path: str, after: bool) -> None:
        if path.endswith("/relay") and after:
            far.hub.around = None
            await far.move()
            raise NoAnswer("the answer was lost")

    far.hub.around = around
    answers = Turn(server, sends(far.url, 3)).answers()
    assert [status for status, _ in answers] == [503] * 3, "nobody can tell whether it was run"
    assert "may or may not have executed the request" in answers[0][1]["message"]
    assert counts(server, far.url) == (9, 0, 0), "and it is not sent a second time the general way"


def test_a_queue_that_is_deleted_while_the_call_is_on_its_way(server: ClusterServer, far: Far) -> None:
    Turn(server, sends(far.url, 1)).answers()
    (received,) = [body["Messages"] for _, body in Turn(server, receives(far.url, 1)).answers()]

    async def around(path: str, after: bool) -> None:
        if path.endswith("/relay") and not after:
            far.hub.around = None
            await (await server.nodes.owned(far.queue.shard)).broker.delete_queue(far.queue)

    far.hub.around = around
    requests = [*sends(far.url, 1), *receives(far.url, 1), *deletes(far.url, [received])]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [400] * 3
    assert all(body["__type"].endswith("#QueueDoesNotExist") for _, body in answers)


def test_others_do_not_wait_behind_an_owner_that_hangs(
    server: ClusterServer, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "PATIENCE_S", 0.05)

    async def look_soon() -> None:
        """Not when the patience that others had is over."""
        watching = far.asked.broker.relaying._watching
        if watching is not None:
            watching.cancel()
            far.asked.broker.relaying._watching = None

    server.run(look_soon)
    hung: list[asyncio.Event] = []

    async def around(path: str, after: bool) -> None:
        if path.endswith("/relay") and not after and not hung:
            hung.append(asyncio.Event())
            await hung[0].wait()

    far.hub.around = around
    first = Turn(server, sends(far.url, 1))
    wait_until(lambda: bool(hung))
    assert [status for status, _ in Turn(server, sends(far.url, 2)).answers()] == [200] * 2
    assert far.hot() == ["relay", "send", "send"] and not first.wires[0].answers

    async def go_on() -> None:
        hung[0].set()

    server.run(go_on)
    assert [status for status, _ in first.answers()] == [200]
    assert counts(server, far.url) == (9, 0, 0)
