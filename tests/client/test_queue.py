"""What a program does with queues, by both clients: one body each, the same results.

Each runs against a server over HTTP and against queues in this process.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from batonq.client import (
    Deduplication,
    Exponential,
    Nack,
    NoRetryDelay,
    Outgoing,
    RedriveEdit,
    RedriveFilter,
    Schedule,
    Sent,
)
from batonq.errors import (
    DeduplicationConflict,
    InvalidInput,
    JobConflict,
    JobNotFound,
    LeaseLost,
    MessageGone,
    QueueDoesNotExist,
    QueueExists,
    ReceiptInvalid,
)
from batonq.testing import memory, memory_async
from tests.client.support import Blocking, connected, run
from tests.support.server import TestServer


class Place:
    """Where a test runs: `open()` gives a client, `advance` moves the clock of what it talks to."""

    def __init__(self, form: str, place: str, server: TestServer, account: str) -> None:
        self._form = form
        self._place = place
        self._server = server
        self._account = account

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Any]:
        if self._place == "server":
            client = connected(self._form, self._server.url, access_key=self._account, secret_key="any", **options)
        elif self._form == "async":
            client = await memory_async()
        else:
            client = Blocking(memory())
        async with client as baton:
            yield baton

    async def advance(self, baton: Any, seconds: float) -> None:
        if self._place == "server":
            await asyncio.to_thread(self._server.advance, seconds)
        else:
            await baton.clock.advance(seconds)


@pytest.fixture(params=["server", "memory"])
def place(request: pytest.FixtureRequest, form: str, server: TestServer, account: str) -> Place:
    return Place(form, request.param, server, account)


def test_a_message_goes_through_its_life(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("jobs", visibility=60)
            sent = await queue.send({"picture": 7}, attributes={"kind": "resize", "size": 3, "raw": b"\x00\xff"})
            assert sent.sequence >= 1 and not sent.duplicate
            (message,) = await queue.receive(wait=0)
            assert message.id == sent.id
            assert message.body == {"picture": 7}
            assert message.attributes == {"kind": "resize", "size": 3, "raw": b"\x00\xff"}
            assert (message.queue, message.receive_count, message.sequence) == ("jobs", 1, sent.sequence)
            assert message.deadline - message.first_received_at == pytest.approx(60, abs=1)
            assert message.sent_at <= message.first_received_at
            extended = await message.extend(120)
            assert extended == message.deadline
            assert extended - message.first_received_at == pytest.approx(120, abs=30)
            await message.ack()
            stats = await queue.stats()
            assert (stats.depth, stats.sent, stats.received, stats.deleted) == (0, 1, 1, 1)
            counted = await queue.counters()
            assert (counted.counters.sent, counted.counters.delivered, counted.counters.deleted) == (1, 1, 1)
            assert counted.positions == [shard.position for shard in counted.shards]
            assert (counted.counters.present, counted.counters.unaccounted) == (0, 0)
            with pytest.raises(MessageGone):
                await message.ack()

    run(body())


@pytest.mark.parametrize("value", ["text", "", 7, 2.5, None, True, [1, [2]], {"a": {"b": None}}, b"\x00bytes", "ü🎈\n"])
def test_a_body_comes_back_as_it_was_sent(place: Place, value: Any) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("bodies")
            await queue.send(value)
            (message,) = await queue.receive(wait=0)
            assert message.body == value and type(message.body) is type(value)

    run(body())


def test_everything_that_a_message_may_bring(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("all")
            low = await queue.send("low", priority="low", dedup_key="k1", group="g", max_receives=3)
            await queue.send("high", priority=200)
            await queue.send("later", delay=300)
            await queue.send("short", ttl=10, delay=5)
            messages = await queue.receive(wait=0)
            assert [(message.body, message.priority) for message in messages] == [("high", 200), ("low", 64)]
            assert (messages[1].dedup_key, messages[1].group) == ("k1", "g")
            again = await queue.send("low", priority="low", dedup_key="k1", group="g", max_receives=3)
            assert (again.id, again.duplicate) == (low.id, True)
            with pytest.raises(DeduplicationConflict):
                await queue.send("other", dedup_key="k1", group="g")
            await place.advance(baton, 100)
            assert [message.body for message in await queue.receive(wait=0)] == ["high", "low"], (
                "their leases have ended"
            )
            await place.advance(baton, 201)
            assert "later" in [message.body for message in await queue.receive(wait=0)]

    run(body())


def test_many_messages_have_a_result_each(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("many")
            results = await queue.send_many(
                ["plain", Outgoing("odd", priority=999), Outgoing("fine", priority=200), {1, 2}, {"n": object()}]
            )
            kinds = [type(result) for result in results]
            assert kinds[0] is Sent and kinds[2] is Sent
            assert all(issubclass(kind, InvalidInput) for kind in (kinds[1], kinds[4]))
            messages = await queue.receive(wait=0)
            assert [(message.body, message.priority) for message in messages][:2] == [("fine", 200), ("plain", 128)]
            results = await queue.send_many(range(2_500))
            assert all(isinstance(result, Sent) for result in results)
            sequences = [result.sequence for result in results]
            assert sequences == sorted(set(sequences))
            assert await queue.send_many([]) == []

    run(body())


def test_large_messages_are_split_into_requests(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("large")
            results = await queue.send_many(["x" * 900_000] * 8)
            assert [type(result) for result in results] == [Sent] * 8
            with pytest.raises(InvalidInput, match="bytes"):
                await queue.send("x" * 1_100_000)

    run(body())


def test_numbers_that_a_program_gives_are_taken_once(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("numbered")
            first = await queue.send_many(["a", "b", "c"], producer=("relay-1", 10))
            again = await queue.send_many(["b", "c", "d"], producer=("relay-1", 11))
            assert [result.duplicate for result in again] == [True, True, False]
            assert [result.id for result in again[:2]] == [result.id for result in first[1:]]
            assert [message.body for message in await queue.receive(wait=0)] == ["a", "b", "c", "d"]

    run(body())


def test_a_message_that_was_not_tried_is_as_it_was(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("untried", max_receives=1, dead_letter_queue="untried-dead")
            await queue.send("x")
            for _ in range(3):
                (message,) = await queue.receive(wait=0)
                assert (message.receive_count, message.last_failure) == (1, None)
                await message.nack(untried=True)

    run(body())


def test_receipts_of_many(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("receipts", visibility=30, retry=NoRetryDelay())
            await queue.send_many(range(6))
            held = await queue.receive(wait=0)
            receipts = [message.receipt for message in held]
            outcome = await queue.ack_many([receipts[0], "nonsense", receipts[1], receipts[0]])
            assert [type(one) for one in outcome] == [type(None), ReceiptInvalid, type(None), MessageGone]
            outcome = await queue.nack_many(
                [Nack(receipts[2], delay=0, reason="no", error_class="E"), Nack(receipts[3])]
            )
            assert outcome == [None, None]
            deadlines = await queue.extend_many([(receipts[4], 500.0), (receipts[2], 5.0)])
            assert deadlines[0] - held[4].deadline > 400
            assert isinstance(deadlines[1], LeaseLost)
            (back, other) = await queue.receive(wait=0)
            assert (back.body, back.receive_count) == (2, 2)
            assert (back.last_failure.reason, back.last_failure.error_class) == ("no", "E")
            assert other.body == 3
            assert await queue.ack_many([]) == []

    run(body())


def test_one_wrong_argument_does_not_spoil_the_batch(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("spoiled", visibility=60)
            await queue.send_many(range(40))
            held = await queue.receive(100, wait=0)
            outcomes = await asyncio.gather(
                *(message.extend(-1 if message.body == 3 else 90) for message in held), return_exceptions=True
            )
            assert [at for at, outcome in enumerate(outcomes) if not isinstance(outcome, float)] == [3]
            assert isinstance(outcomes[3], InvalidInput)
            outcomes = await asyncio.gather(
                *(message.nack(delay=-1 if message.body == 5 else 0, reason="r" * 9_000) for message in held),
                return_exceptions=True,
            )
            assert [at for at, outcome in enumerate(outcomes) if outcome is not None] == [5]
            assert isinstance(outcomes[5], InvalidInput)
            assert (await queue.stats()).returned == 39

    run(body())


def test_a_lost_lease_is_told(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("lost", visibility=30)
            await queue.send("x")
            (first,) = await queue.receive(wait=0)
            await place.advance(baton, 31)
            (second,) = await queue.receive(wait=0)
            assert (second.id, second.receive_count) == (first.id, 2)
            for act in (first.ack, first.nack, lambda: first.extend(10)):
                with pytest.raises(LeaseLost):
                    await act()
            await second.ack()

    run(body())


def test_dead_letters_and_redrive(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("work", max_receives=2, dead_letter_queue="work-dead")
            dead = baton.queue("work-dead")
            await queue.send("tired")
            await queue.send("poison")
            for _ in range(2):
                for message in await queue.receive(wait=0):
                    if message.body == "poison":
                        await message.nack(reason="cannot be read", error_class="ValueError", dead_letter=True)
                    else:
                        await message.nack(delay=0, reason="slow", error_class="Timeout")
            assert (await queue.stats()).depth == 0
            letters = {message.body: message.dead_letter for message in await dead.receive(wait=0, visibility=0)}
            assert letters.keys() == {"tired", "poison"}
            assert (letters["poison"].queue, letters["poison"].reason) == ("work", "cannot be read")
            assert letters["tired"].error_class == "Timeout"
            peeked = await dead.peek()
            assert {(one.body, one.state) for one in peeked} == {("tired", "VISIBLE"), ("poison", "VISIBLE")}
            assert {one.dead_letter.attempts for one in peeked} == {1, 2}

    run(body())


async def _dead(baton: Any, count: int) -> Any:
    queue = await baton.create_queue("work", max_receives=1, dead_letter_queue="work-dead")
    await queue.send_many([Outgoing(f"job {n}", attributes={"odd": n % 2}) for n in range(count)])
    held = await queue.receive(count, wait=0)
    assert (
        await queue.nack_many([Nack(one.receipt, error_class="E", reason=one.body) for one in held]) == [None] * count
    )
    return queue


def test_redrive_of_chosen_messages(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await _dead(baton, 10)
            dead = baton.queue("work-dead")
            ids = [peeked.current_id for peeked in await dead.peek(limit=10)]
            job = await dead.redrive(rate=10_000, filter=RedriveFilter(message_ids=ids[3:6]))
            for _ in range(3):
                await place.advance(baton, 1)
            await job.wait()
            assert (job.state, job.moved, job.examined, job.not_found) == ("COMPLETED", 3, 3, 0)
            assert (await queue.stats()).visible == 3
            again = await dead.redrive(dry_run=True, filter=RedriveFilter(message_ids=ids[:4]))
            assert (again.matched, again.not_found) == (3, 1)

    run(body())


def test_replay(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("kept", retain=3600)
            again = await baton.create_queue("again")
            for number in range(6):
                await queue.send({"n": number})
            cut = await queue.counters()
            while messages := await queue.receive(max_messages=10, wait=0):
                for message in messages:
                    await message.ack()
            tried = await queue.replay("again", dry_run=True, filter=RedriveFilter(body_contains="3"))
            assert (tried.kind, tried.dry_run, tried.matched) == ("replay", True, 1)
            until = datetime.fromtimestamp(cut.at_ms / 1000 + 3600, UTC)
            job = await queue.replay("again", rate=10_000, until_positions=cut.positions, since=1.0, until=until)
            for _ in range(3):
                await place.advance(baton, 1)
            await job.wait()
            assert (job.state, job.moved, job.target_queue) == ("COMPLETED", 6, "again")
            shown = await again.peek(limit=10)
            assert [peeked.body["n"] for peeked in shown] == [*range(6)]
            assert all(peeked.replay_of for peeked in shown)
            with pytest.raises(TypeError, match="time zone"):
                await queue.replay(since=datetime(2026, 1, 1))  # noqa: DTZ001
            with pytest.raises(TypeError, match="not a replay setting"):
                await queue.replay(edit={})

    run(body())


def test_redrive(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await _dead(baton, 20)
            dead = baton.queue("work-dead")
            chosen = RedriveFilter(attributes={"odd": 1}, error_class="E")
            tried = await dead.redrive(dry_run=True, filter=chosen)
            assert (tried.dry_run, tried.matched, tried.moved) == (True, 10, 0)
            assert tried.sample[0]["body"].startswith("job")
            edit = RedriveEdit(set_attributes={"fixed": "yes"}, replace_text={"job": "task"})
            job = await dead.redrive(rate=10_000, filter=chosen, edit=edit)
            assert (await baton.job(job.id)).id == job.id
            for _ in range(10):
                await place.advance(baton, 1)
            await job.wait()
            assert (job.state, job.moved, job.done) == ("COMPLETED", 10, True)
            moved = await queue.receive(100, wait=0)
            assert sorted(one.body for one in moved) == sorted(f"task {n}" for n in range(1, 20, 2))
            assert moved[0].attributes == {"fixed": "yes", "odd": 1}
            assert [one.id for one in await dead.jobs()] == [job.id]
            assert (await dead.stats()).visible == 10

    run(body())


def test_a_redrive_can_be_paused_and_cancelled(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            await _dead(baton, 50)
            dead = baton.queue("work-dead")
            job = await dead.redrive("work", rate=1)
            with pytest.raises(JobConflict):
                await dead.redrive()
            assert (await job.pause()).state == "PAUSED"
            assert (await job.wait()).state == "PAUSED"
            assert (await job.resume()).state == "RUNNING"
            assert (await job.cancel()).state in ("CANCELLING", "CANCELLED")
            with pytest.raises(JobNotFound):
                await baton.job("no-such-job")

    run(body())


def test_a_queue_and_its_settings(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            retry = Exponential(base_seconds=2, factor=3, max_seconds=60, jitter=0)
            queue = await baton.create_queue("q", visibility=45, retry=retry, tags={"team": "a"})
            assert (await baton.create_queue("q", visibility=45, retry=retry, tags={"team": "a"})) is not None
            with pytest.raises(QueueExists):
                await baton.create_queue("q", visibility=46)
            with pytest.raises(QueueExists):
                await baton.create_queue("q", exist_ok=False, visibility=45, retry=retry, tags={"team": "a"})
            info = await queue.info()
            assert (info.name, info.mode, info.default_visibility_timeout_seconds) == ("q", "STANDARD", 45)
            assert (info.retry, info.tags) == (retry, {"team": "a"})
            info = await queue.update(visibility=50, retry=Schedule([60, 300], jitter=0.5))
            assert info.default_visibility_timeout_seconds == 50
            assert (info.retry.delays_seconds, info.retry.jitter) == ([60, 300], 0.5)
            with pytest.raises(TypeError, match="'visibilty' is not a queue setting"):
                await queue.update(visibilty=50)
            await queue.send("x")
            await queue.purge()
            assert (await queue.stats()).depth == 0
            await queue.delete()
            with pytest.raises(QueueDoesNotExist):
                await queue.send("x")
            with pytest.raises(QueueDoesNotExist):
                await queue.send_many(["x"])

    run(body())


def test_a_retry_policy_is_kept_by_the_queue(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("retries", retry=Schedule([60, 300], jitter=0))
            await queue.send("x")
            (message,) = await queue.receive(wait=0)
            await message.nack(reason="no")
            assert await queue.receive(wait=0) == []
            await place.advance(baton, 61)
            assert len(await queue.receive(wait=0)) == 1

    run(body())


def test_all_queues_are_listed(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            names = [f"list-{number:02}" for number in range(30)]
            for name in names:
                await baton.create_queue(name)
            assert [info.name async for info in baton.queues("list-")] == names
            assert [info.name async for info in baton.queues("nothing")] == []

    run(body())


def test_a_fifo_queue_keeps_the_order_of_a_group(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue(
                "orders", fifo=True, visibility=600, deduplication=Deduplication(content_based=True)
            )
            jobs = [queue.send({"group": group, "n": n}, group=group) for n in range(40) for group in ("a", "b", "c")]
            await asyncio.gather(*jobs)
            got: dict[str, list[int]] = {"a": [], "b": [], "c": []}
            while messages := await queue.receive(100, wait=0):
                for message in messages:
                    got[message.group].append(message.body["n"])
                    await message.ack()
            for numbers in got.values():
                # Tasks send in the order in which they were made; threads in any.
                assert (sorted(numbers) if isinstance(queue, Blocking) else numbers) == list(range(40))

    run(body())


def test_several_queues_with_one_receive(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            for name in ("hooks-a", "hooks-b", "other"):
                queue = await baton.create_queue(name)
                await queue.send(name)
            messages = await baton.receive(["hooks-*"], wait=0)
            assert sorted((message.queue, message.body) for message in messages) == [
                ("hooks-a", "hooks-a"),
                ("hooks-b", "hooks-b"),
            ]
            for message in messages:
                await message.ack()
            assert (await baton.queue("hooks-a").stats()).deleted == 1

    run(body())


def test_iteration_ends_when_the_client_is_closed(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("iterated")
            await queue.send_many(range(5))
            seen = []
            got_all = asyncio.Event()

            async def consume() -> None:
                async for message in queue:
                    seen.append(message.body)
                    await message.ack()
                    if len(seen) == 5:
                        got_all.set()

            consumer = asyncio.create_task(consume())
            await got_all.wait()
            await baton.close()
            await consumer
            assert seen == [0, 1, 2, 3, 4]
            with pytest.raises(InvalidInput, match="closed"):
                await queue.send("x")

    run(body())


def test_what_an_iteration_did_not_come_to_is_given_back() -> None:
    async def body() -> None:
        async with await memory_async() as baton:
            queue = await baton.create_queue("prefetched")
            await queue.send_many(range(5))
            messages = queue.messages(prefetch=5)
            assert (await anext(messages)).body == 0
            await messages.aclose()
            stats = await queue.stats()
            assert (stats.visible, stats.in_flight) == (4, 1)

    run(body())
    with memory() as baton:
        queue = baton.create_queue("prefetched")
        queue.send_many(range(5))
        for message in queue.messages(prefetch=5):
            assert message.body == 0
            break
        stats = queue.stats()
        assert (stats.visible, stats.in_flight) == (4, 1)


def test_a_message_can_be_handed_to_another_process(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("pickled")
            await queue.send({"n": 1}, attributes={"a": b"b"}, group="g")
            (message,) = await queue.receive(wait=0)
            inner = getattr(message, "inner", message)
            copy = pickle.loads(pickle.dumps(inner))
            assert (copy.id, copy.body, copy.attributes, copy.group) == (message.id, {"n": 1}, {"a": b"b"}, "g")
            assert (type(copy), copy.receipt, copy.deadline) == (type(inner), message.receipt, message.deadline)
            with pytest.raises(InvalidInput, match="moved to another process"):
                await (Blocking(copy) if inner is not message else copy).ack()
            assert await queue.ack_many([copy.receipt]) == [None]

    run(body())


def test_wrong_arguments_are_told(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("q")
            for wrong in (queue.send(object()), queue.send(1 << 70), queue.receive(0, wait=0), queue.receive(wait=21)):
                with pytest.raises(InvalidInput):
                    await wrong
            with pytest.raises(TypeError, match="'colour' is not a queue setting"):
                await baton.create_queue("q2", colour="red")
            with pytest.raises(QueueDoesNotExist, match=r"no such queue\?"):
                await baton.queue("no such queue?").stats()

    run(body())
