"""Several shards in one process: dead letters and redrives between them, and exactly one copy whatever is killed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.errors import BatonError, Unavailable
from batonq.node.broker import Queue
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, Faults, drain, kill, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.support import brokers


async def make_pair(node: Node, *, fifo: bool = False, maximum: int = 1) -> tuple[Queue, Queue]:
    """A queue and its dead-letter queue, on different shards."""
    end = ".fifo" if fifo else ""
    attributes = {"FifoQueue": "true"} if fifo else {}
    dead = await node.broker.create_queue(ACCOUNT, f"dead{end}", attributes, {})
    policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, dead.name), "maxReceiveCount": maximum})
    queue = await node.broker.create_queue(ACCOUNT, f"orders{end}", {**attributes, "RedrivePolicy": policy}, {})
    assert queue.shard != dead.shard
    return queue, dead


async def settled(node: Node) -> None:
    """Wait until no shard owes another anything."""
    await until(lambda: not any(keeper.serving and keeper.host().shard.unsettled() for keeper in node.shards))


async def fail_all(node: Node, queue: Queue, count: int) -> None:
    """Receive everything once, and let SQS's rule find at the next receive that it was once too often."""
    for _ in range(count // 10 + 2):
        await receive(node, queue, visibility_ms=0)
    await settled(node)


def test_a_dead_letter_reaches_a_queue_on_another_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node)
        sent = await send(node, queue, "a", trace="Root=1")
        await fail_all(node, queue, 1)
        letter = (await receive(node, dead))[0]
        assert letter.message_id == sent[0].message_id  # type: ignore[union-attr]
        assert (letter.body, letter.trace, letter.receive_count) == (b"a", "Root=1", 2)
        assert letter.lineage is not None and letter.lineage.source_queue == queue.number
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.owed, counters.dead_lettered) == (0, 0, 1)
        await node.stop()

    run_virtual(main)


def test_a_redrive_brings_it_back_with_its_past(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node)
        sent = await send(node, queue, *(f"message {number}" for number in range(25)))
        first_ids = {one.message_id for one in sent}  # type: ignore[union-attr]
        await fail_all(node, queue, 25)
        job = await node.broker.start_move(dead, None, 500)
        await asyncio.sleep(2)
        assert (await node.broker.moves(dead))[0].state == "COMPLETED"
        assert (await node.broker.moves(dead))[0].moved == job.to_move == 25
        back = [delivery for _ in range(3) for delivery in await receive(node, queue)]
        assert {delivery.body for delivery in back} == {f"message {number}".encode() for number in range(25)}
        assert all(delivery.receive_count == 1 for delivery in back)
        assert {delivery.lineage.first_id for delivery in back if delivery.lineage} == first_ids
        assert not first_ids & {delivery.message_id for delivery in back}
        await node.stop()

    run_virtual(main)


def test_fifo_dead_letters_keep_their_group(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node, fifo=True)
        for number in range(6):
            await send(node, queue, str(number), group=f"group {number % 2}", dedup_id=str(number))
        for _ in range(4):  # the next of a group can be given up once the one before has gone
            await fail_all(node, queue, 6)
        letters = await receive(node, dead)
        assert sorted((letter.group, letter.body) for letter in letters) == [
            (f"group {number % 2}", str(number).encode()) for number in (0, 2, 4, 1, 3, 5)
        ]
        assert all(letter.dedup_id == letter.message_id for letter in letters)
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_queue_that_is_gone_keeps_messages_at_home_and_raises_an_alarm(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node)
        await send(node, queue, "a")
        await node.broker.delete_queue(dead)
        await fail_all(node, queue, 1)
        assert (await node.broker.counters(queue)).delayed == 1
        assert any("does not exist" in alarm.text for alarm in node.alarms.active())
        again = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        await asyncio.sleep(10)
        assert [letter.body for letter in await receive(node, again)] == [b"a"]
        await node.stop()

    run_virtual(main)


