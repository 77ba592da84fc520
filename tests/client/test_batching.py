"""Automatic batching, by tasks and by threads: few requests, every caller its own result, bounded buffers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from batonq import sync
from batonq.client import BatchLimits, Baton
from batonq.client.aio.batching import Batcher
from batonq.client.batches import split
from batonq.client.blocking.batching import Batcher as BlockingBatcher
from batonq.errors import BatonError, InvalidInput, OverLimit, Unavailable
from tests.client.support import WAIT_S, Asked, ScriptedServer, answer, connected, run, sent

CALLERS = 200
LIMITS = BatchLimits(count=10, bytes=1_000, lanes=2, linger=60.0, waiting_count=50)


class Post:
    """Takes batches; each waits until the test lets it through."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Event] = []
        self.came = asyncio.Event()

    async def __call__(self, items: list[int]) -> list[int | BatonError]:
        gate = asyncio.Event()
        self.batches.append(items)
        self.gates.append(gate)
        self.came.set()
        await gate.wait()
        return [OverLimit(str(item)) if item % 7 == 3 else item * 2 for item in items]

    async def batch(self, number: int) -> list[int]:
        while len(self.batches) <= number:
            self.came.clear()
            await self.came.wait()
        return self.batches[number]


def test_what_comes_in_one_turn_goes_in_one_request() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, LIMITS)
        puts = [asyncio.create_task(batcher.put(number, 1)) for number in range(5)]
        assert await post.batch(0) == [0, 1, 2, 3, 4]
        post.gates[0].set()
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [result for result in results if isinstance(result, int)] == [0, 2, 4, 8]
        assert isinstance(results[3], OverLimit) and results[3].message == "3"

    run(body())


def test_what_comes_meanwhile_gathers_until_the_answer() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(count=10, lanes=1))
        puts = [asyncio.create_task(batcher.put(0, 1))]
        await post.batch(0)
        puts += [asyncio.create_task(batcher.put(number, 1)) for number in range(1, 26)]
        await asyncio.sleep(0)
        assert post.batches == [[0]]
        for number in range(4):
            await post.batch(number)
            post.gates[number].set()
        await asyncio.gather(*puts, return_exceptions=True)
        assert [len(batch) for batch in post.batches] == [1, 10, 10, 5]
        assert list(chain.from_iterable(post.batches)) == list(range(26))

    run(body())


def test_a_full_batch_opens_another_lane_and_a_part_of_one_waits() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, LIMITS)
        puts = [asyncio.create_task(batcher.put(number, 1)) for number in (0, 1)]
        await post.batch(0)
        puts += [asyncio.create_task(batcher.put(number, 1)) for number in (2, 4, 5)]
        await asyncio.sleep(0)
        assert len(post.batches) == 1
        puts += [asyncio.create_task(batcher.put(number, 1)) for number in range(11, 18)]
        assert len(await post.batch(1)) == 10
        for gate in post.gates:
            gate.set()
        await asyncio.gather(*puts, return_exceptions=True)

    run(body())


def test_linger_is_bounded() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(linger=0.001, lanes=2))
        puts = [asyncio.create_task(batcher.put(0, 1))]
        await post.batch(0)
        puts.append(asyncio.create_task(batcher.put(1, 1)))
        assert await post.batch(1) == [1]  # although the first has no answer yet
        for gate in post.gates:
            gate.set()
        await asyncio.gather(*puts)

    run(body())


def test_batches_are_bounded_by_bytes() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(bytes=100, lanes=1))
        puts = [asyncio.create_task(batcher.put(number, size)) for number, size in enumerate((40, 40, 40, 500, 10))]
        for number in range(4):
            await post.batch(number)
            post.gates[number].set()
        await asyncio.gather(*puts, return_exceptions=True)
        assert post.batches == [[0, 1], [2], [3], [4]]

    run(body())


def test_one_key_keeps_to_one_lane() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(count=2, lanes=8, linger=0.0))
        puts = [asyncio.create_task(batcher.put(number, 1, key="k")) for number in range(8)]
        for number in range(4):
            await post.batch(number)
            assert len(post.batches) == number + 1  # one at a time
            post.gates[number].set()
        await asyncio.gather(*puts, return_exceptions=True)
        assert list(chain.from_iterable(post.batches)) == list(range(8))

    run(body())


