"""One receive over many queues: fair, free while idle, and queues that are made meanwhile are found."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from batonq.errors import BatonError, InvalidInput, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.frames import Frame
from batonq.log.interface import Done
from batonq.node.messages.received import Delivery
from batonq.node.node import Node
from batonq.node.routing.multi_queue_receive import Found, Selection, receive_all_over
from batonq.node.routing.ports import ShardPort
from tests.node.nodes import ACCOUNT, Faults, kill, make_node, make_send, open_node, send
from tests.node.support import VirtualLoop, put, run_virtual, settle
from tests.support import brokers


async def make_queues(node: Node, *names: str, **attributes: str) -> list[Any]:
    return [await node.broker.create_queue(ACCOUNT, name, attributes, {}) for name in names]


def redrive_to(name: str) -> str:
    return json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}", "maxReceiveCount": 3})


async def receive(node: Node, *patterns: str, count: int = 10, wait_ms: int = 0) -> list[tuple[str, str]]:
    selection = node.broker.select(ACCOUNT, patterns)
    found = await node.broker.receive_any(selection, count, None, wait_ms, "tester")
    return [(queue.name, delivery.body.decode()) for queue, delivery in found]


def test_what_a_busy_shard_had_all_the_time_is_found_when_it_accepts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2, frame_rows_max=20)
        queues = await make_queues(node, "hooks-a", "hooks-b", "flood-a", "flood-b")
        (wanted,) = [queue for queue in queues if queue.name == "hooks-a"]
        (flood,) = [queue for queue in queues if queue.name.startswith("flood") and queue.shard == wanted.shard]
        await send(node, wanted, "here all the time")
        host = node.shards[wanted.shard].host()
        append, held = host.log.append, list[tuple[Frame, Done]]()
        monkeypatch.setattr(host.log, "append", lambda frame, done, **_: held.append((frame, done)))
        put(host, flood.number, [make_send("under way")])
        host.commit.kick()
        await settle()
        for number in range(21):
            put(host, flood.number, [make_send(str(number))])
        with pytest.raises(OverLimit):
            put(host, flood.number, [make_send("refused")])
        polling = asyncio.create_task(receive(node, "hooks-*", wait_ms=20_000))
        await asyncio.sleep(0.5)
        begun_s = loop.time()
        monkeypatch.undo()
        append(*held.pop())
        assert await polling == [("hooks-a", "here all the time")]
        assert loop.time() - begun_s < 5, "not at the end of its time"
        await node.stop()

    run_virtual(main)


def test_names_and_patterns_say_which_queues_are_meant(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        for queue in await make_queues(node, "hooks-a", "hooks-b", "hook", "other", "x"):
            await send(node, queue, queue.name)
        assert sorted(await receive(node, "hooks-*", "other")) == [
            ("hooks-a", "hooks-a"),
            ("hooks-b", "hooks-b"),
            ("other", "other"),
        ]
        assert await receive(node, "hoo?") == [("hook", "hook")]
        assert await receive(node, "none-*") == []
        with pytest.raises(QueueDoesNotExist, match="missing"):
            await receive(node, "missing")
        for bad in ((), ("a b",), ("[ab]*",), ("x" * 81,)):
            with pytest.raises(InvalidInput):
                await receive(node, *bad)
        await node.stop()

    run_virtual(main)


def test_a_pattern_leaves_out_the_dead_letters_of_its_own_queues(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        dead, shared = await make_queues(node, "hooks-a-dead", "failures")
        for queue in (dead, shared):
            await send(node, queue, *["failed"] * 4)
        assert await receive(node, "hooks-*", count=1) == [("hooks-a-dead", "failed")]  # it is no dead-letter queue yet
        (alive,) = await make_queues(node, "hooks-a", RedrivePolicy=redrive_to("hooks-a-dead"))
        (other,) = await make_queues(node, "hooks-b", RedrivePolicy=redrive_to("failures"))
        assert await receive(node, "hooks-*") == []
        waiting = loop.create_task(receive(node, "hooks-*", wait_ms=20_000))
        await settle()
        await send(node, dead, "failed")
        await settle()
        assert not waiting.done()
        await send(node, alive, "now")
        assert await waiting == [("hooks-a", "now")]
        assert await receive(node, "*-dead", count=1) == [("hooks-a-dead", "failed")]
        assert await receive(node, "failures", "hooks-?", count=1) == [("failures", "failed")]
        assert await receive(node, "hooks-*", "hooks-a-dead", count=1) == [("hooks-a-dead", "failed")]
        await node.broker.delete_queue(alive)
        assert await receive(node, "hooks-*", count=1) == [("hooks-a-dead", "failed")]
        assert other.name == "hooks-b"
        await node.stop()

    run_virtual(main)


def test_each_queue_gets_an_equal_share_and_then_those_that_have_more(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        busy, *quiet = await make_queues(node, "q-0", "q-1", "q-2", "q-3")
        await send(node, busy, *["busy"] * 50)
        for queue in quiet:
            await send(node, queue, "quiet")
        first = Counter(name for name, _ in await receive(node, "q-*", count=10))
        assert first == {"q-0": 7, "q-1": 1, "q-2": 1, "q-3": 1}
        for queue in quiet:
            await send(node, queue, *["quiet"] * 50)
        names = [name for _ in range(40) for name, _ in await receive(node, "q-*", count=1)]
        assert Counter(names) == {"q-0": 10, "q-1": 10, "q-2": 10, "q-3": 10}
        await node.stop()

    run_virtual(main)


def test_it_waits_for_whatever_comes_first_on_any_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queues = await make_queues(node, "q-0", "q-1", "q-2", "other")
        for queue in queues[:3]:
            waiting = loop.create_task(receive(node, "q-*", wait_ms=20_000))
            await settle()
            await send(node, queues[3], "not meant")
            await settle()
            assert not waiting.done()
            await send(node, queue, "now")
            assert await waiting == [(queue.name, "now")]
        assert all(keeper.host().polls.total == 0 for keeper in node.shards)
        before = loop.time()
        assert await receive(node, "q-*", wait_ms=20_000) == []
        assert loop.time() - before == pytest.approx(20)
        await node.stop()

    run_virtual(main)


def test_delays_that_end_and_leases_that_run_out_wake_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        (queue,) = await make_queues(node, "q-0", VisibilityTimeout="5")
        await send(node, queue, "late", delay_ms=3_000)
        assert await receive(node, "q-*", wait_ms=20_000) == [("q-0", "late")]
        assert await receive(node, "q-*", wait_ms=20_000) == [("q-0", "late")]
        assert loop.time() == pytest.approx(8, abs=0.1)
        await node.stop()

    run_virtual(main)


def test_a_queue_that_is_made_while_it_waits_is_found(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        waiting = loop.create_task(receive(node, "new-*", wait_ms=20_000))
        await settle()
        queues = await make_queues(node, "other", "new-1", "new-2")
        await send(node, queues[0], "not meant")
        await send(node, queues[2], "here")
        assert await waiting == [("new-2", "here")]
        await node.stop()

    run_virtual(main)


def test_those_who_wait_are_served_in_order_and_one_message_goes_to_one(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        (queue,) = await make_queues(node, "q-0")
        waiting = [loop.create_task(receive(node, "q-*", count=1, wait_ms=20_000)) for _ in range(3)]
        await settle()
        await send(node, queue, "a", "b")
        await settle()
        assert [task.done() for task in waiting] == [True, True, False]
        assert [await task for task in waiting] == [[("q-0", "a")], [("q-0", "b")], []]
        await node.stop()

    run_virtual(main)


def test_a_client_that_goes_gives_back_what_it_was_about_to_get(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        (queue,) = await make_queues(node, "q-0")
        host = node.shards[0].host()
        for wait_ms in (0, 20_000):
            waiting = loop.create_task(receive(node, "q-*", wait_ms=wait_ms)) if wait_ms else None
            await settle()
            put(host, queue.number, [make_send("a")])
            if waiting is None:
                waiting = loop.create_task(receive(node, "q-*"))
                await asyncio.sleep(0)
            host._before_seal()  # it is served, and not yet committed
            waiting.cancel()
            await settle()
            found = await node.broker.receive_any([queue], 10, None, 0, "tester")
            assert [delivery.receive_count for _, delivery in found] == [1]
            assert await brokers.delete(node.broker, queue, [found[0][1].receipt]) == [None]
        assert host.polls.total == 0
        await node.stop()

    run_virtual(main)


def test_stopping_and_a_failing_shard_end_the_wait(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, faults=faults, shards=2)
        await node.start()
        queues = await make_queues(node, "other-0", "q-1", "q-0")
        waiting = loop.create_task(receive(node, "q-*", wait_ms=20_000))
        await settle()
        faults.planned[queues[0].shard] = ["refuse"]
        with pytest.raises(Unavailable, match="not be committed"):
            await send(node, queues[0], "lost")
        assert await waiting == []
        await send(node, queues[1], "from the shard that is served")
        assert len(await receive(node, "q-*")) == 1
        waiting = loop.create_task(receive(node, "q-*", wait_ms=20_000))
        await settle()
        node.stop_waiting()
        assert await waiting == []
        assert await receive(node, "q-*", wait_ms=20_000) == []
        await kill(node)

    run_virtual(main)


def test_one_queue_at_its_limit_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        (full,) = await make_queues(node, "q-0", **{"Baton.MaximumInFlight": "1"})
        (other,) = await make_queues(node, "q-1")
        await send(node, full, "a", "b")
        await send(node, other, "c")
        assert sorted(await receive(node, "q-*")) == [("q-0", "a"), ("q-1", "c")]
        await send(node, other, "d")
        assert await receive(node, "q-*") == [("q-1", "d")]
        await node.stop()

    run_virtual(main)


def test_ten_thousand_queues_and_nothing_to_do_while_idle(tmp_path: Path) -> None:
    """Waiters cost nothing while nothing happens in their queues: no query, no timer beside their own."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        names = [f"hooks-{number}" for number in range(10_000)]
        for start in range(0, len(names), 1_000):
            await asyncio.gather(*(make_queues(node, name) for name in names[start : start + 1_000]))
        (other,) = await make_queues(node, "other")
        selection = node.broker.select(ACCOUNT, ["hooks-*"])
        asked: list[int] = []
        has = selection.has

        def noted(number: int) -> bool:
            asked.append(number)
            return has(number)

        selection.has = noted  # type: ignore[method-assign]
        waiting = [loop.create_task(receive(node, "hooks-*", count=1, wait_ms=20_000)) for _ in range(20)]
        await settle()
        await send(node, other, "not meant")
        await settle()
        assert set(asked) == {other.number}
        asked.clear()
        for task, name in zip(waiting, names[::500], strict=True):
            await send(node, node.broker.queue(ACCOUNT, name), name)
            assert await task == [(name, name)]
        assert len(set(asked)) == 20
        await node.stop()

    run_virtual(main)


