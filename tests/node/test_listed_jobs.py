"""Jobs that were given their messages by id: exactly those, each once, found without going through the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batonq.core.ids import message_id
from batonq.errors import InvalidInput
from batonq.node.broker import Queue
from batonq.node.jobs import redrive_scan as examining
from batonq.node.jobs.id_list import LISTED_MAX, listed_ids, pack, unpack
from batonq.node.jobs.job_control import Redrive
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, drain, kill, make_send, open_node, receive
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.node.test_jobs import QUICK, die, ended, with_morgue
from tests.support import brokers


async def ids(node: Node, queue: Queue) -> dict[str, str]:
    """Current id of each body."""
    return {peeked.body.decode(): peeked.current_id for peeked in await brokers.peek(node.broker, queue, 0, 1_000)}


@pytest.mark.parametrize("shards", [1, 2])
def test_those_and_no_others(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *"abcdefgh")
        await settle()
        known = await ids(node, morgue)
        for delivery in await receive(node, morgue, 1):
            assert delivery.body == b"a"
            await brokers.delete(node.broker, morgue, [delivery.receipt])
        elsewhere = message_id(7, 1)  # of a shard that there is not
        other = message_id(queue.shard, 1)  # what the first message was called when it was sent
        later = message_id(morgue.shard, 1 << 40)  # not given to any message yet
        chosen = [known["h"], known["a"], known["c"], known["c"], elsewhere, other, later]
        for dry in (True, False):
            spec = Redrive(filter={"messageIds": chosen}, dry_run=dry, **QUICK)
            job = await ended(node, await node.broker.start_job(morgue, spec)) if not dry else None
            job = job or await node.broker.start_job(morgue, spec)
            assert (job.state, job.examined, job.matched, job.not_found) == ("COMPLETED", 6, 2, 4)
            assert (job.moved, job.remaining) == (0 if dry else 2, 0)
            if dry:
                assert [(sample.body, sample.current_id) for sample in job.sample] == [
                    (b"c", known["c"]),
                    (b"h", known["h"]),
                ]
        assert sorted(await drain(node, queue)) == ["c", "h"]
        assert sorted(await drain(node, morgue)) == [*"bdefg"]
        await node.stop()

    run_virtual(main)


def test_other_filters_hold_as_well_and_an_edit_is_made(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a", "b", error_class="Busy")
        await die(node, queue, "c", "d", error_class="Broken")
        known = await ids(node, morgue)
        spec = Redrive(
            filter={"messageIds": [known["a"], known["c"]], "errorClass": "Busy"}, edit={"replaceBody": "x"}, **QUICK
        )
        job = await ended(node, await node.broker.start_job(morgue, spec))
        assert (job.examined, job.matched, job.moved, job.not_found) == (2, 1, 1, 0)
        assert await drain(node, queue) == ["x"]
        await node.stop()

    run_virtual(main)


def test_one_that_somebody_holds_is_passed_over(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a", "b")
        known = await ids(node, morgue)
        await receive(node, morgue, 1)
        spec = Redrive(filter={"messageIds": list(known.values())}, **QUICK)
        job = await ended(node, await node.broker.start_job(morgue, spec))
        assert (job.examined, job.matched, job.not_found) == (2, 1, 0)
        assert await drain(node, queue) == ["b"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_restart_in_the_middle_goes_on_with_the_same_list(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "LOOKED_AT_MAX", 7)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(60)))
        await settle()
        known = await ids(node, morgue)
        (first,) = await receive(node, morgue, 1)
        await brokers.delete(node.broker, morgue, [first.receipt])
        chosen = [known[str(number)] for number in range(0, 60, 2)]
        job = await node.broker.start_job(morgue, Redrive(filter={"messageIds": chosen}, rate_per_s=10))
        for _ in range(3):
            at = loop.time() + 0.8
            await until(lambda at=at: loop.time() > at)  # type: ignore[misc]
            await kill(node)
            node = await open_node(loop, tmp_path, shards=shards)
        done = await ended(node, job)
        assert (done.state, done.examined, done.matched, done.moved, done.not_found) == ("COMPLETED", 30, 29, 29, 1)
        assert sorted(await drain(node, queue)) == sorted(str(number) for number in range(2, 60, 2))
        assert len(await drain(node, morgue)) == 30
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_target_that_is_full_counts_nothing_twice(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        broker = node.broker
        queue, morgue = await with_morgue(node)
        small = await broker.create_queue(ACCOUNT, "small", {"Baton.MaximumMessages": "2"}, {})
        await die(node, queue, *map(str, range(8)))
        await settle()
        known = await ids(node, morgue)
        (first,) = await receive(node, morgue, 1)
        await brokers.delete(broker, morgue, [first.receipt])
        chosen = list(known.values())
        job = await broker.start_job(morgue, Redrive(target=small, filter={"messageIds": chosen}, **QUICK))
        arrived: list[str] = []
        for _ in range(30):
            at = loop.time() + 1
            await until(lambda at=at: loop.time() > at)  # type: ignore[misc]
            arrived += await drain(node, small)
        done = await ended(node, job)
        assert (done.state, done.examined, done.matched, done.not_found) == ("COMPLETED", 8, 7, 1)
        assert arrived == [str(number) for number in range(1, 8)]
        await node.stop()

    run_virtual(main)


def test_a_few_of_many_are_found_without_looking_at_the_others(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        for _ in range(50):
            await brokers.send(node.broker, morgue, [make_send("x" * 100) for _ in range(100)])
        host = node.keeper(0).host()
        walked: list[int] = []
        seek = host.shard.seek

        def counted(number: int, after: int, slot: int = 0xFFFFFFFF, sequence: int = 0) -> tuple[int, bool]:
            walked.append(after)
            return seek(number, after, slot, sequence)

        def unread(*_: int) -> bytes:
            raise AssertionError("a body was read")

        host.shard.seek = counted  # type: ignore[assignment]
        host.log.read_variable = unread  # type: ignore[method-assign, assignment]
        sequences = [view.sequence for view in host.shard.peek(morgue.number, 0, 5_000)][::500]
        walked.clear()
        chosen = [message_id(0, sequence) for sequence in sequences]
        spec = Redrive(filter={"messageIds": chosen}, target=queue, **QUICK)
        job = await ended(node, await node.broker.start_job(morgue, spec))
        assert (job.examined, job.moved) == (10, 10)
        assert walked == [sequence - 1 for sequence in sequences]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "1 to 10,000 message ids"),
        ("one", "1 to 10,000 message ids"),
        ([message_id(0, 1)] * (LISTED_MAX + 1), "1 to 10,000 message ids"),
        (["not-an-id"], "'not-an-id' is not a message id"),
        ([message_id(0, 1)[:-1] + "g"], "is not a message id"),
        ([7], "'7' is not a message id"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_list_of_ids_is_refused(tmp_path: Path, given: Any, why: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a")
        with pytest.raises(InvalidInput, match=why):
            await node.broker.start_job(morgue, Redrive(filter={"messageIds": given}))
        assert await node.broker.jobs(morgue) == []
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("step", [1, 3, 200, 1 << 33])
def test_a_list_is_kept_small(step: int) -> None:
    sequences = range(5, 5 + 10_000 * step, step)
    packed = pack(sequences)
    assert list(unpack(packed)) == [*sequences]
    assert len(packed) < 10_000
    assert list(unpack(pack([]))) == []


def test_ids_are_told_apart_by_shard() -> None:
    ids = [message_id(2, 9), message_id(1, 4), message_id(2, 3), message_id(2, 9), message_id(2, 50)]
    found = listed_ids({"messageIds": ids}, {2: 50})
    assert found is not None and (list(found.sequences[2]), found.elsewhere) == ([3, 9], 2)
    assert listed_ids({"errorClass": "x"}, {2: 50}) is None


def test_an_ended_job_forgets_its_list(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a")
        spec = Redrive(filter={"messageIds": list((await ids(node, morgue)).values())}, **QUICK)
        job = await node.broker.start_job(morgue, spec)
        assert node.keeper(0).host().shard.jobs[job.id].selection
        await ended(node, job)
        assert node.keeper(0).host().shard.jobs[job.id].selection == ""
        await node.stop()

    run_virtual(main)
