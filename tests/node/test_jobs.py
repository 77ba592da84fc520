"""Redrive jobs as the broker offers them: filters, edits, dry runs, rates, pauses; in a shard, across, restarted."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import Job
from batonq.core.payload import Attribute, Content, decode_attributes, encode_attributes
from batonq.errors import InvalidInput, JobConflict, JobNotFound
from batonq.node.broker import Queue
from batonq.node.jobs import redrive_scan as examining
from batonq.node.jobs.job_control import JobStatus, Redrive
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, drain, kill, make_send, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.support import ask, brokers

ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"
QUICK: dict[str, Any] = {"rate_per_s": 1_000, "ramp_s": 0}


async def with_morgue(node: Node, **attributes: str) -> tuple[Queue, Queue]:
    """A queue whose messages die at their first failure, and where they go."""
    morgue = await node.broker.create_queue(ACCOUNT, "morgue", {}, {})
    policy = json.dumps({"deadLetterTargetArn": ARN + "morgue", "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy, "Baton.DeadLetterOn": "failure", **attributes}
    return await node.broker.create_queue(ACCOUNT, "orders", attributes, {}), morgue


async def die(node: Node, queue: Queue, *bodies: str, error_class: str = "", reason: str = "", **fields: Any) -> None:
    await send(node, queue, *bodies, **fields)
    for _ in bodies:
        (delivery,) = await receive(node, queue, 1)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, reason, error_class)


async def ended(node: Node, job: JobStatus | Job) -> JobStatus:
    async def over() -> bool:
        return (await node.broker.job(ACCOUNT, job.id)).state not in ("RUNNING", "CANCELLING")

    await until(over)
    return await node.broker.job(ACCOUNT, job.id)


def attributes(**values: str) -> bytes:
    return encode_attributes([Attribute(name, "String", value.encode(), False) for name, value in values.items()])


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ({}, ["small", "large", "odd"]),
        ({"attributes": {"tier": "paid"}}, ["large"]),
        ({"attributes": {"tier": "paid", "missing": "x"}}, []),
        ({"attributes": {"size": 7}}, ["large"]),
        ({"errorClass": "Timeout"}, ["small", "large"]),
        ({"errorClass": "Time"}, []),
        ({"reasonContains": "stock"}, ["odd"]),
        ({"bodyContains": "mal"}, ["small"]),
        ({"minAgeSeconds": 5}, ["small"]),
        ({"maxAgeSeconds": 5}, ["large", "odd"]),
        ({"errorClass": "Timeout", "maxAgeSeconds": 5}, ["large"]),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_filter_says_which_messages_are_meant(
    tmp_path: Path, filter_: dict[str, Any], expected: list[str], shards: int
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        assert (queue.shard == morgue.shard) == (shards == 1)
        await die(node, queue, "small", error_class="Timeout", reason="no answer")
        await node.broker.advance_clock(10_000)
        paid = encode_attributes(
            [Attribute("tier", "String", b"paid", False), Attribute("size", "Number", b"7.0", False)]
        )
        await die(node, queue, "large", error_class="Timeout", reason="no answer", attributes=paid)
        await die(node, queue, "odd", error_class="KeyError", reason="out of stock")
        await settle()
        looked = await node.broker.start_job(morgue, Redrive(filter=filter_, dry_run=True, **QUICK))
        assert (looked.dry_run, looked.state, looked.examined) == (True, "COMPLETED", 3)
        assert (looked.matched, looked.moved, looked.remaining) == (len(expected), 0, 0)
        assert [sample.body.decode() for sample in looked.sample] == expected
        job = await ended(node, await node.broker.start_job(morgue, Redrive(filter=filter_, **QUICK)))
        assert (job.state, job.examined, job.matched, job.moved) == ("COMPLETED", 3, len(expected), len(expected))
        assert sorted(await drain(node, queue)) == sorted(expected)
        left = [peeked.body.decode() for peeked in await brokers.peek(node.broker, morgue, 0, 10)]
        assert left == [body for body in ("small", "large", "odd") if body not in expected]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("edit", "body", "content", "tags"),
    [
        ({"replaceText": [{"find": "hat", "with": "coat"}]}, b"a coat", Content.TEXT, {"tier": b"free"}),
        ({"replaceBody": "new"}, b"new", Content.TEXT, {"tier": b"free"}),
        ({"replaceBody": {"n": [1, "ü"]}}, '{"n":[1,"ü"]}'.encode(), Content.JSON, {"tier": b"free"}),
        ({"replaceBody": b"\x00\xff"}, b"\x00\xff", Content.BYTES, {"tier": b"free"}),
        ({"replaceBodyBase64": "AP8="}, b"\x00\xff", Content.BYTES, {"tier": b"free"}),
        (
            {"setAttributes": {"tier": "paid", "n": 3, "raw": {"base64": "AP8="}}},
            b"a hat",
            Content.TEXT,
            {"tier": b"paid", "n": b"3", "raw": b"\x00\xff"},
        ),
        ({"removeAttributes": ["tier", "other"]}, b"a hat", Content.TEXT, {}),
    ],
)
def test_an_edit_changes_what_is_moved(
    tmp_path: Path, edit: dict[str, Any], body: bytes, content: Content, tags: dict[str, bytes], shards: int
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a hat", error_class="Odd", attributes=attributes(tier="free"))
        await settle()
        looked = await node.broker.start_job(morgue, Redrive(edit=edit, dry_run=True))
        assert [(sample.body, sample.content, sample.error_class) for sample in looked.sample] == [
            (body, content, "Odd")
        ]
        assert (await brokers.peek(node.broker, morgue, 0, 1))[0].body == b"a hat"
        await ended(node, await node.broker.start_job(morgue, Redrive(edit=edit)))
        (delivery,) = await receive(node, queue)
        assert (delivery.body, delivery.content) == (body, content)
        assert {a.name: a.value for a in decode_attributes(delivery.attributes)} == tags
        assert delivery.body_md5 == hashlib.md5(body, usedforsecurity=False).digest()
        assert delivery.lineage is not None and delivery.lineage.error_class == "Odd"
        await kill(node)
        node = await open_node(loop, tmp_path, shards=shards)
        (again,) = await brokers.peek(node.broker, queue, 0, 9)
        assert (again.body, again.content) == (body, content)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rate_per_s": 0}, "1 to 10000"),
        ({"rate_per_s": 10_001}, "1 to 10000"),
        ({"ramp_s": -1}, "ramp"),
        ({"pause_when_dying_share": 1.5}, "share"),
        ({"max_messages": -1}, "maximum number of messages"),
        ({"filter": {"colour": "red"}}, "unknown fields: colour"),
        ({"filter": {"errorClass": 3}}, "errorClass must be a string"),
        ({"filter": {"minAgeSeconds": "1"}}, "minAgeSeconds"),
        ({"filter": {"attributes": {"a": None}}}, "value of an attribute"),
        ({"filter": {"attributes": ["a"]}}, "attributes must be an object"),
        ({"edit": {"replaceBody": "a", "replaceText": []}}, "one of"),
        ({"edit": {"replaceText": [{"find": "", "with": "x"}]}}, "replaceText"),
        ({"edit": {"replaceBodyBase64": "?"}}, "base64"),
        ({"edit": {"setAttributes": {"": "x"}}}, "name of an attribute"),
        ({"edit": {"removeAttributes": [1]}}, "list of strings"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        _, morgue = await with_morgue(node)
        with pytest.raises(InvalidInput, match=why):
            await node.broker.start_job(morgue, Redrive(**fields))
        assert await node.broker.jobs(morgue) == []
        await node.stop()

    run_virtual(main)


def test_an_edit_that_cannot_be_made_fails_the_job_and_changes_nothing(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, '{"a":1}', content=int(Content.JSON))
        edit = {"replaceText": [{"find": "}", "with": ""}]}
        with pytest.raises(InvalidInput, match="no longer be valid JSON"):
            await node.broker.start_job(morgue, Redrive(edit=edit, dry_run=True))
        job = await ended(node, await node.broker.start_job(morgue, Redrive(edit=edit)))
        assert job.state == "FAILED" and "no longer be valid JSON" in job.why
        assert (await brokers.peek(node.broker, morgue, 0, 1))[0].body == b'{"a":1}'
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("body", "find", "replacement", "why"),
    [
        ('{"a":1}', "1", "NaN", "no longer be valid JSON"),  # which Python reads, and JSON has not
        ('{"a":1}', "1", "[" * 200 + "]" * 200, "no longer be valid JSON"),
        ('{"a":1}', "1", "1" * 5_000, "no longer be valid JSON"),
        ('["' + "a" * 1_000_000 + '"]', "a", "b" * 16_384, "larger than 1048576 bytes"),  # 16 GB, if it were made
    ],
)
def test_edits_that_would_make_a_message_that_cannot_be_sent(
    tmp_path: Path, body: str, find: str, replacement: str, why: str
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, body, content=int(Content.JSON))
        edit = {"replaceText": [{"find": find, "with": replacement}]}
        with pytest.raises(InvalidInput, match=why):
            await node.broker.start_job(morgue, Redrive(edit=edit, dry_run=True))
        await node.stop()

    run_virtual(main)


def test_sources_and_targets_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        fifo = await node.broker.create_queue(ACCOUNT, "f.fifo", {"FifoQueue": "true"}, {})
        for source, target, why in (
            (queue, None, "nothing to redrive"),
            (morgue, fifo, "same type"),
            (morgue, morgue, "a different queue"),
        ):
            with pytest.raises(InvalidInput, match=why):
                await node.broker.start_job(source, Redrive(target=target))
        await node.stop()

    run_virtual(main)


def test_a_paused_job_ends_when_its_queue_is_deleted(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        broker = node.broker
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(5)))
        job = await broker.start_job(morgue, Redrive(filter={"bodyContains": ""}, rate_per_s=1))
        await broker.pause_job(ACCOUNT, job.id)
        with pytest.raises(JobConflict, match=f"Job {job.id} is paused on this queue"):
            await broker.start_job(morgue, Redrive())
        await broker.delete_queue(morgue)
        for _ in range(2):
            await settle()
            ended_job = broker._shards[0].host().shard.jobs[job.id]
            assert (ended_job.state, ended_job.why) == ("FAILED", "The source queue was deleted.")
            assert ended_job.ended_ms
            await node.stop()
            node = await open_node(loop, tmp_path)  # the log says so too
            broker = node.broker
        await node.stop()

    run_virtual(main)


def test_one_job_a_source_that_can_be_paused_gone_on_with_and_cancelled(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        broker = node.broker
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(30)))
        job = await broker.start_job(morgue, Redrive(filter={"bodyContains": ""}, rate_per_s=10))
        with pytest.raises(JobConflict):
            await broker.start_job(morgue, Redrive())
        await until(lambda: broker.queue_by_number(1) is not None and loop.time() > 1)
        paused = await broker.pause_job(ACCOUNT, job.id)
        assert (paused.state, paused.current_rate, paused.why) == ("PAUSED", 0.0, "The job was paused by request.")
        assert 5 <= paused.moved <= 12
        await node.broker.advance_clock(10_000)
        await settle()
        assert (await broker.job(ACCOUNT, job.id)).moved == paused.moved
        assert (await broker.moves(morgue))[0].state == "RUNNING", "SQS knows no pause"
        resumed = await broker.resume_job(ACCOUNT, job.id)
        assert (resumed.state, resumed.why, resumed.current_rate) == ("RUNNING", "", 10.0)
        assert resumed.remaining == 30 - resumed.examined
        await until(lambda: broker._shards[0].host().shard.jobs[job.id].moved > 15)
        await broker.cancel_job(ACCOUNT, job.id)
        done = await ended(node, job)
        assert done.state == "CANCELLED" and 15 < done.moved < 30 and done.ended_ms
        assert [status.id for status in await broker.jobs(morgue)] == [job.id]
        for call in (broker.cancel_job, broker.pause_job, broker.resume_job):
            with pytest.raises(JobNotFound):
                await call(ACCOUNT, job.id)
        for account, job_id in ((ACCOUNT, "other"), ("999999999999", job.id)):
            with pytest.raises(JobNotFound):
                await broker.job(account, job_id)
        await node.stop()

    run_virtual(main)


def test_at_most_so_many_and_at_the_rate(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(40)))
        before = loop.time()
        spec = Redrive(filter={"errorClass": ""}, edit={"setAttributes": {"n": 1}}, rate_per_s=10, max_messages=25)
        job = await ended(node, await node.broker.start_job(morgue, spec))
        assert (job.state, job.moved, job.matched) == ("COMPLETED", 25, 25)
        assert 2.0 < loop.time() - before < 3.5
        assert len(await drain(node, morgue)) == 15
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_restart_in_the_middle_goes_on_from_the_log(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "LOOKED_AT_MAX", 7)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *(f"{number} of {'odd' if number % 2 else 'even'}" for number in range(60)))
        await settle()
        spec = Redrive(
            filter={"bodyContains": "odd"}, edit={"replaceText": [{"find": "of", "with": "ofof"}]}, rate_per_s=10
        )
        job = await node.broker.start_job(morgue, spec)
        for _ in range(4):
            at = loop.time() + 0.8
            await until(lambda at=at: loop.time() > at)  # type: ignore[misc]
            await kill(node)
            node = await open_node(loop, tmp_path, shards=shards)
        done = await ended(node, job)
        assert (done.state, done.examined, done.matched, done.moved) == ("COMPLETED", 60, 30, 30)
        bodies = await drain(node, queue)
        assert sorted(bodies) == sorted(f"{number} ofof odd" for number in range(1, 60, 2))
        assert len(await drain(node, morgue)) == 30
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_job_whose_messages_die_again_pauses_itself_and_says_so(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(60)))
        await settle()

        async def fail() -> None:
            while True:
                for delivery in await receive(node, queue, 10, wait_ms=20_000):
                    await brokers.nack(node.broker, queue, delivery.receipt, 0, "still wrong", "ValueError")

        failing = loop.create_task(fail())
        job = await ended(node, await node.broker.start_job(morgue, Redrive(rate_per_s=20)))
        assert job.state == "PAUSED" and "dead-lettered again" in job.why
        assert 10 <= job.moved < 60 and job.died_again > job.moved / 2
        failing.cancel()
        await node.broker.resume_job(ACCOUNT, job.id)
        done = await ended(node, job)
        assert (done.state, done.moved) == ("COMPLETED", 60)
        await kill(node)
        node = await open_node(loop, tmp_path, shards=shards)
        assert (await node.broker.job(ACCOUNT, job.id)).died_again == done.died_again
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("filter_", [None, {"bodyContains": ""}, {"errorClass": "Odd"}])
def test_a_target_that_is_full_makes_the_job_wait_and_say_so(
    tmp_path: Path, shards: int, filter_: dict[str, Any] | None
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, morgue = await with_morgue(node)
        await die(node, queue, *map(str, range(12)), error_class="Odd")
        await settle()
        await node.broker.set_attributes(queue, {"Baton.MaximumMessages": "4"})
        job = await node.broker.start_job(morgue, Redrive(filter=filter_, **QUICK))

        async def waits() -> bool:
            return bool((await node.broker.job(ACCOUNT, job.id)).why)

        await until(waits)
        waiting = await node.broker.job(ACCOUNT, job.id)
        assert (waiting.state, waiting.moved) == ("RUNNING", 4)
        assert "is full" in waiting.why
        frames = node.keeper(morgue.shard).statistics.frames
        at = loop.time() + 100
        await until(lambda: loop.time() > at)
        assert node.keeper(morgue.shard).statistics.frames - frames < 30, "it tries again more and more seldom"
        bodies: list[str] = []
        while (await node.broker.job(ACCOUNT, job.id)).state == "RUNNING":
            bodies += await drain(node, queue)
            at = loop.time() + 5
            await until(lambda at=at: loop.time() > at)  # type: ignore[misc]
        bodies += await drain(node, queue)
        assert sorted(bodies, key=int) == [str(number) for number in range(12)]
        done = await node.broker.job(ACCOUNT, job.id)
        assert (done.state, done.moved, done.matched, done.examined, done.why) == ("COMPLETED", 12, 12, 12, "")
        await node.stop()

    run_virtual(main)


def test_a_long_queue_is_looked_at_in_steps_that_let_others_in(tmp_path: Path) -> None:
    """Between two turns of the loop at most a few dozen messages are read."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        _, morgue = await with_morgue(node)
        for _ in range(20):
            await brokers.send(node.broker, morgue, [make_send("x" * 100) for _ in range(100)])
        host = node.keeper(0).host()
        read: list[int] = []
        turns = 0
        inner = host.log.read_variable

        def counted(position: int, offset: int, length: int) -> bytes:
            read.append(turns)
            return inner(position, offset, length)

        host.log.read_variable = counted  # type: ignore[method-assign]
        looking = loop.create_task(node.broker.start_job(morgue, Redrive(filter={"bodyContains": "y"}, dry_run=True)))
        await settle(1)
        while not looking.done():
            turns += 1
            await settle(1)
        assert (await looking).examined == len(read) == 2_000
        assert max(read.count(turn) for turn in set(read)) <= examining.TURN_MESSAGES
        await node.stop()

    run_virtual(main)


