"""Workers over a reader group: order, commits, failures, members that come and go."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from batonq import testing
from batonq.client.models import RetainedFields
from batonq.errors import InvalidInput
from batonq.worker import Message, Poison, SqsSource, Worker
from batonq.worker.group_progress import ShardProgress, State
from tests.worker.support import until


def message(number: int, group: str | None = None) -> RetainedFields:
    return RetainedFields(position=f"0:{number}", id=str(number), body=number, group=group)


def test_only_what_is_done_without_a_gap_is_committed() -> None:
    progress = ShardProgress()
    for number in (1, 2, 3, 2):  # a repeated one is ignored
        progress.add(message(number))
    one, two, three = progress.ready(10, 0.0)
    assert progress.ready(10, 0.0) == []
    two.state = State.DONE
    assert progress.take_done() is None
    one.state = State.DONE
    assert progress.take_done() is two.message and progress.first is three
    progress.add(message(1))
    assert [*progress.entries] == ["0:3"]


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_a_group_are_handed_out_one_at_a_time_and_in_order(seed: int) -> None:
    random, progress = Random(seed), ShardProgress()
    out: list[Any] = []
    finished: dict[str | None, list[int]] = {}
    number, now = 0, 0.0
    for _ in range(300):
        now += 1
        for _ in range(random.randrange(3)):
            number += 1
            progress.add(message(number, random.choice(("a", "b", None))))
        out += progress.ready(random.randrange(4), now)
        groups = [entry.message.group for entry in out if entry.message.group]
        assert len(groups) == len(set(groups)), "two messages of one group are out"
        if out:
            entry = out.pop(random.randrange(len(out)))
            if random.random() < 0.3:
                entry.state, entry.not_before_s = State.WAITING, now + random.randrange(5)
            else:
                entry.state = State.DONE
                finished.setdefault(entry.message.group, []).append(entry.message.body)
        progress.take_done()
        assert progress.first is None or progress.first.state is not State.DONE
    for group in ("a", "b"):
        assert finished[group] == sorted(finished[group])


def test_a_worker_over_a_group_commits_retries_and_skips() -> None:
    async def main() -> None:
        async with await testing.memory_async() as baton:
            dead = await baton.create_queue("dead")
            jobs = await baton.create_queue("jobs", retain=3600)
            await jobs.send_many([{"n": at} for at in range(20)])
            for received in await jobs.receive(20, wait=0):
                await received.ack()  # a group reads what is deleted
            reader = jobs.reader("audit")
            await reader.create(dead_letter_queue="dead", max_failures=2)
            app = Worker(baton=baton, group="audit")
            handled: list[int] = []
            failed: set[int] = set()

            @app.task(queue="jobs", concurrency=4)
            async def handle(message: Message) -> None:
                number = message.body["n"]
                if number == 7:
                    raise Poison("so it is")
                if number == 11 and number not in failed:
                    failed.add(number)
                    raise ValueError("once")
                handled.append(number)

            serving = asyncio.create_task(app.serve())

            async def done() -> bool:
                return (await reader.info()).lag_messages == 0

            for _ in range(600):
                if await done():
                    break
                await asyncio.sleep(0.02)
            app.stop()
            assert await serving == 0
            assert sorted(handled) == [at for at in range(20) if at != 7]
            (letter,) = await dead.receive(wait=0)
            assert letter.body == {"n": 7}
            assert (await reader.info()).lag_messages == 0 and (await reader.info()).members == []

    asyncio.run(main())


def test_a_second_worker_takes_over_what_is_not_committed() -> None:
    async def main() -> None:
        async with await testing.memory_async() as baton:
            jobs = await baton.create_queue("jobs", retain=3600)
            await jobs.send_many([{"n": at} for at in range(10)])
            reader = jobs.reader("audit")
            await reader.create()
            handled: list[tuple[str, int]] = []
            held = asyncio.Event()

            def worker(name: str) -> Worker:
                app = Worker(baton=baton, group="audit", name=name)

                @app.task(queue="jobs", concurrency=1, name="handle")
                async def handle(message: Message) -> None:
                    handled.append((name, message.body["n"]))
                    if name == "one" and message.body["n"] == 4:
                        await held.wait()

                return app

            one, two = worker("one"), worker("two")
            first = asyncio.create_task(one.serve())
            await until(lambda: ("one", 4) in handled)
            second = asyncio.create_task(two.serve())
            one.stop()
            held.set()
            assert await first == 0
            await until(lambda: ("two", 9) in handled)
            two.stop()
            assert await second == 0
            assert [number for name, number in handled if name == "two"][-1] == 9
            assert {number for _, number in handled} == {*range(10)}

    asyncio.run(main())


def test_a_group_needs_one_queue_per_task_and_a_baton() -> None:
    async def main() -> None:
        async with await testing.memory_async() as baton:
            app = Worker(baton=baton, group="audit")
            source: Any = app._source
            await source.open("me", 1)
            with pytest.raises(InvalidInput, match="one queue per task, not jobs-"):
                await source.receive(["jobs-*"], 1, 0, 30)

    asyncio.run(main())
    with pytest.raises(InvalidInput, match="its own source"):
        Worker(source=SqsSource(object()), group="audit")
