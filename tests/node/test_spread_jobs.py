"""Dead letters, redrives and other jobs of queues on several shards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from batonq.core.ids import parse_message_id
from batonq.errors import (
    JobConflict,
)
from batonq.node.broker import Queue
from batonq.node.jobs.job_control import Redrive
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, drain, kill, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_jobs import ended
from tests.node.wide import counts, make, make_fifo
from tests.support import brokers

ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"


async def with_morgue(node: Node, spread: int, morgue_spread: int) -> tuple[Queue, Queue]:
    morgue = await make(node, "morgue", morgue_spread)
    policy = json.dumps({"deadLetterTargetArn": ARN + "morgue", "maxReceiveCount": 1})
    return await make(node, "orders", spread, RedrivePolicy=policy, Baton_DeadLetterOn="failure"), morgue


async def die(node: Node, queue: Queue, morgue: Queue, count: int) -> None:
    dead = (await node.broker.counters(morgue)).visible
    for number in range(count):
        await send(node, queue, str(number))
    while held := await receive(node, queue):
        for delivery in held:
            await brokers.nack(node.broker, queue, delivery.receipt, 0, "no", "Oops")

    async def arrived() -> bool:
        return (await node.broker.counters(morgue)).visible == dead + count

    await until(arrived)


@pytest.mark.parametrize(("spread", "morgue_spread"), [(3, 3), (3, 1), (1, 3), (2, 4)])
def test_dead_letters_go_and_come_back_between_spread_queues(tmp_path: Path, spread: int, morgue_spread: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, spread, morgue_spread)
        await die(node, queue, morgue, 12)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0))
        status = await ended(node, job)
        assert (status.state, status.moved, status.examined, status.remaining) == ("COMPLETED", 12, 12, 0)
        assert (await node.broker.jobs(morgue))[0] == status
        assert sorted(map(int, await drain(node, queue))) == list(range(12))
        assert (await node.broker.counters(morgue)).visible == 0
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_goes_to_another_shard_when_one_has_no_room(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        await make(node, "morgue", 3, Baton_MaximumMessages="6")
        policy = json.dumps({"deadLetterTargetArn": ARN + "morgue", "maxReceiveCount": 1})
        queue = await make(node, "orders", 1, RedrivePolicy=policy, Baton_DeadLetterOn="failure")
        await die(node, queue, node.broker.queue(ACCOUNT, "morgue"), 6)
        assert counts(node, node.broker.queue(ACCOUNT, "morgue")) == [2, 2, 2]
        await node.stop()

    run_virtual(main)


def test_a_job_over_several_shards_has_one_rate_one_progress_and_one_limit(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, 3, 3)
        await die(node, queue, morgue, 40)
        look = await node.broker.start_job(morgue, Redrive(dry_run=True))
        assert (look.matched, look.dry_run) == (40, True)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=4, ramp_s=0))
        began_s = loop.time()
        with pytest.raises(JobConflict):
            await node.broker.start_job(morgue, Redrive(rate_per_s=4, ramp_s=0))
        assert (await node.broker.job(ACCOUNT, job.id)).current_rate == pytest.approx(4)
        await asyncio.sleep(4)
        status = await node.broker.pause_job(ACCOUNT, job.id)
        assert status.state == "PAUSED" and 8 <= status.moved <= 18 and status.remaining == 40 - status.examined
        await kill(node)
        node = await open_node(loop, tmp_path, shards=4)
        morgue = node.broker.queue(ACCOUNT, "morgue")
        assert (await node.broker.job(ACCOUNT, job.id)).state == "PAUSED"
        await node.broker.resume_job(ACCOUNT, job.id)
        status = await ended(node, job)
        assert (status.state, status.moved) == ("COMPLETED", 40) and loop.time() - began_s > 9
        await node.stop()

    run_virtual(main)


def test_a_job_moves_no_more_than_it_may_and_those_that_it_was_given_by_id(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, 3, 3)
        await die(node, queue, morgue, 12)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0, max_messages=5))
        assert (await ended(node, job)).moved == 5
        left = [peeked.current_id for peeked in await brokers.peek(node.broker, morgue, 0, 100)]
        given = [*left[::2], left[0]]
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0, filter={"messageIds": given}))
        status = await ended(node, job)
        assert (status.moved, status.not_found) == (len(left[::2]), 0)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1, ramp_s=0))
        assert (await node.broker.cancel_job(ACCOUNT, job.id)).state == "CANCELLING"
        assert (await ended(node, job)).state == "CANCELLED"
        moved = (await node.broker.counters(queue)).arrived
        assert moved == 12 - (await node.broker.counters(morgue)).visible
        await asyncio.sleep(1)
        task = await node.broker.start_move(morgue, None, 500)
        assert (await node.broker.moves(morgue))[0].id == task.id
        await ended(node, task)
        assert (await node.broker.counters(queue)).visible == 12
        await node.stop()

    run_virtual(main)


def test_fifo_dead_letters_find_the_shard_of_their_group(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        morgue = await make_fifo(node, "morgue.fifo", 4)
        policy = json.dumps({"deadLetterTargetArn": ARN + "morgue.fifo", "maxReceiveCount": 1})
        queue = await make_fifo(node, "orders.fifo", 2, RedrivePolicy=policy, Baton_DeadLetterOn="failure")
        groups = [f"g{at}" for at in range(8)]
        for group in groups:
            await send(node, queue, f"{group}", group=group, dedup_id="1")
        for _ in groups:
            (held,) = await receive(node, queue, 1)
            await brokers.nack(node.broker, queue, held.receipt, 0)

        async def arrived() -> bool:
            return (await node.broker.counters(morgue)).visible == len(groups)

        await until(arrived)
        for peeked in await brokers.peek(node.broker, morgue, 0, 100):
            place = parse_message_id(peeked.current_id)
            assert place is not None and place[0] == morgue.spread.of_key(peeked.group)
        job = await node.broker.start_job(morgue, Redrive(target=queue, rate_per_s=1_000, ramp_s=0))
        assert (await ended(node, job)).moved == len(groups)
        for peeked in await brokers.peek(node.broker, queue, 0, 100):
            place = parse_message_id(peeked.current_id)
            assert place is not None and place[0] == queue.spread.of_key(peeked.group)
        await node.stop()

    run_virtual(main)