class Elsewhere:
    """A shard of another node: has something at once, or when it is told so, or cannot be asked."""

    def __init__(self, *names: str, problem: BatonError | None = None) -> None:
        self._found = [(1, cast(Delivery, name)) for name in names]
        self._problem = problem
        self._late: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()

    def answer(self, *names: str) -> None:
        self._late.set_result([(1, cast(Delivery, name)) for name in names])

    async def receive_matching(
        self, account: str, patterns: Any, most: int, visibility_ms: int | None, wait_ms: int, holder: str
    ) -> list[Found]:
        if self._problem is not None:
            raise self._problem
        if wait_ms:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._late
        found, self._found = self._found[:most], self._found[most:]
        return found


class AllOver:
    def __init__(self, *ports: Elsewhere) -> None:
        self.back: list[str] = []
        self._ports = [cast(ShardPort, port) for port in ports]
        self._selection = Selection(cast(Any, None), ACCOUNT, ["hooks-*"])

    async def receive(self, most: int, wait_ms: int = 0) -> list[str]:
        found = await receive_all_over(self._ports, self._selection, most, None, wait_ms, "tester", self._give_back)
        return [str(name) for _, name in found]

    async def _give_back(self, found: Any) -> None:
        self.back += [name for _, name in found]


def test_shards_of_other_nodes_are_asked_in_turn_and_one_that_is_away_is_left_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        away = Elsewhere(problem=Unavailable("nobody serves it"))
        over = AllOver(Elsewhere("a", "b"), away, Elsewhere("c", "d"))
        assert await over.receive(1) == ["a"]
        assert await over.receive(2) == ["c", "d"]
        assert await over.receive(2) == ["b"]
        with pytest.raises(Unavailable, match="nobody serves it"):
            await AllOver(away).receive(1)
        assert over.back == []

    run_virtual(main)