def test_callers_wait_while_the_buffer_is_full() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(count=5, lanes=1, waiting_count=5))
        puts = [asyncio.create_task(batcher.put(number, 1)) for number in range(30)]
        await post.batch(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert batcher._count <= 5
        puts[20].cancel()
        for number in range(6):
            assert batcher._count <= 5
            await post.batch(number)
            post.gates[number].set()
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1
        assert sorted(chain.from_iterable(post.batches)) == [number for number in range(30) if number != 20]

    run(body())


def test_a_cancelled_caller_takes_its_item_along_unless_it_has_left() -> None:
    async def body() -> None:
        post = Post()
        batcher = Batcher(post, BatchLimits(lanes=1))
        first = asyncio.create_task(batcher.put(0, 1))
        await post.batch(0)
        waiting = [asyncio.create_task(batcher.put(number, 1)) for number in (1, 2)]
        await asyncio.sleep(0)
        first.cancel()
        waiting[0].cancel()
        post.gates[0].set()
        assert await post.batch(1) == [2]
        post.gates[1].set()
        assert await waiting[1] == 4
        await batcher.flush()

    run(body())


def test_a_request_that_fails_is_told_to_all_of_its_callers() -> None:
    async def body() -> None:
        async def post(items: list[int]) -> list[int | BatonError]:
            raise Unavailable("not today")

        batcher = Batcher(post, LIMITS)
        results = await asyncio.gather(*(batcher.put(number, 1) for number in range(4)), return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable] * 4

    run(body())


def test_closing_waits_for_what_was_put(form: str) -> None:
    async def body() -> None:
        release = threading.Event()

        async def script(asked: Asked) -> bytes:
            await asyncio.to_thread(release.wait, WAIT_S)
            return sent(asked)

        with ScriptedServer(script) as server:
            baton = connected(form, server.url)
            sends = [asyncio.create_task(baton.queue("q").send(number)) for number in range(20)]
            await asyncio.to_thread(server.wait_asked, 1)
            closing = asyncio.create_task(baton.close())
            release.set()
            results = await asyncio.gather(*sends, return_exceptions=True)
            await closing
            taken = sum(len(asked.value["messages"]) for asked in server.asked)
            assert taken == sum(not isinstance(result, BaseException) for result in results) >= 1
            assert all(isinstance(result, InvalidInput) for result in results if isinstance(result, BaseException))

    run(body())


def test_a_producer_that_never_stops_does_not_keep_a_client_open(form: str) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return sent(asked)

        with ScriptedServer(script) as server:
            baton = connected(form, server.url)

            async def produce() -> None:
                while True:
                    await baton.queue("q").send("x")

            producers = [asyncio.create_task(produce()) for _ in range(5)]
            await asyncio.to_thread(server.wait_asked, 10)
            await baton.close()
            for outcome in await asyncio.gather(*producers, return_exceptions=True):
                assert isinstance(outcome, InvalidInput) and "closed" in outcome.message

    run(body())


def asked_for(server: ScriptedServer, start: int) -> int:
    """Of how many messages the requests are, from one of them on."""
    return sum(len(asked.value.get("messages") or asked.value["receiptHandles"]) for asked in server.asked[start:])


def test_concurrent_sends_and_acks_share_requests(form: str) -> None:
    async def body() -> None:
        all_are_there = threading.Event()

        async def script(asked: Asked) -> bytes:
            await asyncio.to_thread(all_are_there.wait, WAIT_S)
            if asked.path.endswith(":batch"):
                return sent(asked)
            if asked.path.endswith(":receive"):
                messages = [{"messageId": str(at), "receiptHandle": f"r{at}", "body": at} for at in range(CALLERS)]
                return answer(200, {"messages": messages})
            return answer(200, {"results": [{} for _ in asked.value["receiptHandles"]]})

        with ScriptedServer(script) as server:
            async with connected(form, server.url) as baton:
                queue = baton.queue("q")

                async def together(calls: Iterable[Coroutine[Any, Any, Any]], batcher: str) -> list[Any]:
                    """All of them, none of which is answered before the last has come."""
                    all_are_there.clear()
                    asked = len(server.asked)
                    gathering = asyncio.gather(*calls)
                    waiting = getattr(getattr(queue, "inner", queue), batcher)
                    while asked_for(server, asked) + waiting._count < CALLERS:  # noqa: ASYNC110 - there is no event
                        await asyncio.sleep(0.001)
                    all_are_there.set()
                    return await gathering

                results = await together((queue.send(number) for number in range(CALLERS)), "_sends")
                assert len({result.sequence for result in results}) == CALLERS
                sends = len(server.asked)
                assert sends < CALLERS / 2
                messages = await queue.receive(CALLERS)
                await together((message.ack() for message in messages), "_acks")
                acks = [asked.value["receiptHandles"] for asked in server.asked[sends + 1 :]]
                assert len(acks) < CALLERS / 2
                assert sorted(chain.from_iterable(acks)) == sorted(message.receipt for message in messages)
                before = len(server.asked)
                await asyncio.gather(*(queue.send(number, batch=False) for number in range(10)))
                assert len(server.asked) == before + 10

    run(body())


def test_requests_under_way_have_producers_of_their_own(form: str) -> None:
    """Two requests of one producer could overtake each other, and the first would pass for a repetition."""

    async def body() -> None:
        under_way: set[str] = set()
        wrong: list[str] = []
        numbers: dict[str, int] = {}

        async def script(asked: Asked) -> bytes:
            producer = asked.value["producer"]
            if producer["id"] in under_way or numbers.get(producer["id"], 0) >= producer["sequence"]:
                wrong.append(str(producer))
            under_way.add(producer["id"])
            await asyncio.sleep(0.002)
            under_way.discard(producer["id"])
            numbers[producer["id"]] = producer["sequence"] + len(asked.value["messages"]) - 1
            return sent(asked)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, batching=BatchLimits(count=3, linger=0.0)) as baton:
                one, other = baton.queue("one"), baton.queue("other")
                await asyncio.gather(
                    *(one.send(number) for number in range(60)),
                    *(other.send(number, group=str(number % 5)) for number in range(60)),
                    *(one.send_many(range(5)) for _ in range(5)),
                    *(one.send(number, batch=False) for number in range(5)),
                )
            assert wrong == []
            assert len(numbers) <= 2 * 4 + 10
            assert sum(len(asked.value["messages"]) for asked in server.asked) == 150

    run(body())


