"""Reader groups by both clients, against a server and against queues in this process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from batonq.errors import InvalidInput, NotRetained, ReaderDoesNotExist, StaleMember
from tests.client.support import run
from tests.client.test_queue import Place, place

__all__ = ["place"]


async def filled(baton: Any, count: int, **settings: Any) -> Any:
    queue = await baton.create_queue("orders", retain=3600, **settings)
    await queue.send_many([{"n": at} for at in range(count)])
    return queue


def numbers(messages: list[Any]) -> list[int]:
    return [message.body["n"] for message in messages]


def test_a_group_reads_commits_and_continues(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await filled(baton, 10)
            for message in await queue.receive(10, wait=0):
                await message.ack()
            reader = queue.reader("audit")
            info = await reader.create()
            assert (info.name, info.lag_messages) == ("audit", 10)
            first = await reader.fetch(4, wait=0)
            more = await reader.fetch(4, wait=0)  # goes on, although nothing is committed
            assert numbers(first + more) == [*range(8)]
            await reader.commit(*first[:2])
            assert (await reader.info()).lag_messages == 8
            assert numbers(await reader.fetch(1, wait=0, done=first)) == [8]  # commits, and goes on
            assert (await reader.info()).lag_messages == 6
            await reader.leave()
            again = queue.reader("audit")
            assert numbers(await again.fetch(100, wait=0)) == [*range(4, 10)]
            again.rewind()
            assert numbers(await again.fetch(1, wait=0)) == [4]
            (listed,) = await queue.readers()
            assert listed.members[0].member == again.member
            await again.delete()
            with pytest.raises(ReaderDoesNotExist):
                await again.info()

    run(body())


def test_iterating_and_committing(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await filled(baton, 5)
            reader = queue.reader("audit")
            await reader.create()
            seen = []
            async for message in reader.messages(prefetch=2):
                seen.append(message.body["n"])
                if len(seen) == 3:
                    await reader.commit()
                    break
            assert seen == [0, 1, 2]
            other = queue.reader("audit")
            await reader.leave()
            assert numbers(await other.fetch(100, wait=0)) == [3, 4]

    run(body())


def test_members_take_over_and_stale_ones_are_told(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await filled(baton, 4)
            one, two = queue.reader("audit", member="one"), queue.reader("audit", member="two")
            await one.create()
            held = await one.fetch(2, wait=0)
            assert await two.join() == []  # the queue has one shard, and its member keeps it
            await one.commit(held[0])  # the epoch has changed, the shard has not
            info = await one.info()
            await two.join()
            assert {member.member for member in info.members} == {"one", "two"}
            await one.leave()
            assert numbers(await two.fetch(100, wait=0)) == [1, 2, 3]
            with pytest.raises(InvalidInput, match="has not joined"):
                await one.commit(held[1])
            await one.join()
            with pytest.raises(StaleMember):
                await one.commit(held[1])

    run(body())


def test_seeks_and_wrong_times(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await filled(baton, 5)
            reader = queue.reader("audit")
            await reader.create("end")
            assert (await reader.info()).lag_messages == 0
            assert (await reader.seek("start")).lag_messages == 5
            found = await reader.fetch(100, wait=0)
            await reader.commit(*found)
            await reader.seek(positions=[found[3].position])
            assert numbers(await reader.fetch(100, wait=0)) == [3, 4]
            assert (await reader.seek(datetime(2100, 1, 1, tzinfo=UTC))).lag_messages == 0
            with pytest.raises(InvalidInput, match="no time zone"):
                await reader.seek(datetime(2100, 1, 1))  # noqa: DTZ001 - that is the point
            with pytest.raises(InvalidInput, match="999:1"):
                await reader.seek(positions=["999:1"])

    run(body())


def test_failures_lead_to_the_dead_letter_queue(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            dead = await baton.create_queue("dead")
            queue = await filled(baton, 2)
            reader = queue.reader("audit")
            await reader.create(dead_letter_queue="dead", max_failures=2)
            results = []
            for _ in range(2):
                first, *_ = await reader.fetch(100, wait=0)
                results.append(await reader.fail(first, ValueError("no")))
            assert [(one.failures, one.skipped) for one in results] == [(1, False), (2, True)]
            (letter,) = await dead.receive(wait=0)
            assert letter.body == {"n": 0} and letter.attributes["reader-error"] == "ValueError: no"
            reader.rewind()
            assert numbers(await reader.fetch(100, wait=0)) == [1]

    run(body())


def test_history_without_a_group(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await filled(baton, 7)
            found = [message async for message in queue.history(page_size=3)]
            assert numbers(found) == [*range(7)]
            again = [message async for message in queue.history(found[5].position)]
            assert [message.id for message in again] == [message.id for message in found[5:]]
            plain = await baton.create_queue("plain")
            with pytest.raises(NotRetained):
                await plain.reader("audit").create()

    run(body())