def test_what_several_shards_answer_at_once_and_is_too_much_is_given_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        shards = [Elsewhere() for _ in range(3)]
        over = AllOver(*shards)
        waiting = loop.create_task(over.receive(2, wait_ms=10_000))
        await settle()
        shards[0].answer("a")
        shards[2].answer("b", "c")
        assert await waiting == ["a", "b"]
        assert over.back == ["c"]

    run_virtual(main)


def test_a_shard_that_is_handed_over_ends_the_wait_at_all_shards() -> None:
    """Whoever asked asks again, also the shard's new owner."""

    async def main(loop: VirtualLoop) -> None:
        handed_over, away = Elsewhere(), Elsewhere(problem=Unavailable("nobody serves it"))
        over = AllOver(Elsewhere(), handed_over, away)
        waiting = loop.create_task(over.receive(1, wait_ms=10_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        handed_over.answer()
        assert await waiting == [] and loop.time() < 2

    run_virtual(main)


def test_whoever_goes_away_leaves_nothing_leased_anywhere() -> None:
    async def main(loop: VirtualLoop) -> None:
        gone = Elsewhere(problem=QueueDoesNotExist("it was deleted just now"))
        over = AllOver(Elsewhere("a"), gone)
        with pytest.raises(QueueDoesNotExist):
            await over.receive(10)
        assert over.back == ["a"]

        shards = [Elsewhere(), Elsewhere()]
        over = AllOver(*shards)
        waiting = loop.create_task(over.receive(10, wait_ms=10_000))
        await settle()
        waiting.cancel()
        shards[0].answer("b")
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled() and over.back in (["b"], [])

    run_virtual(main)


def test_a_pattern_that_would_take_a_backtracking_matcher_for_ever(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        for queue in await make_queues(node, "a" * 80, "a" * 79 + "b"):
            await send(node, queue, "found")
        attack = "*a" * 39 + "*b"
        assert await receive(node, attack) == [("a" * 79 + "b", "found")]
        waiting = loop.create_task(receive(node, "b*", attack, wait_ms=20_000))
        await settle()
        (late,) = await make_queues(node, "a" * 78 + "cb")
        await send(node, late, "later")
        assert await waiting == [(late.name, "later")]
        await node.stop()

    run_virtual(main)


def test_a_request_has_a_bounded_number_of_patterns_and_any_number_of_names(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        (queue,) = await make_queues(node, "q-17")
        await send(node, queue, "found")
        with pytest.raises(InvalidInput, match="101 patterns with"):
            await receive(node, *[f"q-{number}*" for number in range(101)])
        assert await receive(node, *[f"q-{number}*" for number in range(100)], *["q-17"] * 500) == [("q-17", "found")]
        await node.stop()

    run_virtual(main)


def test_others_have_their_turn_while_many_names_are_matched(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queues = await make_queues(node, *[f"q-{number}" for number in range(1000)])
        for queue in queues:
            await send(node, queue, "found")
        turns = 0

        def count_turns() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count_turns)

        receiving = loop.create_task(receive(node, "*a*a*a*b", "q-999?", "none*", wait_ms=0))
        count_turns()
        assert await receiving == []
        assert turns >= 4
        assert len(await receive(node, "q-*", count=10)) == 10
        await node.stop()

    run_virtual(main)