# --- threads ---------------------------------------------------------------------------------------


def test_many_threads_each_get_their_own_result() -> None:
    batches: list[int] = []

    def post(items: list[int]) -> list[int | BatonError]:
        batches.append(len(items))
        return [OverLimit(str(item)) if item % 7 == 3 else item * 2 for item in items]

    batcher = BlockingBatcher(post, BatchLimits(count=7, lanes=3, linger=0.0005, waiting_count=20))

    def put(number: int) -> None:
        if number % 7 == 3:
            with pytest.raises(OverLimit, match=str(number)):
                batcher.put(number, 1, key=None if number % 3 else str(number % 5))
        else:
            assert batcher.put(number, 1, key=None if number % 3 else str(number % 5)) == number * 2

    with ThreadPoolExecutor(24) as pool:
        for future in [pool.submit(put, number) for number in range(3_000)]:
            future.result(WAIT_S)
    assert sum(batches) == 3_000 and max(batches) <= 7
    batcher.flush()
    assert not any(lane.busy for lane in batcher._lanes)


def test_a_leader_that_is_interrupted_leaves_nobody_waiting() -> None:
    entered, interrupt = threading.Event(), threading.Event()
    calls: list[list[int]] = []

    def post(items: list[int]) -> list[int | BatonError]:
        calls.append(items)
        if len(calls) == 1:
            entered.set()
            assert interrupt.wait(WAIT_S)
            raise KeyboardInterrupt
        return list(items)

    batcher = BlockingBatcher(post, BatchLimits(lanes=1, linger=60.0))
    outcomes: dict[int, object] = {}

    def put(number: int) -> None:
        try:
            outcomes[number] = batcher.put(number, 1)
        except BaseException as problem:
            outcomes[number] = problem

    threads = [threading.Thread(target=put, args=(0,))]
    threads[0].start()
    assert entered.wait(WAIT_S)
    threads += [threading.Thread(target=put, args=(number,)) for number in (1, 2, 3)]
    for thread in threads[1:]:
        thread.start()
    while len(batcher._shared) < 3:
        threading.Event().wait(0.001)
    interrupt.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert isinstance(outcomes[0], KeyboardInterrupt)
    assert [outcomes[number] for number in (1, 2, 3)] == [1, 2, 3]


# --- cutting a list into requests -----------------------------------------------------------------


def test_split() -> None:
    assert split([]) == []
    assert split([1] * 2_500) == [slice(0, 1_000), slice(1_000, 2_000), slice(2_000, 2_500)]
    assert split([2 << 20, 2 << 20, 1, 5 << 20, 1]) == [slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 5)]


def test_limits_that_make_no_sense_are_refused() -> None:
    for limits in (BatchLimits(lanes=0), BatchLimits(count=0), BatchLimits(count=1_001)):
        for kind in (Baton, sync.Baton):
            with pytest.raises(InvalidInput):
                kind(batching=limits)