def test_messages_that_died_in_their_own_queue_are_chosen_by_how_they_failed_there(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        values = {"Baton.MaxReceives": "1", "Baton.DeadLetterOn": "failure"}
        lone = await node.broker.create_queue(ACCOUNT, "lone", values, {})
        await die(node, lone, "a", error_class="Busy", reason="try later")
        await die(node, lone, "b", error_class="Broken")
        await send(node, lone, "waits")
        job = await node.broker.start_job(lone, Redrive(filter={"errorClass": "Busy"}))
        assert (await ended(node, job)).moved == 1
        assert sorted(await drain(node, lone)) == ["a", "waits"]
        await node.stop()

    run_virtual(main)


def test_messages_on_a_cold_disk_are_fetched_beside_the_loop_and_may_go_meanwhile(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a", "b", "c", "d")
        host = node.keeper(0).host()
        warmed: list[int] = []

        def warm(work: Any, numbers: list[int]) -> asyncio.Future[None]:
            """Stands in for a thread. While it works, the first message is taken by somebody else."""
            warmed.extend(numbers)
            done = loop.create_future()
            loop.call_soon(done.set_result, None)
            if len(warmed) == 1:
                (lease,) = ask.receive(host.shard, morgue.number, 1, None, node.broker.now_ms(), "tester")
                ask.delete(host.shard, morgue.number, [lease[:3]], node.broker.now_ms())
            return done

        host.log.is_cold = lambda number: number not in warmed  # type: ignore[method-assign]
        loop.run_in_executor = lambda _, work, numbers: warm(work, numbers)  # type: ignore[assignment, method-assign, misc]
        job = await node.broker.start_job(morgue, Redrive(filter={"maxAgeSeconds": 1_000}, **QUICK))
        done = await ended(node, job)
        assert (done.state, done.moved) == ("COMPLETED", 3)
        assert sorted(await drain(node, queue)) == ["b", "c", "d"]
        assert warmed
        await node.stop()

    run_virtual(main)


def test_a_message_that_cannot_be_taken_apart_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such layout")

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, morgue = await with_morgue(node)
        await die(node, queue, "a")
        monkeypatch.setattr(examining, "read_place", broken)
        job = await ended(node, await node.broker.start_job(morgue, Redrive(filter={"bodyContains": "a"})))
        assert (job.state, job.why) == ("FAILED", "The job's messages could not be read: no such layout")
        monkeypatch.undo()
        assert await drain(node, morgue) == ["a"]
        await node.stop()

    run_virtual(main)
