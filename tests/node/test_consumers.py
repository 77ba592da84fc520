"""The list of consumers: what is noted of each request, and its limits. Who holds messages, from the shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batonq.node.messages import consumers as noted
from batonq.node.messages.consumers import ANY_QUEUE, Consumers, PerMinute
from batonq.node.monitoring.everywhere import Everywhere
from tests.node.nodes import ACCOUNT, open_node, send
from tests.node.support import VirtualLoop, run_virtual
from tests.node.test_ports import over_the_wire
from tests.support import brokers

START_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


def test_accounts_do_not_learn_of_each_others_consumers() -> None:
    clock = Clock()
    found = Consumers(clock)
    found.polls("111111111111", 7, "worker-1", "10.0.0.1:5", b"boto3/1").answered(1)
    found.polls("222222222222", 8, "worker-1", "10.0.0.2:5", b"other/2").answered(0)
    found.settles("222222222222", "", "10.0.0.1:5", acked=9)  # the address of the other account's consumer
    [mine], [other] = found.rows(7), found.rows(8)
    assert (mine.account, mine.address, mine.agent, mine.acked) == ("111111111111", "10.0.0.1:5", "boto3/1", 0)
    assert (other.account, other.address, other.agent) == ("222222222222", "10.0.0.2:5", "other/2")
    assert len(found.rows()) == 2


def test_a_count_per_minute() -> None:
    count = PerMinute()
    minute_ms = START_MS // 60_000 * 60_000
    count.add(60, minute_ms)
    assert count.value(minute_ms + 1_000) == 60
    assert count.value(minute_ms + 60_000) == 60
    assert count.value(minute_ms + 90_000) == 30
    count.add(5, minute_ms + 90_000)
    assert count.value(minute_ms + 90_000) == 35
    assert count.value(minute_ms + 200_000) == 0


def test_what_is_known_of_a_consumer() -> None:
    clock = Clock()
    found = Consumers(clock)
    poll = found.polls(ACCOUNT, 7, "ann", "10.0.0.1:5", b"boto3/1")
    [row] = found.rows()
    assert (row.name, row.address, row.agent, row.queues, row.waiting) == ("ann", "10.0.0.1:5", "boto3/1", [7], 1)
    clock.ms += 5_000
    poll.answered(3)
    poll.answered(3)
    poll.left()
    found.polls(ACCOUNT, 7, "ann", "10.0.0.1:5", b"boto3/1").answered(0)
    found.settles(ACCOUNT, "", "10.0.0.1:5", acked=2)
    found.settles(ACCOUNT, "", "10.0.0.1:5", failed=1)
    clock.ms += 1_000
    found.settles(ACCOUNT, "ann", "10.9.9.9:1", extended=True)
    found.settles(ACCOUNT, "", "10.7.7.7:1", acked=99)
    found.settles(ACCOUNT, "", "10.0.0.1:9", b"boto3/1", acked=1)  # another connection of the same program
    found.settles(ACCOUNT, "", "10.0.0.1:9", b"boto3/2", acked=99)
    [row] = found.rows(7)
    assert (row.waiting, row.received, row.empty, row.acked, row.failed) == (0, 3, 1, 3, 1)
    assert (row.polled_ms, row.seen_ms, row.heartbeat_ms) == (START_MS + 5_000, clock.ms, clock.ms)
    assert found.rows(8) == []
    found.polls(ACCOUNT, 7, "ben", "10.0.0.1:6", b"boto3/1").answered(0)
    found.settles(ACCOUNT, "", "10.0.0.1:9", b"boto3/1", acked=1)  # it may be either of them
    assert [row.acked for row in found.rows(7)] == [3, 0]


def test_a_receive_from_several_queues() -> None:
    found = Consumers(Clock())
    found.polls(ACCOUNT, ANY_QUEUE, "ann", "a", b"").answered(5)
    found.receives(ACCOUNT, "ann", 3, 5)
    [row] = found.rows(3)
    assert (row.queues, row.received) == ([3], 5)
    assert found.rows()[0].queues == [ANY_QUEUE, 3]


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted, "CONSUMERS_MAX", 3)
    monkeypatch.setattr(noted, "QUEUES_MAX", 2)
    clock = Clock()
    found = Consumers(clock)
    for number in range(5):
        found.polls(ACCOUNT, 1, f"c{number}", f"a{number}", b"").answered(0)
        found.polls(ACCOUNT, 1, "busy", "b", b"").answered(0)
    assert [row.name for row in found.rows()] == ["c3", "c4", "busy"] and len(found) == 3
    assert len(found._at) == 3
    for queue in range(4):
        found.polls(ACCOUNT, queue, "busy", "b", b"").answered(0)
    assert found.rows()[-1].queues == [2, 3]
    waiting = found.polls(ACCOUNT, 1, "c3", "a3", b"")
    clock.ms += noted.KEPT_MS + 1
    assert [row.name for row in found.rows()] == ["c3"], "one whose receive waits is never gone"
    waiting.left()
    assert found.rows() == [] and not found._at and set(found._on.values()) <= {""}


class Other:
    """Another process, which knows consumers of its own."""

    def __init__(self, found: Consumers) -> None:
        self.everywhere = Everywhere("other")
        found.join(self.everywhere)

    def names(self) -> list[str]:
        return ["other"]

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        return await self.everywhere.answer(body)


def test_consumers_of_all_nodes_together() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = Clock()
        here, there = Consumers(clock), Consumers(clock)
        here.join(Everywhere("here", Other(there)))
        here.polls(ACCOUNT, 1, "ann", "a", b"").answered(2)
        clock.ms += 10
        there.polls(ACCOUNT, 1, "ann", "b", b"").answered(3)
        there.polls(ACCOUNT, 2, "ben", "c", b"")
        ann, ben = await here.listed()
        assert (ann.received, ann.address, ann.node, ann.queues) == (5, "b", "other", [1])
        assert (ben.name, ben.waiting, ben.node) == ("ben", 1, "other")
        assert [row.name for row in await here.listed(1)] == ["ann"]

    run_virtual(main)


@pytest.mark.parametrize(("shards", "wired"), [(1, False), (3, False), (3, True)])
def test_who_holds_messages(tmp_path: Path, shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.Spread": str(shards)}, {})
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        if wired:
            over_the_wire(node.broker)
        began_ms = node.broker.now_ms()
        for number in range(9):
            await send(node, queue, f"{number}")
        await send(node, other, "x")

        async def take(holder: str, of: Any, count: int, visibility_ms: int) -> None:
            got = 0
            while got < count:
                got += len(await brokers.receive(node.broker, of, count - got, visibility_ms, 0, holder))

        await take("ann", queue, 4, 60_000)
        await take("ben", queue, 2, 30_000)
        await take("ann", other, 1, 90_000)
        held = await node.broker.holders(queue)
        assert [(one.holder, one.in_flight) for one in held] == [("ann", 4), ("ben", 2)]
        assert (held[0].oldest_ms, held[0].deadline_ms) == (began_ms, began_ms + 60_000)
        everything = await node.broker.holders()
        assert sorted((one.holder, one.queue, one.in_flight) for one in everything) == [
            ("ann", queue.number, 4),
            ("ann", other.number, 1),
            ("ben", queue.number, 2),
        ]
        await node.stop()

    run_virtual(main)