def test_entries_wait_while_their_destination_is_away(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, shards=2, faults=faults, reopen_first_s=30.0)
        queue, dead = await make_pair(node)
        await send(node, queue, "a", "b")
        faults.planned[dead.shard] = ["refuse"]
        with pytest.raises(Unavailable, match="refused by the test"):
            await send(node, dead, "lost")
        for _ in range(2):
            await receive(node, queue, visibility_ms=0)
        await asyncio.sleep(20)
        assert (await node.broker.counters(queue)).owed == 2
        await asyncio.sleep(20)
        assert sorted(await drain(node, dead)) == ["a", "b"]
        assert (await node.broker.counters(queue)).owed == 0
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("fault", ["refuse", "fail after writing", "hang"])
@pytest.mark.parametrize("at", ["source", "destination"])
@pytest.mark.parametrize("step", range(6))
def test_one_copy_is_left_wherever_a_transfer_is_interrupted(tmp_path: Path, fault: str, at: str, step: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, shards=2, faults=faults)
        queue, dead = await make_pair(node)
        await send(node, queue, *(f"{number}" for number in range(3)))
        shard = queue.shard if at == "source" else dead.shard
        faults.planned[shard] = [""] * step + [fault]
        for _ in range(4):
            work = loop.create_task(receive(node, queue, visibility_ms=0))
            await asyncio.wait([work], timeout=5)
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        await asyncio.sleep(5)
        await kill(node)
        faults.planned.clear()
        node = await open_node(loop, tmp_path, shards=2, faults=faults)
        for _ in range(4):
            await receive(node, queue, visibility_ms=0)
        await settled(node)
        for keeper in node.shards:
            keeper.host().shard.validate()
        assert Counter(await drain(node, dead)) == Counter({"0": 1, "1": 1, "2": 1})
        assert (await node.broker.counters(queue)).visible == 0
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(8))
def test_under_random_failures_and_kills_every_message_has_one_copy(tmp_path: Path, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        faults = Faults()
        node = await open_node(loop, tmp_path, shards=3, faults=faults)
        queue, dead = await make_pair(node)
        faults.random, faults.chance = random, 0.02
        acknowledged: set[str] = set()
        maybe: set[str] = set()
        deleted: set[str] = set()
        number = 0
        for _ in range(12):
            for _ in range(random.randint(5, 40)):
                action = random.random()
                try:
                    if action < 0.4:
                        texts = [str(number + offset) for offset in range(random.randint(1, 5))]
                        number += len(texts)
                        maybe.update(texts)
                        await send(node, queue, *texts)
                        acknowledged.update(texts)
                    elif action < 0.8:
                        for delivery in await receive(node, queue, 5, visibility_ms=random.choice((0, 100, 5_000))):
                            if random.random() < 0.2:
                                maybe.discard(delivery.body.decode())  # whether it goes is known only by the answer
                                deleted.add(delivery.body.decode())
                                await brokers.delete(node.broker, queue, [delivery.receipt])
                    elif action < 0.9:
                        await node.broker.start_move(dead, None, 500)
                    else:
                        await asyncio.sleep(random.random() * 3)
                except BatonError:
                    await asyncio.sleep(random.random())
            if random.random() < 0.5:
                await kill(node)
                faults.chance = 0.0
                node = await open_node(loop, tmp_path, shards=3, faults=faults)
                faults.chance = 0.02
        faults.chance = 0.0
        await asyncio.sleep(40)
        await settled(node)
        await until(
            lambda: not any(job.state == "RUNNING" for job in node.shards[dead.shard].host().shard.jobs.values())
        )
        for keeper in node.shards:
            keeper.host().shard.validate()
        left = Counter(await drain(node, dead)) + Counter(await drain(node, queue))
        await settled(node)
        left += Counter(await drain(node, dead))
        assert max(left.values(), default=1) == 1
        assert acknowledged - deleted <= left.keys() <= maybe | deleted | acknowledged
        await node.stop()

    run_virtual(main)
