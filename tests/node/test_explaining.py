"""Why messages wait: each cause is built on a real node, in virtual time, and the diagnosis names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import Counters
from batonq.node.broker import Queue
from batonq.node.messages.queue_diagnosis import CAUSES, NAMES, Figures, Finding, diagnose, merged_groups
from batonq.node.messages.queue_figures import GroupFigures
from batonq.node.monitoring.queue_explainer import Explained, explain
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual
from tests.support import brokers

NO_COUNTERS = Counters(*(0,) * len(Counters._fields))


class Scene:
    """A node with a queue, and time that passes while producers and consumers work."""

    def __init__(self, loop: VirtualLoop, node: Node, queue: Queue) -> None:
        self.loop = loop
        self.node = node
        self.queue = queue

    async def set(self, **attributes: str) -> None:
        await self.node.broker.set_attributes(self.queue, {f"Baton.{k}": v for k, v in attributes.items()})
        found = self.node.broker.queue_by_number(self.queue.number)
        assert found is not None
        self.queue = found

    async def send(self, count: int, group: str = "", **fields: Any) -> None:
        await send(self.node, self.queue, *["x"] * count, group=group, **fields)

    async def consume(self, count: int, handling_s: float = 0.0, fails: bool = False, wait_ms: int = 0) -> int:
        found = await self.polled(count, wait_ms)
        await asyncio.sleep(handling_s)
        receipts = [one.receipt for one in found]
        if fails:
            await brokers.nack_many(self.node.broker, self.queue, [(one, 0, "boom", "Timeout") for one in receipts])
        else:
            await brokers.delete(self.node.broker, self.queue, receipts)
        return len(found)

    async def polled(self, count: int, wait_ms: int = 0) -> list[Any]:
        """As a front door does: the consumer is noted."""
        poll = self.node.broker.consumers.polls(ACCOUNT, self.queue.number, "worker-1", "127.0.0.1:9", b"test")
        found = await receive(self.node, self.queue, count, wait_ms=wait_ms)
        poll.answered(len(found))
        return found

    async def every_second(self, seconds: int, *works: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        for _ in range(seconds):
            started_s = self.loop.time()
            for work in works:
                await work()
            await asyncio.sleep(max(0.0, started_s + 1 - self.loop.time()))

    async def explained(self) -> Explained:
        before = await self.node.broker.counters(self.queue)
        found = await explain(self.node.broker, self.queue)
        assert await self.node.broker.counters(self.queue) == before, "explaining changes no counter"
        return found

    async def cause(self) -> Finding:
        """The first finding."""
        finding = (await self.explained()).diagnosis.findings[0]
        assert finding.action and finding.text.endswith("."), finding
        return finding


def on_scene(
    tmp_path: Path, play: Callable[[Scene], Coroutine[Any, Any, None]], fifo: bool = False, **own: str
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        attributes = {f"Baton.{name}": value for name, value in own.items()} | ({"FifoQueue": "true"} if fifo else {})
        queue = await node.broker.create_queue(ACCOUNT, "orders.fifo" if fifo else "orders", attributes, {})
        await asyncio.sleep(6)
        await play(Scene(loop, node, queue))
        await node.stop()

    run_virtual(main)


def test_an_empty_queue_is_fine(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        assert (await scene.cause())[:3] == ("fine", "note", "The queue is empty.")

    on_scene(tmp_path, play)


def test_consumers_that_keep_up_are_fine(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(1)
        await scene.every_second(120, lambda: scene.send(5), lambda: scene.consume(5))
        assert (await scene.cause()).cause == "fine"

    on_scene(tmp_path, play)


def test_a_producer_burst(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.every_second(120, lambda: scene.send(2), lambda: scene.consume(5))
        await scene.every_second(40, lambda: scene.send(50), lambda: scene.consume(5))
        finding = await scene.cause()
        assert finding.cause == "producer-burst"
        assert finding.figures["sentBeforePerSecond"] == pytest.approx(2, abs=4)
        assert finding.figures["sentPerSecond"] == pytest.approx(50, abs=10)

    on_scene(tmp_path, play)


@pytest.mark.parametrize("ever", [False, True])
def test_consumers_are_gone(tmp_path: Path, ever: bool) -> None:
    async def play(scene: Scene) -> None:
        if ever:
            await scene.every_second(90, lambda: scene.send(5), lambda: scene.consume(5))
        await scene.every_second(60, lambda: scene.send(5))
        finding = await scene.cause()
        assert finding.cause == "consumers-gone"
        assert ("the last one polled 1 min ago" if ever else "ever received") in finding.text
        assert finding.figures["visible"] == 300

    on_scene(tmp_path, play)


def test_a_poison_message(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(1)
        for _ in range(6):
            await scene.consume(1, fails=True)
        await scene.every_second(60, lambda: scene.send(3))
        await scene.consume(1, fails=True)
        finding = next(one for one in (await scene.explained()).diagnosis.findings if one.cause == "poison-message")
        assert finding.figures["errorClass"] == "Timeout" and int(finding.figures["receives"]) >= 6
        assert str(finding.figures["message"]) in finding.action

    on_scene(tmp_path, play)


def test_most_messages_fail(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(20)
        await scene.every_second(60, lambda: scene.send(1), lambda: scene.consume(10, fails=True))
        finding = await scene.cause()
        assert finding.cause == "failing" and "Timeout" in finding.text
        assert finding.figures["receivedPerSecond"] == pytest.approx(10, abs=2)

    on_scene(tmp_path, play)


def test_a_slow_downstream(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        for _ in range(90):
            await scene.send(8)
            await scene.consume(10, handling_s=1)
        for _ in range(8):
            await scene.send(64)
            await scene.consume(10, handling_s=8)
        finding = await scene.cause()
        assert finding.cause == "slow-downstream"
        assert int(finding.figures["handlingMs"]) > 3 * int(finding.figures["handlingBeforeMs"])

    on_scene(tmp_path, play)


def test_too_few_consumers(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.every_second(200, lambda: scene.send(8), lambda: scene.consume(4))
        finding = await scene.cause()
        assert finding.cause == "too-few-consumers" and finding.figures["consumers"] == 1

    on_scene(tmp_path, play)


def test_one_hot_group(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        for at in range(30):
            await scene.send(1, group=f"g{at}")
        for _ in range(20):
            await scene.send(10, group="all")
        for _ in range(3):
            await scene.consume(10)
        explained = await scene.explained()
        finding = explained.diagnosis.findings[0]
        assert finding.cause == "hot-group" and finding.figures["group"] == "all"
        hot = explained.figures.groups[0]
        assert (hot.name, hot.waiting) == ("all", finding.figures["waiting"])
        assert hot.share == pytest.approx(200 / 230, abs=0.01)

    on_scene(tmp_path, play, fifo=True)


def test_a_locked_group(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(4, group="one")
        await scene.polled(1)
        finding = await scene.cause()
        assert finding.cause == "group-locked"
        assert finding.figures["group"] == "one" and finding.figures["behind"] == 3
        assert "held by tester" in finding.text and str(finding.figures["message"]) in finding.action

    on_scene(tmp_path, play, fifo=True)


@pytest.mark.parametrize("paused", ["delivery", "both"])
def test_a_paused_queue(tmp_path: Path, paused: str) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(3)
        await scene.set(Paused=paused)
        finding = await scene.cause()
        assert finding.cause == "paused" and finding.text.startswith("Delivery is paused: 3 messages wait")
        assert ("Sends are paused too" in finding.text) == (paused == "both")
        assert "baton queue resume orders" in finding.action

    on_scene(tmp_path, play)


def test_a_queue_that_is_drained(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(500)
        await scene.every_second(30, lambda: scene.consume(5))
        await scene.set(Paused="sends")
        finding = await scene.cause()
        assert finding.cause == "draining" and finding.figures["left"] == 350
        assert "350 messages left, for about" in finding.text

    on_scene(tmp_path, play)


@pytest.mark.parametrize(
    ("own", "said"),
    [({"OnlyGroup": "vip"}, "of the group 'vip'"), ({"MinimumPriority": "200"}, "of priority 200 or above")],
)
def test_only_some_messages_are_delivered(tmp_path: Path, own: dict[str, Any], said: str) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(3)
        finding = await scene.cause()
        assert finding.cause == "restricted" and said in finding.text and "none of the 3" in finding.text

    on_scene(tmp_path, play, **own)


def test_a_paced_queue(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(100)
        for _ in range(80):
            await scene.consume(10, wait_ms=5_000)
        finding = await scene.cause()
        assert finding.cause == "paced" and finding.figures["deliveriesPerSecond"] == 2
        assert "capped at 2 per second" in finding.text

    on_scene(tmp_path, play, DeliveriesPerSecond="2")


def test_the_limit_of_messages_in_flight(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(10)
        await scene.polled(4)
        finding = await scene.cause()
        assert finding.cause == "in-flight-limit"
        assert (finding.figures["inFlight"], finding.figures["maxInFlight"]) == (4, 4)

    on_scene(tmp_path, play, MaximumInFlight="4")


def test_a_delayed_backlog(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(20, delay_ms=600_000)
        finding = await scene.cause()
        assert finding.cause == "delayed" and finding.text.startswith("20 of the 20 messages are delayed")
        assert int(finding.figures["nextVisibleAtMs"]) > 0

    on_scene(tmp_path, play)


def test_a_backlog_that_shrinks(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(500)
        await scene.every_second(60, lambda: scene.consume(5))
        finding = await scene.cause()
        assert finding.cause == "shrinking" and finding.kind == "note"

    on_scene(tmp_path, play)


def test_a_queue_on_several_shards_is_explained_as_one(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        for at in range(40):
            await scene.send(1, group="a" if at % 4 else "b")
        explained = await scene.explained()
        assert explained.figures.counters.visible == 40
        assert [(group.name, group.waiting) for group in explained.figures.groups] == [("a", 30), ("b", 10)]
        assert explained.figures.groups[0].share == pytest.approx(0.75)
        assert explained.diagnosis.findings[0].cause == "consumers-gone"

    on_scene(tmp_path, play, Spread="2")


def test_a_cap_that_will_hold_messages_back_is_noted(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(100)
        await scene.consume(1)
        await asyncio.sleep(1)
        findings = (await scene.explained()).diagnosis.findings
        assert ("paced", "note") in [(finding.cause, finding.kind) for finding in findings]

    on_scene(tmp_path, play, DeliveriesPerSecond="20")


def test_consumers_that_do_not_finish_do_not_keep_up(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(20)
        await asyncio.sleep(120)
        await scene.polled(1)
        finding = await scene.cause()
        assert finding.text == "19 messages wait, the oldest for 2 min; consumers finish 0.0 per second."

    on_scene(tmp_path, play)


# --- the pure part ---------------------------------------------------------------------------------


def test_every_cause_has_its_own_name_and_says_it() -> None:
    assert len({*NAMES}) == len(NAMES) == len(CAUSES) + 1
    paused = Figures("q", 0, NO_COUNTERS._replace(visible=1), paused="both", deliveries_per_s=1, only_group="g")
    for cause in CAUSES:
        found = cause.find(paused)
        assert found is None or found.cause == cause.name


def test_what_stops_a_queue_comes_before_what_slows_it_down() -> None:
    figures = Figures("q", 0, NO_COUNTERS._replace(visible=10, delayed=20), paused="delivery", only_group="g")
    assert [finding.cause for finding in diagnose(figures).findings] == ["paused", "restricted", "delayed"]


def test_groups_of_several_shards_are_merged_by_what_each_shard_counted() -> None:
    merged = merged_groups(
        [[GroupFigures("a", 1.0, 5, 100)], [GroupFigures("a", 0.5, 1, 300), GroupFigures("b", 0.5, 2, 300)]], 10
    )
    assert merged == (GroupFigures("a", 0.625, 6, 400), GroupFigures("b", 0.375, 2, 400))
